//! Admission: a request waits while conflicting leases are recalled.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use vfs::{Caller, Handle, HolderId, Result, Share, StateidBasis, Status};

use super::{Shell, State};
use crate::leases::Use;

use std::sync::atomic::Ordering;

/// A waiting request: meanwhile no lease is granted on its file.
struct Claim {
    shell: Arc<Shell>,
    handle: Handle,
    gone: Arc<Notify>,
}

impl Claim {
    fn new(shell: &Arc<Shell>, handle: &Handle) -> Claim {
        let gone = shell.with(|state, _| {
            state.leases.claim(handle);
            state.waiting.entry(*handle).or_default().clone()
        });
        Claim { shell: shell.clone(), handle: *handle, gone }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.shell.with(|state, now| {
            state.leases.unclaim(now, &self.handle);
            // One reference is this one, the other is in the table.
            if Arc::strong_count(&self.gone) <= 2 {
                state.waiting.remove(&self.handle);
            }
        });
    }
}

impl Shell {
    /// Runs `enter` at the moment when nothing that others hold conflicts with this use of a file, after
    /// recalling conflicting leases. Returns its result, and whether the request had to wait.
    ///
    /// # Errors
    /// `Delay` if that moment does not come before the requester's patience ends. The recall continues.
    pub(super) async fn when_clear<T>(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        usage: Use,
        enter: impl FnOnce(&mut State, Instant) -> T,
    ) -> Result<(T, bool)> {
        self.recovered(caller, usage)?;
        self.when_others_allow(caller, handle, usage, enter).await
    }

    /// The same for a requester that had this use before a restart and reclaims it.
    pub(super) async fn when_others_allow<T>(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        usage: Use,
        enter: impl FnOnce(&mut State, Instant) -> T,
    ) -> Result<(T, bool)> {
        let mut enter = Some(enter);
        let mut attempt = || {
            self.with(|state, now| {
                let clear = state.leases.clear(now, handle, caller.holder, usage);
                if clear { enter.take().map(|enter| enter(state, now)) } else { None }
            })
        };
        if let Some(done) = attempt() {
            return Ok((done, false));
        }
        let claim = Claim::new(self, handle);
        let limit = self.patience_of(caller);
        loop {
            let gone = claim.gone.notified();
            tokio::pin!(gone);
            gone.as_mut().enable();
            if let Some(done) = attempt() {
                return Ok((done, true));
            }
            if timeout_at(limit, gone).await.is_err() {
                return Err(Status::Delay.into());
            }
        }
    }

    /// Admission after a restart. A holder may still trust a lease with a term that the incarnation before
    /// has granted, and writes under it may be in flight. Until these leases have ended, only writes of
    /// their holders are admitted (Macklem 1994, section 4.1). A reclaimed open is restored at once, but
    /// operations under it wait.
    ///
    /// # Errors
    /// `Delay`.
    pub(super) fn recovered(&self, caller: &Caller, usage: Use) -> Result<()> {
        let now = Instant::now();
        if !self.options.recovery.is_on(now) {
            return Ok(());
        }
        if usage == Use::Change && caller.holder.is_some_and(HolderId::is_termed) {
            self.options.recovery.wrote(now);
            return Ok(());
        }
        Err(Status::Delay.into())
    }

    /// The end of this requester's patience.
    pub(super) fn patience_of(&self, caller: &Caller) -> Instant {
        let patience = Instant::now() + self.options.patience;
        caller.deadline.map_or(patience, |deadline| deadline.min(patience))
    }

    /// Admits a READ or another access to data. Returns the stateid basis for the layer below.
    ///
    /// # Errors
    /// `BadStateId`, `ShareDenied`, `Delay`.
    pub(crate) async fn admit_read(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
    ) -> Result<StateidBasis> {
        self.recovered(caller, Use::Read)?;
        let denied = self.gauges.denying_opens.load(Ordering::Acquire) > 0;
        let written = self.gauges.write_leases.load(Ordering::Acquire) > 0;
        if by == StateidBasis::Anonymous && !denied && !written {
            return Ok(by);
        }
        if !written {
            return self.state.lock().stateid_basis(caller, handle, by, Share::READ).map_err(Into::into);
        }
        let (stateid_basis, _) = self
            .when_clear(caller, handle, Use::Read, |state, _| {
                state.stateid_basis(caller, handle, by, Share::READ)
            })
            .await?;
        stateid_basis.map_err(Into::into)
    }
}

impl State {
    /// May a READ or WRITE with this stateid basis proceed? Returns the basis for the layer below.
    ///
    /// A holder comes without an open also when it comes under its lease. Then denials of its own opens do
    /// not count. Without a lease it comes with a special stateid, and is anonymous (RFC 8881, section
    /// 9.1.4.3).
    pub(super) fn stateid_basis(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        share: Share,
    ) -> Result<StateidBasis, Status> {
        match by {
            StateidBasis::Anonymous => {
                let under_lease = caller.holder.filter(|holder| self.leases.has(handle, *holder));
                self.shares.admit(handle, share, under_lease).map(|()| by)
            }
            StateidBasis::Open(id) => {
                self.shares.admit_open(handle, id, share)?;
                Ok(self.below_of(id, share).map_or(StateidBasis::Anonymous, StateidBasis::Open))
            }
        }
    }
}
