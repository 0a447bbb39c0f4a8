//! Minor version 0: the turns of owners, whose requests run one after the other, and the answers kept for
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::nfs4::ResOp;
use tokio::sync::OwnedMutexGuard;

use super::clients::Principal;
use super::current::Current;
use super::owners::OwnerName;

/// The last answer to an owner.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) result: ResOp,
    /// The current filehandle after it.
    pub(crate) current: Option<Current>,
    /// The user that received it.
    pub(crate) to: Principal,
}

/// The owners that have a request running.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<OwnerName, Arc<tokio::sync::Mutex<()>>>>);

/// An owner's turn, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'t> {
    turns: &'t Turns,
    name: OwnerName,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until no other request of the owner is running.
    pub(crate) async fn take(&self, name: &OwnerName) -> Taken<'_> {
        let turn = self.0.lock().entry(name.clone()).or_default().clone();
        Taken { turns: self, name: name.clone(), guard: Some(turn.lock_owned().await) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut turns = self.turns.0.lock();
        if turns.get(&self.name).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.name);
        }
    }
}
