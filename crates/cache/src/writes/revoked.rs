//! Delayed writes of a file whose write lease has ended without a return: the origin has revoked it, or this
//! cache was cut off for longer than the lease.
//!
//! Another client may have changed the file since, and older bytes must not be written over its bytes. So
//! WRITEs on their way are given up, and nothing is sent until the origin has been asked. The writes are sent
//! if all changes of the file are ours: its change attribute is as before, its ctime is from before the end
//! of the lease, or the origin has exactly the bytes of the WRITEs that were given up. Otherwise they are
//! kept beside the cache, as those of a killed process are ([`super::restoring`]), and the next caller gets
//! an error.
//!
//! The cache believes a ctime only if the origin was silent when the lease ended: then it ended by this
//! machine's clock, and before the origin let anybody else in. A lease that the origin itself revokes has
//! ended some time ago.

use std::sync::Arc;
use std::time::Duration;

use vfs::{Caller, LeaseId, LeaseKind, Result, Status};

use super::Writes;
use super::file::Suspended;
use super::flush::messenger;
use super::restoring::{Keeping, Unsettled, patiently};
use crate::core::Core;
use crate::journal::{Begin, Entry};
use crate::object::ObjectState;
use crate::table::Object;

/// The pause before another attempt, if the local disk does not take the writes.
const AGAIN: Duration = Duration::from_secs(10);

impl Core {
    /// The caller is about to end a revoked lease. True if writes must be settled by
    /// [`Core::settle_suspended_soon`].
    pub fn suspend_writes(&self, state: &mut ObjectState) -> bool {
        let is_write = state.held.lease.as_ref().is_some_and(|lease| lease.kind == LeaseKind::Write);
        if !is_write || state.unlinked {
            return false;
        }
        let silence = self.below.unanswered_since();
        let silent = silence.is_some_and(|silence| silence.borrow().is_some());
        let known = state.attributes().map(|known| known.change);
        let Some(writes) = &mut state.delayed.writes else { return false };
        // Of writes of an earlier process, only the journal may know it.
        let entered = || writes.journaled.as_ref().and_then(|journaled| journaled.begin().change);
        let suspended = Suspended {
            change: known.or_else(entered),
            ended: silent.then(|| self.policy.origin.earliest(self.policy.wall())),
            unsure: Vec::new(),
        };
        writes.suspend(suspended)
    }

    /// Asks the origin in the background, and sends or keeps the writes.
    pub fn settle_suspended_soon(&self, object: &Arc<Object>) {
        let Some(core) = self.share() else { return };
        self.delayed.iter().for_each(|delayed| delayed.suspensions.notify_waiters());
        let object = object.clone();
        tokio::spawn(async move { core.settle_suspended(&object).await });
    }

    /// Waits for a WRITE. `None` if the file is suspended first.
    pub(super) async fn unless_suspended<T>(
        &self,
        object: &Arc<Object>,
        sending: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(delayed) = &self.delayed else { return Some(sending.await) };
        let suspended = async {
            loop {
                let told = delayed.suspensions.notified();
                tokio::pin!(told);
                told.as_mut().enable();
                if self.writes(object, |writes| writes.suspended().is_some()) == Some(true) {
                    return;
                }
                told.await;
            }
        };
        tokio::select! {
            biased;
            () = suspended => None,
            result = sending => Some(result),
        }
    }

    async fn settle_suspended(&self, object: &Arc<Object>) {
        self.no_write_in_flight(object).await;
        let why = match self.is_ours_alone(object).await {
            Ok(false) => Some("another client has changed the file".to_owned()),
            Err(error) if matches!(error.status, Status::Stale | Status::BadHandle | Status::NoEnt) => {
                Some("the file is gone".to_owned())
            }
            // The origin then refuses the writes, too, and a program is told.
            Ok(true) | Err(_) => None,
        };
        match why {
            None => drop(self.writes(object, Writes::resume)),
            Some(why) => self.set_suspended_aside(object, &why).await,
        }
        self.go_on(object);
    }

    async fn no_write_in_flight(&self, object: &Arc<Object>) {
        loop {
            let changed = object.written.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.writes(object, |writes| writes.has_in_flight()) != Some(true) {
                return;
            }
            changed.await;
        }
    }

    /// Are all changes of the file at the origin ours?
    async fn is_ours_alone(&self, object: &Arc<Object>) -> Result<bool> {
        let look = |writes: &mut Writes| Some((writes.suspended()?.clone(), writes.first_writer()));
        let Some((suspended, writer)) = self.writes(object, look).flatten() else { return Ok(true) };
        let caller = writer.map_or_else(Caller::machine, |writer| messenger(&writer));
        self.counters.getattr.bump();
        let known = patiently(|| self.below.getattr(&caller, &object.handle)).await?;
        let before = suspended.ended.is_some_and(|ended| known.ctime < ended);
        if before || suspended.change == Some(known.change) {
            return Ok(true);
        }
        for (offset, bytes) in &suspended.unsure {
            if !self.has_bytes(&caller, &object.handle, *offset, bytes.clone()).await {
                return Ok(false);
            }
        }
        Ok(!suspended.unsure.is_empty())
    }

    /// Takes the writes away, and keeps them in a file of the cache directory. Until that is done, the
    /// journal has them.
    async fn set_suspended_aside(&self, object: &Arc<Object>, why: &str) {
        let Some(delayed) = &self.delayed else { return };
        let place = |state: &ObjectState| state.place.clone();
        let taken = self.writes_of(object, place, |writes, place| {
            let modified = writes.modified().unwrap_or_default();
            let write = |(writer, offset, bytes)| Entry::Write { writer, offset, modified, bytes };
            let entries: Vec<Entry> = writes.remaining_bytes().into_iter().map(write).collect();
            let journaled = writes.journaled.take();
            writes.abandon(Status::Io);
            (entries, journaled, place)
        });
        let Some((entries, journaled, place)) = taken else { return };
        let (handle, lease) = (object.handle, LeaseId(0));
        let of_file = || Begin { handle, lease, place, change: None, replaces: None };
        let begin = journaled.as_ref().map_or_else(of_file, |journaled| journaled.begin().clone());
        while !entries.is_empty() {
            let keeping = Keeping::new(self, begin.clone(), entries.clone(), "delayed writes");
            let why = why.to_owned();
            match tokio::task::spawn_blocking(move || keeping.keep(&why)).await {
                Ok(Err(Unsettled::NotKept { name, path, cause })) => {
                    let path = path.display();
                    tracing::error!(
                        "{name}: delayed writes cannot be kept in {path}: {cause}; make space there"
                    );
                    tokio::time::sleep(AGAIN).await;
                }
                _ => break,
            }
        }
        journaled.into_iter().for_each(|journaled| delayed.journal.end(journaled));
    }
}
