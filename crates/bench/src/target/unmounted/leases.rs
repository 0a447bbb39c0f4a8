//! Delegations: kept until the server recalls them.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use vfs::{Callback, Callbacks, Handle, LeaseId, OpenId, Recall};

use super::memory::Client;

/// How often a recall of an unknown lease checks the OPENs in flight.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Delegations returned at the same time: the number of slots of a session.
const BACK_AT_ONCE: usize = 64;

/// Handles callbacks until the client is gone.
pub(super) async fn listen(client: Weak<Client>, mut callbacks: Callbacks) {
    while let Some(callback) = callbacks.recv().await {
        let Some(client) = client.upgrade() else { return };
        match callback {
            Callback::Recall(recall) => {
                // Run concurrently with the next callbacks: it may have to wait for a grant.
                tokio::spawn(async move { client.recalled(recall).await });
            }
            Callback::Revoked { id, handle } => {
                client.memory.lock().let_go(&handle, Some(id));
            }
            Callback::RecallAny { keep, .. } => {
                let all = client.memory.lock().all_held();
                for handle in all.into_iter().skip(keep as usize) {
                    client.give_back(&handle, None).await;
                }
            }
            // No reply: the server recalls the delegation instead.
            Callback::Getattr(_) | Callback::NotifyLock { .. } => {}
        }
    }
}

impl Client {
    async fn recalled(&self, recall: Recall) {
        while !self.give_back(&recall.handle, Some(recall.id)).await {
            // The reply that grants the lease may still be in flight. If no OPEN is in flight, the lease was
            // already returned.
            if self.opening.load(Ordering::SeqCst) == 0 || tokio::time::Instant::now() > recall.deadline {
                let _ = self.fs.returned(&self.caller, recall.id).await;
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns the delegation of a file. Returns false if there is none, or if it is not the one that `lease`
    /// names.
    pub(super) async fn give_back(&self, handle: &Handle, lease: Option<LeaseId>) -> bool {
        let Some(held) = self.memory.lock().let_go(handle, lease) else { return false };
        // If the return fails, the lease expires at the server.
        let _ = self.fs.returned(&self.caller, held.lease).await;
        let unused = {
            let mut memory = self.memory.lock();
            let open = memory.opens.entry(held.open).or_default();
            open.kept = false;
            open.users == 0
        };
        if unused {
            self.end_open(held.open).await;
        }
        true
    }

    pub(super) async fn end_open(&self, open: OpenId) {
        {
            let mut memory = self.memory.lock();
            // The server may have given the same open to another user meanwhile.
            if memory.opens.get(&open).is_some_and(|state| state.users > 0 || state.kept) {
                return;
            }
            memory.opens.remove(&open);
        }
        let _ = self.fs.close(&self.caller, open).await;
    }

    /// Returns all delegations at the same time, as an unmount does. Hundreds in sequence would take a minute
    /// at 75 ms.
    pub(super) async fn give_all_back(&self) {
        let all = self.memory.lock().all_held();
        let give_back = async |handle: Handle| {
            self.give_back(&handle, None).await;
        };
        stream::iter(all).for_each_concurrent(BACK_AT_ONCE, give_back).await;
    }
}
