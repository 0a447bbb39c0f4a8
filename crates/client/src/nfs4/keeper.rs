//! Upkeep tasks. They renew the lease when nothing else does, and notice its end. They keep the backchannel
//! on a live connection, probe slots in doubt, and act on the flags of SEQUENCE.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::nfs4::{
    Operation, SEQ4_STATUS_ADMIN_STATE_REVOKED, SEQ4_STATUS_BACKCHANNEL_FAULT, SEQ4_STATUS_CB_PATH_DOWN,
    SEQ4_STATUS_CB_PATH_DOWN_SESSION, SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED,
    SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED, SEQ4_STATUS_LEASE_MOVED, SEQ4_STATUS_RECALLABLE_STATE_REVOKED,
    SEQ4_STATUS_RESTART_RECLAIM_NEEDED, Status as Wire,
};
use tokio::task::JoinHandle;
use tokio::time::{sleep, sleep_until};
use vfs::{LeaseId, Principal};

use super::establish::NotMade;
use super::session::Session;
use super::{Nfs4Client, Phase};

/// Least time between two attempts to act on the same flag.
const AGAIN: Duration = Duration::from_secs(1);

/// Callbacks do not get through.
const PATH_DOWN: u32 =
    SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION | SEQ4_STATUS_BACKCHANNEL_FAULT;
/// Some state was revoked.
const REVOKED: u32 = SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED
    | SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED
    | SEQ4_STATUS_ADMIN_STATE_REVOKED
    | SEQ4_STATUS_RECALLABLE_STATE_REVOKED;

/// Starts the tasks. They run until they are aborted.
pub(super) fn start(inner: &Arc<Nfs4Client>) -> Vec<JoinHandle<()>> {
    vec![
        tokio::spawn(renew(inner.clone())),
        tokio::spawn(expire(inner.clone())),
        tokio::spawn(tend(inner.clone())),
        tokio::spawn(clear_up(inner.clone())),
    ]
}

/// Waits for a session. `None` if there will be none any more.
async fn ready(inner: &Nfs4Client) -> Option<Arc<Session>> {
    let mut phase = inner.phase.subscribe();
    match phase.wait_for(|phase| !matches!(phase, Phase::Recovering)).await.as_deref() {
        Ok(Phase::Ready(session)) => Some(session.clone()),
        _ => None,
    }
}

/// Sends one SEQUENCE for every third of the lease time without another request.
async fn renew(inner: Arc<Nfs4Client>) {
    let period = inner.export().lease_time / 3;
    loop {
        let due = *inner.renewed.lock() + period;
        sleep_until(due).await;
        if *inner.renewed.lock() + period > due {
            continue;
        }
        let Some(session) = ready(&inner).await else { return };
        let renewed = inner.within(&session, &Principal::Machine, Operation::Sequence, Vec::new()).await;
        if let Err(NotMade::Status(Wire::BadSession)) = renewed {
            inner.session_lost(&session);
        } else if renewed.is_err() {
            sleep(AGAIN).await;
        }
    }
}

/// Revokes all delegations when the lease ends, which runs from the last request that renewed it.
async fn expire(inner: Arc<Nfs4Client>) {
    let lease_time = inner.export().lease_time;
    loop {
        let end = *inner.renewed.lock() + lease_time;
        sleep_until(end).await;
        if *inner.renewed.lock() + lease_time > end {
            continue;
        }
        let leases: Vec<LeaseId> = inner.state.lock().leases().map(|(id, _)| id).collect();
        if !leases.is_empty() {
            tracing::warn!(
                "server {} has not renewed the lease in time; {} delegations are over",
                inner.server,
                leases.len()
            );
        }
        for id in leases {
            inner.revoked(id, true);
        }
        sleep(AGAIN).await;
    }
}

/// Acts on flags and lost connections.
async fn tend(inner: Arc<Nfs4Client>) {
    let mut link = inner.channel.links().first().watch();
    let mut moved = false;
    loop {
        let Some(session) = ready(&inner).await else { return };
        let flags = inner.flags.load(Ordering::Relaxed);
        let connected = *link.borrow_and_update();
        let bound = connected.up && inner.back.connection() == Some(connected.generation);
        if !bound || flags & PATH_DOWN != 0 {
            match inner.bind_connection(&session, 0).await {
                Err(NotMade::Status(Wire::BadSession | Wire::DeadSession)) => inner.session_lost(&session),
                Err(error) => tracing::debug!(?error, "the backchannel could not be bound"),
                Ok(()) => {}
            }
        }
        if flags & REVOKED != 0 {
            inner.sweep(&session).await;
        }
        if flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0 {
            inner.reclaim_wanted(&session);
        }
        if flags & SEQ4_STATUS_LEASE_MOVED != 0 && !moved {
            moved = true;
            tracing::warn!(
                "server {} has moved a file system elsewhere, which is not followed: mount it from there",
                inner.server
            );
        }
        // Pause, so that a flag that stays set does not cause a busy loop.
        sleep(AGAIN / 20).await;
        if inner.flags.load(Ordering::Relaxed) & (PATH_DOWN | REVOKED) != 0 {
            sleep(AGAIN).await;
        }
        tokio::select! {
            () = inner.upkeep.notified() => {}
            _ = link.changed() => {}
        }
    }
}

/// Probes the slots of requests that were given up.
async fn clear_up(inner: Arc<Nfs4Client>) {
    loop {
        let Some(session) = ready(&inner).await else { return };
        let mut phase = inner.phase.subscribe();
        let other = |phase: &Phase| !matches!(phase, Phase::Ready(now) if Arc::ptr_eq(now, &session));
        tokio::select! {
            () = inner.probe_slots(&session) => {}
            _ = phase.wait_for(other) => {}
        }
    }
}
