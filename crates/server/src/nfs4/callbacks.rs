//! Passes the callbacks of file systems on to version 4 clients.

use std::sync::Arc;
use std::time::Duration;

use protocol::nfs4::callback::{
    CbArgOp, CbGetattrArgs, CbNotifyLockArgs, CbRecallAnyArgs, CbRecallArgs, RCA4_TYPE_MASK_DIR_DLG,
    RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG, op,
};
use protocol::nfs4::{Attr, Bitmap, Clientid, Fattr, Nfstime, Stateid, Status};
use tokio::time::{Instant, sleep};
use vfs::{DelayedAttributes, Handle, HolderId, LeaseId, Owner, Query, Recall, Times, Timestamp};

use crate::callback::Unreachable;
use crate::exports::ExportId;
use crate::shared::Shared;
use crate::state::clients::{Generation, Way};
use crate::state::names::lock_owner;
use crate::state::stateids::{Kind, Standing, StateKey};
use crate::state::{State, Tables, Word};

/// How long a client may need to see the answer to its OPEN.
const OPEN_ON_ITS_WAY: Duration = Duration::from_millis(100);
/// Pause between two attempts to reach a client.
const AGAIN: Duration = Duration::from_millis(500);
/// Deadline of CB_RECALL_ANY and CB_NOTIFY_LOCK, which are hints.
const HINT_TIMEOUT: Duration = Duration::from_secs(10);

/// A delegation that a callback is about.
pub(crate) struct Delegated {
    client: Clientid,
    holder: HolderId,
    key: StateKey,
    stateid: Stateid,
}

fn delegated(tables: &Tables, export: ExportId, lease: LeaseId) -> Option<Delegated> {
    let held = tables.stateids.delegation(export, lease)?;
    let stateid = tables.stateids.wire(held);
    Some(Delegated { client: held.client, holder: held.holder, key: held.key, stateid })
}

/// A delegation was revoked, and its client must learn it. In minor version 0 its state id is invalid from
/// now on.
pub(crate) fn revoked(tables: &mut Tables, export: ExportId, lease: LeaseId) {
    let Some(of) = delegated(tables, export, lease) else {
        return tables.early.keep(export, lease, Word::Revoked);
    };
    tracing::warn!(client = format_args!("{:016x}", of.client), "delegation revoked");
    let client = tables.clients.confirmed(of.client);
    if client.is_some_and(|client| client.name.generation == Generation::Sessions) {
        tables.stateids.set_standing(of.key, Standing::Revoked);
    } else {
        tables.stateids.remove(of.key);
    }
}

/// A recall that came before its OPEN returned: lets the client get the answer to the OPEN first.
pub(crate) fn recall_soon(shared: &Arc<Shared>, export: ExportId, of: Recall) {
    let shared = shared.clone();
    tokio::spawn(async move {
        sleep(OPEN_ON_ITS_WAY).await;
        let delegation = begin_recall(&mut shared.state.tables(), export, of);
        if let Some(delegation) = delegation {
            recall(&shared, export, delegation, of).await;
        }
    });
}

/// Finds the delegation that is recalled. If there is none yet, the recall is kept for the moment when it is
/// entered.
pub(crate) fn begin_recall(tables: &mut Tables, export: ExportId, of: Recall) -> Option<Delegated> {
    let Some(delegation) = delegated(tables, export, of.id) else {
        tables.early.keep(export, of.id, Word::Recall(of));
        return None;
    };
    tables.stateids.set_standing(delegation.key, Standing::Recalled);
    Some(delegation)
}

/// CB_RECALL, repeated until the client has accepted it, the delegation is back or the deadline has passed.
pub(crate) async fn recall(shared: &Arc<Shared>, export: ExportId, delegation: Delegated, of: Recall) {
    if shared.expire_if_courtesy(delegation.holder).await {
        return;
    }
    let Ok(fh) = shared.handles.v4(export, &of.handle) else { return };
    let args = CbRecallArgs { stateid: delegation.stateid, truncate: false, fh };
    let mut denials = 0;
    while is_held(&shared.state, delegation.key) && Instant::now() < of.deadline {
        let answer = shared.callbacks.call(delegation.client, CbArgOp::Recall(args), of.deadline).await;
        match answer.map(|mut results| results.take::<op::Recall>().map_err(|error| error.status())) {
            Ok(Ok(())) => return,
            Ok(Err(Some(Status::BadHandle | Status::BadStateid))) => {
                // The client has not seen the answer to its OPEN. That answer may be queued on another
                // connection, or be requested again. The client will accept the recall once it has the
                // answer. A client that does not have the delegation for another reason loses it at the
                // deadline.
                denials += 1;
                sleep((OPEN_ON_ITS_WAY * denials).min(AGAIN)).await;
            }
            Ok(Err(_)) | Err(Unreachable) => sleep(AGAIN).await,
        }
    }
}

fn is_held(state: &State, key: StateKey) -> bool {
    let good = |standing| standing != Standing::Revoked;
    let tables = state.tables();
    tables
        .stateids
        .get(key)
        .is_some_and(|held| matches!(held.kind, Kind::Delegation { standing, .. } if good(standing)))
}

/// CB_GETATTR. A client need only report the size and the change attribute. The query may also request the
/// times, because a client may have changed them without telling the server. The delegated times of RFC
/// 9754 cannot be set back.
pub(crate) async fn getattr(shared: &Shared, export: ExportId, query: Query) {
    let delegation = delegated(&shared.state.tables(), export, query.id);
    let (Some(delegation), Ok(fh)) = (delegation, shared.handles.v4(export, &query.handle)) else { return };
    let mut attr_request = Bitmap::of(&[Attr::Change, Attr::Size]);
    if query.times {
        attr_request = attr_request | Bitmap::of(&[Attr::TimeAccess, Attr::TimeMetadata, Attr::TimeModify]);
    }
    let args = CbGetattrArgs { fh, attr_request };
    let Ok(mut results) =
        shared.callbacks.call(delegation.client, CbArgOp::Getattr(args), query.deadline).await
    else {
        return;
    };
    if let Ok(answer) = results.take::<op::Getattr>()
        && let (Some(change), Some(size)) = (answer.obj_attributes.change, answer.obj_attributes.size)
    {
        let held = DelayedAttributes {
            modified: change != query.change,
            size,
            times: times(&answer.obj_attributes),
        };
        // The requester may have stopped waiting.
        let _ = query.answer.send(held);
    }
}

/// The times that a client reported, if it reported all of them and all are valid.
fn times(told: &Fattr) -> Option<Times> {
    let time = |time: Option<Nfstime>| {
        let Nfstime { seconds, nseconds } = time?;
        (nseconds <= 999_999_999).then(|| Timestamp::new(seconds, nseconds))
    };
    Some(Times {
        atime: time(told.time_access)?,
        mtime: time(told.time_modify)?,
        ctime: time(told.time_metadata)?,
    })
}

/// CB_RECALL_ANY, to one client with sessions or to all of them.
pub(crate) async fn recall_any(shared: &Shared, holder: Option<HolderId>, keep: u32) {
    let clients: Vec<Clientid> = {
        let tables = shared.state.tables();
        let with_sessions = tables.clients.iter().filter(|client| matches!(client.way, Way::Sessions { .. }));
        let asked = with_sessions.filter(|client| holder.is_none_or(|holder| holder == client.holder));
        asked.map(|client| client.id).collect()
    };
    let kinds = [RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG, RCA4_TYPE_MASK_DIR_DLG];
    let type_mask = kinds.into_iter().fold(Bitmap::EMPTY, Bitmap::with_bit);
    let args = CbRecallAnyArgs { objects_to_keep: keep, type_mask };
    for client in clients {
        // A hint: a client that ignores it gets recalls.
        let _ = shared.callbacks.call(client, CbArgOp::RecallAny(args), Instant::now() + HINT_TIMEOUT).await;
    }
}

/// CB_NOTIFY_LOCK.
pub(crate) async fn notify_lock(
    shared: &Shared,
    export: ExportId,
    holder: HolderId,
    owner: Owner,
    handle: Handle,
) {
    let client = {
        let tables = shared.state.tables();
        let client = tables.clients.holder(holder);
        client.filter(|client| client.name.generation == Generation::Sessions).map(|client| client.id)
    };
    let (Some(client), Ok(fh)) = (client, shared.handles.v4(export, &handle)) else { return };
    let args = CbNotifyLockArgs { fh, lock_owner: lock_owner(&shared.state, &owner) };
    // A hint: a client that misses it retries by itself.
    let _ = shared.callbacks.call(client, CbArgOp::NotifyLock(args), Instant::now() + HINT_TIMEOUT).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_all_together_or_not_at_all() {
        let time = |seconds, nseconds| Some(Nfstime { seconds, nseconds });
        let told = Fattr {
            time_access: time(-1, 0),
            time_modify: time(i64::MIN, 999_999_999),
            time_metadata: time(i64::MAX, 1),
            ..Fattr::default()
        };
        let all = Times {
            atime: Timestamp::new(-1, 0),
            mtime: Timestamp::new(i64::MIN, 999_999_999),
            ctime: Timestamp::new(i64::MAX, 1),
        };
        assert_eq!(times(&told), Some(all));
        for missing in [
            Fattr { time_access: None, ..told.clone() },
            Fattr { time_modify: None, ..told.clone() },
            Fattr { time_metadata: None, ..told.clone() },
            Fattr { time_modify: time(0, 1_000_000_000), ..told.clone() },
        ] {
            assert_eq!(times(&missing), None);
        }
    }
}
