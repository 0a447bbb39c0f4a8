//! Closes, WRITEs and refusals, entered in the account of their file system ([`super::space`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::Instant;
use vfs::{Caller, Fsid, Handle, Lease, Status};

use super::flush::{Level, messenger};
use super::space::{Claim, Space, Verdict};
use crate::core::Core;
use crate::object::ObjectState;
use crate::table::Object;

/// The longest time that a WRITE waits for kept files to be sent first.
const WAY_MAX: Duration = Duration::from_secs(10);
/// Most kept files that are sent at a time when space is short.
const DRAINS_MAX: usize = 32;
/// Most file systems that have an account.
const SPACES_MAX: usize = 256;

/// The accounts of all file systems of the origin.
#[derive(Debug, Default)]
pub struct Spaces {
    accounts: Mutex<HashMap<Fsid, Space>>,
    /// The free bytes that the origin reported with the limits of the root's file system, and when.
    first: Mutex<Option<(u64, Instant)>>,
    /// Locked while a request for the space is in flight.
    asking: tokio::sync::Mutex<()>,
    /// Wakes waiters when kept bytes have been sent, or the space has been seen.
    eased: Notify,
}

impl Spaces {
    /// Runs `work` on the account of a file system. `None` if there are too many accounts.
    fn with<T>(&self, fsid: Fsid, work: impl FnOnce(&mut Space) -> T) -> Option<T> {
        let mut accounts = self.accounts.lock();
        if accounts.len() >= SPACES_MAX && !accounts.contains_key(&fsid) {
            return None;
        }
        Some(work(accounts.entry(fsid).or_default()))
    }

    /// The origin reported the free bytes of the root's file system with its limits.
    pub fn saw_first(&self, available: u64) {
        self.first.lock().get_or_insert((available, Instant::now()));
    }

    /// The claim of a file has changed.
    pub fn adjust(&self, fsid: Fsid, before: Claim, after: Claim) {
        self.with(fsid, |space| space.adjust(before, after));
        if after.total() < before.total() {
            self.eased.notify_waiters();
        }
    }
}

/// A WRITE that is entered in the account until its reply.
pub struct Sending<'a> {
    spaces: &'a Spaces,
    fsid: Fsid,
    bytes: u64,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.spaces.with(self.fsid, |space| space.answered(self.bytes));
    }
}

impl Core {
    /// A close under a write lease: may the delayed bytes stay here? If true, the file is kept from now on.
    pub async fn may_keep(&self, caller: &Caller, object: &Arc<Object>) -> bool {
        self.learn_first();
        for _ in 0..2 {
            match self.keep(object) {
                (Verdict::Keep, _) => return true,
                (Verdict::Ask, Some(fsid)) => self.ask_space(caller, &object.handle, fsid).await,
                _ => return false,
            }
        }
        false
    }

    fn learn_first(&self) {
        let Some(delayed) = &self.delayed else { return };
        let Some((available, at)) = delayed.spaces.first.lock().take() else { return };
        let root = self.known_root().map(|root| self.glance(&root));
        let fsid = root.and_then(|root| self.with(&root, |state| state.attributes().map(|known| known.fsid)));
        if let Some(fsid) = fsid {
            delayed.spaces.with(fsid, |space| space.saw(available, at));
        }
    }

    fn keep(&self, object: &Arc<Object>) -> (Verdict, Option<Fsid>) {
        let Some(delayed) = &self.delayed else { return (Verdict::Keep, None) };
        let look = |state: &ObjectState| {
            let known = state.attributes()?;
            let limit = state.held.lease.as_ref().map_or(Lease::NO_SPACE_LIMIT, |lease| lease.space_limit);
            Some((known.fsid, known.size, Some(limit).filter(|limit| *limit != Lease::NO_SPACE_LIMIT)))
        };
        let decided = self.writes_of(object, look, |writes, known| {
            let Some((fsid, size, limit)) = known else { return (Verdict::Send, None) };
            // A claim stays in its account, even if the origin moves the file to another file system.
            let fsid = writes.kept_on().unwrap_or(fsid);
            let keep = |space: &mut Space| writes.keep(space, fsid, size, limit, Instant::now());
            (delayed.spaces.with(fsid, keep).unwrap_or(Verdict::Send), Some(fsid))
        });
        decided.unwrap_or((Verdict::Keep, None))
    }

    /// Asks the origin for its space, unless it answered within the last second.
    async fn ask_space(&self, caller: &Caller, handle: &Handle, fsid: Fsid) {
        let Some(delayed) = &self.delayed else { return };
        let spaces = &delayed.spaces;
        let _turn = spaces.asking.lock().await;
        let begun = spaces.with(fsid, |space| space.may_ask(Instant::now()).then(|| space.begin_ask()));
        let Some(Some(asked)) = begun else { return };
        self.counters.other.bump();
        let told = self.below.fsstat(&messenger(caller), handle).await;
        // Some servers do not report their space: they send a total of 0.
        let available = told.ok().filter(|stat| stat.total_bytes > 0).map(|stat| stat.available_bytes);
        spaces.with(fsid, |space| space.end_ask(asked, available, Instant::now()));
        spaces.eased.notify_waiters();
    }

    /// A WRITE is about to be sent. If it might take the space that kept files need, sends those first, for
    /// at most `WAY_MAX`. The WRITE gives up its `slot` meanwhile.
    pub async fn begin_sending(
        &self,
        object: &Arc<Object>,
        caller: &Caller,
        bytes: u64,
        slot: &mut Option<OwnedSemaphorePermit>,
    ) -> Option<Sending<'_>> {
        let delayed = self.delayed.as_ref()?;
        let spaces = &delayed.spaces;
        let (fsid, kept) = self.with(object, |state| {
            let kept = state.delayed.writes.as_ref().is_some_and(|writes| writes.kept_on().is_some());
            Some((state.attributes()?.fsid, kept))
        })?;
        if !kept && spaces.with(fsid, |space| space.is_in_the_way(bytes)) == Some(true) {
            // The kept files need slots too.
            *slot = None;
            let way = self.send_kept_first(fsid, bytes, (caller, &object.handle));
            let _ = tokio::time::timeout(WAY_MAX, way).await;
            *slot = delayed.slots.clone().acquire_owned().await.ok();
        }
        spaces.with(fsid, |space| space.sending(bytes))?;
        self.drain_if_short(fsid);
        Some(Sending { spaces, fsid, bytes })
    }

    /// Sends kept files until a WRITE of so many bytes no longer takes the space they need.
    async fn send_kept_first(&self, fsid: Fsid, bytes: u64, ask: (&Caller, &Handle)) {
        let Some(delayed) = &self.delayed else { return };
        loop {
            let eased = delayed.spaces.eased.notified();
            tokio::pin!(eased);
            eased.as_mut().enable();
            if delayed.spaces.with(fsid, |space| space.is_in_the_way(bytes)) != Some(true) {
                return;
            }
            self.send_kept(fsid, Some(ask));
            eased.await;
        }
    }

    /// Sends the kept files of a file system if its space is short.
    pub fn drain_if_short(&self, fsid: Fsid) {
        let Some(delayed) = &self.delayed else { return };
        if delayed.spaces.with(fsid, |space| space.must_drain()) == Some(true) {
            self.send_kept(fsid, None);
        }
    }

    /// Starts a task that sends the kept files of a file system. With `ask`, the task first asks the origin
    /// for its space: there may be more than the account says.
    fn send_kept(&self, fsid: Fsid, ask: Option<(&Caller, &Handle)>) {
        let (Some(core), Some(delayed)) = (self.share(), &self.delayed) else { return };
        if delayed.spaces.with(fsid, |space| std::mem::replace(&mut space.draining, true)) != Some(false) {
            return;
        }
        let ask = ask.map(|(caller, handle)| (caller.clone(), *handle));
        tokio::spawn(async move {
            if let Some((caller, handle)) = ask {
                core.ask_space(&caller, &handle, fsid).await;
            }
            core.flush_kept(fsid).await;
            if let Some(delayed) = &core.delayed {
                delayed.spaces.with(fsid, |space| space.draining = false);
                delayed.spaces.eased.notify_waiters();
            }
        });
    }

    async fn flush_kept(self: &Arc<Core>, fsid: Fsid) {
        let kept = |object: &Arc<Object>| {
            let on =
                self.with(object, |state| state.delayed.writes.as_ref().and_then(|writes| writes.kept_on()));
            on == Some(fsid)
        };
        let mut flushes = tokio::task::JoinSet::new();
        for (_, object) in self.delayed_files().into_iter().filter(|(_, object)| kept(object)) {
            if flushes.len() >= DRAINS_MAX {
                flushes.join_next().await;
            }
            let core = self.clone();
            flushes.spawn(async move { core.flush_writes(&object, Level::Stable).await });
        }
        while flushes.join_next().await.is_some() {}
    }

    /// The origin has taken bytes of a file.
    pub fn note_taken(&self, object: &Arc<Object>) {
        let Some(delayed) = &self.delayed else { return };
        if let Some(fsid) = self.with(object, |state| state.attributes().map(|known| known.fsid)) {
            delayed.spaces.with(fsid, |space| space.taken(Instant::now()));
        }
    }

    /// The origin has refused delayed bytes of a file.
    pub fn note_refusal(&self, object: &Arc<Object>, status: Status, bytes: u64) {
        self.tell_loss(object, status, bytes);
        self.note_full(object, status);
    }

    /// The origin has refused a WRITE or COMMIT. If the status may concern every file of the file system,
    /// closes send their bytes until that is over.
    pub fn note_full(&self, object: &Arc<Object>, status: Status) {
        let Some(delayed) = &self.delayed else { return };
        if !matches!(status, Status::NoSpc | Status::Dquot | Status::Rofs | Status::Io) {
            return;
        }
        let (fsid, promised) = self.with(object, |state| {
            let promised = state.delayed.writes.as_ref().is_some_and(|writes| writes.is_promised());
            (state.attributes().map(|known| known.fsid), promised)
        });
        let Some(fsid) = fsid else { return };
        let refuse = |space: &mut Space| space.refused(status, promised, Instant::now());
        if delayed.spaces.with(fsid, refuse) == Some(true) {
            tracing::warn!(
                "{}: {status}; every close sends what was written until the server takes it again",
                self.options.origin
            );
        }
        self.drain_if_short(fsid);
    }
}
