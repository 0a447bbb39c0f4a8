//! Delayed writes of a file whose write lease has ended without a return: the origin has revoked it, or this
//! cache was cut off for longer than the lease.
//!
//! Another client may have changed the file since, and older bytes must not be written over its bytes. So
//! WRITEs on their way are given up, and nothing is sent until the origin has been asked. The writes are sent
//! if all changes of the file are ours. Any of these shows that:
//! - The change attribute is as before.
//! - The ctime is not later than the first seconds in which the origin was silent.
//! - The origin has exactly the bytes of the WRITEs that were given up.
//!
//! Otherwise, and if the origin refuses to tell, the writes are kept beside the cache, as those of a killed
//! process are ([`super::restoring`]). The next caller gets an error.
//!
//! When the origin falls silent, some WRITEs on their way have taken effect, and nobody knows which. Their
//! ctime tells that it was them: a lease outlasts the first seconds of a silence, so nobody else was let in.
//! That needs a clock that does not stop. If the machine has slept meanwhile, the ctime tells nothing.
//!
//! If the origin has not been silent and a change of ours is on its way, nothing can tell it from another
//! client's. Then the writes are sent without a question.
//!
//! Not covered either: a lease that is returned although bytes remain, because a recall could not wait any
//! longer.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, LeaseId, LeaseKind, Result, Status, Timestamp};

use super::file::{Revoked, Suspended};
use super::flush::messenger;
use super::restoring::{Keeping, Unsettled, patiently};
use super::{Delayed, Writes};
use crate::core::Core;
use crate::journal::Begin;
use crate::object::ObjectState;
use crate::table::Object;

/// A WRITE that is on its way when the origin falls silent takes effect within this time. It is less than any
/// lease time, also with the skew of the clocks.
const LANDING: Duration = Duration::from_secs(5);
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
        let vouched = state.vouched_change();
        let Some(writes) = &mut state.delayed.writes else { return false };
        // Of writes of an earlier process, the journal knows it.
        let journaled = writes.journaled.as_ref().filter(|_| writes.restored.is_some());
        let change = journaled.map_or(vouched, |journaled| journaled.begin().change);
        let until = self.alone_until();
        // Nothing could tell changes of ours from another client's.
        if change.is_none() && until.is_none() {
            return false;
        }
        writes.suspend(Suspended::Revoked(Revoked { change, until, unsure: Vec::new() }))
    }

    /// If the origin is silent: nobody else could change a file under a lease before its clock showed this
    /// time.
    fn alone_until(&self) -> Option<Timestamp> {
        if self.delayed.as_ref().is_none_or(Delayed::has_slept) {
            return None;
        }
        let silence = self.below.unanswered_since()?;
        let silent = silence.borrow().as_ref().map(Instant::elapsed)?;
        let back = silent.saturating_sub((silent / 2).min(LANDING));
        let then = self.policy.wall().as_nanos() - back.as_nanos() as i128;
        Some(self.policy.origin.earliest(Timestamp::from_nanos(then)))
    }

    /// Asks the origin in the background, and sends or keeps the writes.
    pub fn settle_suspended_soon(&self, object: &Arc<Object>) {
        let Some(core) = self.share() else { return };
        self.delayed.iter().for_each(|delayed| delayed.suspensions.notify_waiters());
        let object = object.clone();
        tokio::spawn(async move { core.settle_suspended(&object).await });
    }

    /// Waits for a WRITE. `None` if the lease of the file is revoked first.
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
                if self.writes(object, |writes| writes.revoked().is_some()) == Some(true) {
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
            Err(error) => Some(error.to_string()),
            Ok(true) => None,
        };
        match why {
            None => drop(self.writes(object, Writes::resume)),
            Some(why) => self.set_suspended_aside(object, &why).await,
        }
        self.go_on(object);
    }

    pub(super) async fn no_write_in_flight(&self, object: &Arc<Object>) {
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
        let look = |writes: &mut Writes| Some((writes.revoked()?.clone(), writes.first_writer()));
        let Some((revoked, writer)) = self.writes(object, look).flatten() else { return Ok(true) };
        let caller = writer.map_or_else(Caller::machine, |writer| messenger(&writer));
        self.counters.getattr.bump();
        let known = patiently(|| self.below.getattr(&caller, &object.handle)).await?;
        let before = revoked.until.is_some_and(|until| known.ctime < until);
        if before || revoked.change == Some(known.change) {
            return Ok(true);
        }
        for (offset, bytes) in &revoked.unsure {
            if !self.has_bytes(&caller, &object.handle, *offset, bytes.clone()).await {
                return Ok(false);
            }
        }
        Ok(!revoked.unsure.is_empty())
    }

    /// Takes the writes away, and keeps them in a file of the cache directory. Until that is done, the
    /// journal has them.
    pub(super) async fn set_suspended_aside(&self, object: &Arc<Object>, why: &str) {
        let Some(delayed) = &self.delayed else { return };
        let place = |state: &ObjectState| state.place.clone();
        let taken = self.writes_of(object, place, |writes, place| {
            let entries = writes.remaining_entries();
            let journaled = writes.journaled.take();
            writes.abandon(Status::Io);
            (entries, journaled, place)
        });
        let Some((entries, journaled, place)) = taken else { return };
        self.go_on(object);
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
                Ok(_) => break,
                // The next start finds them in the journal.
                Err(_) => return,
            }
        }
        journaled.into_iter().for_each(|journaled| delayed.journal.end(journaled));
    }
}
