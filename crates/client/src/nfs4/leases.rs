//! The end of delegations: returned, recalled or revoked.

use protocol::nfs4::{DelegreturnArgs, Op, Operation, op};
use tokio::time::Instant;
use vfs::{Callback, Caller, LeaseId, Recall, Result};

use super::attributes::put;
use super::execute::Plan;
use super::state::{Delegation, State, Used};
use super::{Nfs4, Nfs4Client, convert};

impl Nfs4 {
    pub(super) async fn return_lease(&self, caller: &Caller, id: LeaseId) -> Result<()> {
        let (inner, asker) = (self.inner.clone(), caller.clone());
        let work = async move { inner.give_back(&asker, id).await };
        self.to_the_end(caller, work, |_, ()| {}).await
    }
}

impl Nfs4Client {
    /// Returns a delegation with DELEGRETURN. Its id is invalid from the start of the call. If the origin
    /// does not have the delegation, it counts as returned.
    pub(super) async fn give_back(&self, caller: &Caller, id: LeaseId) -> Result<()> {
        let held = self.state.lock().give_up(id);
        match held {
            Some(held) => self.delegreturn(caller, id, &held).await,
            None => Ok(()),
        }
    }

    pub(super) async fn delegreturn(&self, caller: &Caller, id: LeaseId, held: &Delegation) -> Result<()> {
        // Send the seqid: a later grant with the same state id is another lease.
        let args = DelegreturnArgs { deleg_stateid: held.stateid };
        let build =
            |_: &State| Ok((vec![put(&held.handle.handle())?, op::Delegreturn::with(args)], Used::Nothing));
        let ran = self.run(caller, Plan::stateful(Operation::Delegreturn).urgent(), build).await?;
        match ran.results.status() {
            Err(status) if !convert::lost_state(status) => Err(convert::status(status).into()),
            _ => {
                self.state.lock().returned(id);
                Ok(())
            }
        }
    }

    /// Returns a delegation in the background.
    pub(super) fn return_soon(&self, id: LeaseId) {
        let Some(inner) = self.myself() else { return };
        tokio::spawn(async move {
            if let Err(error) = inner.give_back(&Caller::machine(), id).await {
                tracing::debug!(%error, "a delegation could not be returned");
            }
        });
    }

    /// Handles a recall by the origin: asks the layer above for the delegation, once. If no layer listens,
    /// the delegation goes back at once.
    pub(super) fn recall(&self, id: LeaseId) {
        let deadline = Instant::now() + self.export().lease_time;
        let recall = {
            let mut state = self.state.lock();
            let Some(held) = state.lease_mut(id) else { return };
            if std::mem::replace(&mut held.recalled, true) {
                return;
            }
            Recall { id, handle: held.handle.handle(), keep: None, deadline }
        };
        if self.back.listening() {
            self.back.tell(Callback::Recall(recall));
        } else {
            self.return_soon(id);
        }
    }

    /// Ends a delegation. If `at_origin`, the origin may still have it, and a task returns it.
    pub(super) fn revoked(&self, id: LeaseId, at_origin: bool) {
        let Some(held) = self.state.lock().give_up(id) else { return };
        self.back.tell(Callback::Revoked { id, handle: held.handle.handle() });
        match self.myself() {
            Some(inner) if at_origin => drop(tokio::spawn(async move {
                let _ = inner.delegreturn(&Caller::machine(), id, &held).await;
            })),
            _ => self.state.lock().returned(id),
        }
    }
}
