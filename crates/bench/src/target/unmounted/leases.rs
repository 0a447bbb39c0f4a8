//! Delegations: kept until the server wants them back.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use vfs::{Callback, Callbacks, Handle, LeaseId, OpenId, Recall};

use super::memory::Client;

/// How long a recall of something unknown waits between two looks at the grants under way.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Delegations that are on their way back at a time: as many calls as a session has slots.
const BACK_AT_ONCE: usize = 64;

/// Answers the server until the client is gone.
pub(super) async fn listen(client: Weak<Client>, mut callbacks: Callbacks) {
    while let Some(callback) = callbacks.recv().await {
        let Some(client) = client.upgrade() else { return };
        match callback {
            Callback::Recall(recall) => {
                // Beside the next ones: it may wait for a grant.
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
            // Not answered: the server recalls instead.
            Callback::Getattr(_) | Callback::NotifyLock { .. } => {}
        }
    }
}

impl Client {
    async fn recalled(&self, recall: Recall) {
        while !self.give_back(&recall.handle, Some(recall.id)).await {
            // The reply that grants it may be on its way; when none is, it has gone already.
            if self.opening.load(Ordering::SeqCst) == 0 || tokio::time::Instant::now() > recall.deadline {
                let _ = self.fs.returned(&self.caller, recall.id).await;
                return;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Gives back the delegation of a file, if it has one (that one, where one is named); false if not.
    pub(super) async fn give_back(&self, handle: &Handle, lease: Option<LeaseId>) -> bool {
        let Some(held) = self.memory.lock().let_go(handle, lease) else { return false };
        // What goes wrong here ends at the server, by the lease's time.
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
        self.memory.lock().opens.remove(&open);
        let _ = self.fs.close(&self.caller, open).await;
    }

    /// As an unmount does: one after the other, hundreds would take a minute at 75 ms.
    pub(super) async fn give_all_back(&self) {
        let all = self.memory.lock().all_held();
        let give_back = async |handle: Handle| {
            self.give_back(&handle, None).await;
        };
        stream::iter(all).for_each_concurrent(BACK_AT_ONCE, give_back).await;
    }
}
