//! Byte-range locks: first here, then at the layer below, if it has locks.

use std::sync::Arc;

use vfs::{Caller, Handle, Lock, LockKind, LockRequest, Locked, OpenId, Owner, Result, Share, Status};

use super::{Shell, State};
use crate::leases::Use;
use crate::locks::{Before, Outcome};

/// A lock that is entered here, but not yet at the layer below.
struct Entered {
    handle: Handle,
    before: Before,
    below: Option<OpenId>,
}

impl Shell {
    pub(crate) async fn lock(
        self: &Arc<Shell>,
        caller: &Caller,
        open: OpenId,
        request: &LockRequest,
    ) -> Result<Locked> {
        let entered = match self.with(|state, now| state.enter(now, caller, open, request))? {
            Ok(entered) => entered,
            Err(denied) => return Ok(Locked::Denied(denied)),
        };
        let mut tentative = Tentative { shell: self, entered: Some(entered), lock: &request.lock };
        let below = tentative.entered.as_ref().and_then(|entered| entered.below);
        let result = match below {
            Some(below) => self.below.lock(caller, below, request).await,
            None => Ok(Locked::Granted),
        };
        match result {
            Ok(Locked::Denied(other)) => return Ok(Locked::Denied(other)),
            Err(error) if error.status != Status::NotSupp => return Err(error),
            Ok(Locked::Granted) | Err(_) => {}
        }
        if let Some(entered) = tentative.entered.take() {
            self.with(|state, now| {
                let notices = state.locks.tell(now, &entered.handle);
                self.notify(state, notices);
            });
        }
        Ok(Locked::Granted)
    }

    pub(crate) async fn unlock(
        self: &Arc<Shell>,
        caller: &Caller,
        open: OpenId,
        owner: &Owner,
        range: (u64, u64),
    ) -> Result<()> {
        let (handle, below) = {
            let state = self.state.lock();
            let (handle, _) = state.shares.of(open).ok_or(Status::BadStateId)?;
            (*handle, state.all_below_of(open))
        };
        let mut result = Ok(());
        for id in below {
            match self.below.unlock(caller, id, owner, range).await {
                Err(error) if !matches!(error.status, Status::NotSupp | Status::BadStateId) => {
                    result = Err(error);
                }
                _ => {}
            }
        }
        result?;
        self.with(|state, now| {
            let notices = state.locks.unlock(now, &handle, owner, range)?;
            self.notify(state, notices);
            Ok(())
        })
    }

    /// The first conflicting lock, by offset: one held here, or one that only the layer below knows.
    pub(crate) async fn test(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        lock: &Lock,
    ) -> Result<Option<Lock>> {
        let test = |state: &mut State, _| state.locks.test(handle, lock);
        let (ours, _) = self.when_clear(caller, handle, Use::Read, test).await?;
        let ours = ours?;
        if !lock.may_meet_earlier(ours.as_ref()) {
            return Ok(ours);
        }
        match self.below.test(caller, handle, lock).await {
            Ok(theirs) => Ok(Lock::first(ours, theirs)),
            // A conflicting lock is an answer, whatever the layer below reports.
            Err(_) if ours.is_some() => Ok(ours),
            Err(error) if error.status == Status::NotSupp => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        let state = self.state.lock();
        state.shares.of(open).is_some_and(|(handle, _)| state.locks.holds(handle, owner))
    }
}

impl State {
    /// Enters a lock, or returns the conflicting one.
    fn enter(
        &mut self,
        now: tokio::time::Instant,
        caller: &Caller,
        open: OpenId,
        request: &LockRequest,
    ) -> Result<Result<Entered, Lock>, Status> {
        let (handle, opening) = self.shares.of(open).ok_or(Status::BadStateId)?;
        let share = match request.lock.kind {
            LockKind::Shared => Share::READ,
            LockKind::Exclusive => Share::WRITE,
        };
        if !opening.shares.access.contains(share) {
            return Err(Status::OpenMode);
        }
        let handle = *handle;
        match self.locks.lock(&handle, open, &request.lock)? {
            Outcome::Granted(before) => Ok(Ok(Entered { handle, before, below: self.below_of(open, share) })),
            Outcome::Denied(other) => {
                if let (true, Some(holder)) = (request.wait, caller.holder) {
                    self.locks.wait(now, &handle, holder, &request.lock);
                }
                Ok(Err(other))
            }
        }
    }
}

/// A lock that is undone when this is dropped, unless it was confirmed.
struct Tentative<'a> {
    shell: &'a Arc<Shell>,
    entered: Option<Entered>,
    lock: &'a Lock,
}

impl Drop for Tentative<'_> {
    fn drop(&mut self) {
        if let Some(Entered { handle, before, .. }) = self.entered.take() {
            self.shell.with(|state, now| {
                let notices = state.locks.undo(now, &handle, self.lock, &before);
                self.shell.notify(state, notices);
            });
        }
    }
}
