//! Receives the callbacks of the exports' file systems, and passes each to the protocol of the client that
//! holds the lease: EVICTED of NQNFS, or a callback of version 4. Notices about locks go to NLM or version 4.
//!
//! NQNFS has a table of its leases. The delegations of version 4 are in the state that all versions share.

use std::sync::{Arc, Weak};

use vfs::{Callback, Callbacks, LeaseId, Recall};

use crate::exports::{Export, ExportId};
use crate::nfs4::callbacks as v4;
use crate::nlm::Nlm;
use crate::nqnfs::leases::Out;
use crate::nqnfs::{NqnfsFront, evict};

/// Starts a task for the callbacks of each export.
pub(crate) fn start(front: &Arc<NqnfsFront>, nlm: &Arc<Nlm>) {
    for export in front.shared.exports.iter() {
        start_for(front, nlm, &export);
    }
}

/// Starts the task for the callbacks of this export, unless it runs.
pub(crate) fn start_for(front: &Arc<NqnfsFront>, nlm: &Arc<Nlm>, export: &Export) {
    if let Some(callbacks) = export.fs().callbacks() {
        tokio::spawn(serve((Arc::downgrade(front), Arc::downgrade(nlm)), export.id, callbacks));
    }
}

/// Each callback has its own task, so that a client that does not answer delays no other client. Their
/// causes bound the number of tasks: one recall for each granted lease, one CB_GETATTR for each waiting
/// request, one notice for each awaited lock. They wait for the slots of their own client.
async fn serve((front, nlm): (Weak<NqnfsFront>, Weak<Nlm>), export: ExportId, mut callbacks: Callbacks) {
    while let Some(callback) = callbacks.recv().await {
        let Some(front) = front.upgrade() else { return };
        if let Callback::Revoked { id, .. } = callback {
            revoked(&front, export, id);
            continue;
        }
        if let (Callback::NotifyLock { holder, owner, handle }, Some(nlm)) = (&callback, nlm.upgrade())
            && nlm.notify_lock(export, *holder, owner, *handle)
        {
            continue;
        }
        tokio::spawn(async move {
            match callback {
                Callback::Recall(of) => recall(&front, export, of).await,
                Callback::Getattr(query) => v4::getattr(&front.shared, export, query).await,
                Callback::RecallAny { holder, keep } => v4::recall_any(&front.shared, holder, keep).await,
                Callback::NotifyLock { holder, owner, handle } => {
                    v4::notify_lock(&front.shared, export, holder, owner, handle).await;
                }
                Callback::Revoked { .. } => {}
            }
        });
    }
}

/// A lease was revoked. The client should learn it as soon as possible.
fn revoked(front: &Arc<NqnfsFront>, export: ExportId, lease: LeaseId) {
    let mut tables = front.shared.state.tables();
    let out = front.nqnfs.leases.lock().revoked(export, lease);
    match out {
        Some(out) => evict::lost(front, export, out),
        None => v4::revoked(&mut tables, export, lease),
    }
}

/// The lease that a recall names, by the protocol of its client.
enum Recalled {
    Nqnfs(Out),
    Delegation(v4::Delegated),
}

/// Asks the client to return a lease.
async fn recall(front: &Arc<NqnfsFront>, export: ExportId, of: Recall) {
    match find(front, export, of) {
        Some(Recalled::Nqnfs(out)) => evict::evict(front, export, out, of).await,
        Some(Recalled::Delegation(delegation)) => v4::recall(&front.shared, export, delegation, of).await,
        None => {}
    }
}

/// Finds the lease. If there is none yet, the recall is kept for the moment when it is entered. This takes
/// one critical section, so that no lease is entered between the two lookups and misses its recall.
fn find(front: &NqnfsFront, export: ExportId, of: Recall) -> Option<Recalled> {
    let mut tables = front.shared.state.tables();
    let out = front.nqnfs.leases.lock().get(export, of.id);
    match out {
        Some(out) => Some(Recalled::Nqnfs(out)),
        None => v4::begin_recall(&mut tables, export, of).map(Recalled::Delegation),
    }
}
