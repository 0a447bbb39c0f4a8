//! The origin's restarts: its lock manager loses all locks, and lets clients reclaim them in its grace
//! period.
//!
//! NSM tells clients of a restart, if its daemon runs on both ends and no firewall drops its datagrams. This
//! client needs none of that. While it holds a lock, it watches its connection to the lock manager and probes
//! it, because a server cannot restart without losing its connections. After each new connection, all locks
//! are requested again. This changes nothing if the origin still has them. In a grace period the origin
//! refuses, and then they are reclaimed.
//!
//! One case goes unnoticed: the origin restarts, its grace period ends, and another client takes and
//! releases a lock, all while this client cannot reach the origin.

use std::sync::{Arc, Weak};
use std::time::Duration;

use protocol::nlm::Stat;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use vfs::{Handle, OpenId};

use super::lockd::{Connection, Place};
use super::table::Held;
use super::{GRACE_PAUSE, LockManager};

/// How often the connection is probed while a lock is held. Grace periods are several times as long.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Files that are reclaimed at a time.
const AT_ONCE: usize = 256;
/// Refusals in a row after which a lock counts as lost.
const REFUSALS_MAX: u32 = 20;
/// How long a probe may take.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// The pause after a probe that failed.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Watches the connection as long as there is a manager. `changed` is the manager's.
pub(super) async fn watch(manager: Weak<LockManager>, changed: Arc<Notify>) {
    loop {
        let Some(held) = manager.upgrade() else { return };
        let Some(seen) = held.oldest_connection() else {
            drop(held);
            changed.notified().await;
            continue;
        };
        let _ = timeout(PROBE_INTERVAL, held.lockd.disconnected()).await;
        // The bound lets the manager go while the origin is away.
        if !matches!(timeout(PROBE_MAX, held.lockd.probe()).await, Ok(Ok(()))) {
            sleep(PROBE_PAUSE).await;
            continue;
        }
        let Some(now) = held.lockd.connection().filter(|now| *now != seen) else { continue };
        held.reclaim_all().await;
        held.reclaimed(now);
    }
}

/// The fate of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Held,
    Lost(Stat),
}

impl LockManager {
    /// The oldest connection on which a held lock may have been granted. `None` if no lock is held.
    fn oldest_connection(&self) -> Option<Connection> {
        let mut recorded = self.recorded.lock();
        if recorded.table.locked_files().is_empty() {
            recorded.connection = None;
        }
        recorded.connection
    }

    /// All locks were requested again while this connection, or a later one, was there.
    fn reclaimed(&self, on: Connection) {
        let mut recorded = self.recorded.lock();
        recorded.connection = recorded.connection.map(|_| on);
    }

    /// Requests all locks again. Each file has a task, because a call about one file may wait for the end of
    /// the grace period, and then it is too late for the others.
    async fn reclaim_all(self: &Arc<LockManager>) {
        let files = self.recorded.lock().table.locked_files();
        let mut reclaiming = JoinSet::new();
        for id in files {
            if reclaiming.len() >= AT_ONCE {
                reclaiming.join_next().await;
            }
            let manager = self.clone();
            reclaiming.spawn(async move { manager.reclaim_file(id).await });
        }
        while reclaiming.join_next().await.is_some() {}
    }

    async fn reclaim_file(self: Arc<LockManager>, id: OpenId) {
        let Some((handle, turn)) = self.recorded.lock().table.file(id) else { return };
        let turn = turn.lock_owned().await;
        let owners = self.recorded.lock().table.owners(id);
        for (_, held) in &owners {
            if let Fate::Lost(stat) = self.reclaim(&handle, held).await {
                tokio::spawn(async move {
                    self.lose(id, &handle, stat).await;
                    drop(turn);
                });
                return;
            }
        }
        drop(turn);
        if owners.iter().any(|(_, held)| held.doubt.is_some()) {
            tokio::spawn(async move { self.give_up_doubts(id).await });
        }
    }

    /// A LOCK or UNLOCK of an earlier process was not answered, or an UNLOCK waits for the end of the grace
    /// period. Nobody relies on that range.
    async fn give_up_doubts(&self, id: OpenId) {
        let Some((handle, turn)) = self.recorded.lock().table.file(id) else { return };
        let _turn = turn.lock_owned().await;
        let owners = self.recorded.lock().table.owners(id);
        for (owner, held) in owners {
            let Some(range) = held.doubt else { continue };
            let place = Place { handle: &handle, svid: held.svid, range };
            if self.unlock_after_grace(&held.principal, place).await.is_ok() {
                self.change(|table| table.unlocked(id, &owner, range));
            }
        }
    }

    /// Requests what an owner holds in a file, as often as the origin asks to come later.
    async fn reclaim(&self, handle: &Handle, held: &Held) -> Fate {
        let mut sure = held.ranges.clone();
        held.doubt.iter().for_each(|doubt| sure.unlock(doubt.start, doubt.end));
        for range in sure.iter() {
            let place = Place { handle, svid: held.svid, range };
            let (mut pause, mut refusals) = (GRACE_PAUSE.0, 0);
            loop {
                let mut answer = self.lockd.lock(&held.principal, place, false).await;
                if matches!(answer, Ok(Stat::DeniedGracePeriod)) {
                    answer = self.lockd.lock(&held.principal, place, true).await;
                }
                match answer {
                    Ok(Stat::Granted) => break,
                    // The grace period ended between the two requests.
                    Ok(Stat::DeniedGracePeriod) => {}
                    // The server may still be starting: its status monitor, or what checks the credential.
                    Ok(Stat::DeniedNolocks | Stat::Failed | Stat::Other(_)) | Err(_)
                        if refusals < REFUSALS_MAX =>
                    {
                        refusals += 1;
                    }
                    Ok(stat) => return Fate::Lost(stat),
                    Err(_) => return Fate::Lost(Stat::Failed),
                }
                sleep(pause).await;
                pause = (pause * 2).min(GRACE_PAUSE.1);
            }
        }
        Fate::Held
    }

    /// A lock in the file is lost. Gives up the others, and lets the layer above know at its next operation:
    /// it forgets all locks of the file. The caller holds the file's turn.
    async fn lose(&self, id: OpenId, handle: &Handle, stat: Stat) {
        tracing::warn!(
            "{} lost a lock of file {handle} in a restart ({stat:?}): the locks of this file here are lost",
            self.lockd.server()
        );
        let owners = self.recorded.lock().table.owners(id);
        // A file that is gone has no locks.
        for (_, held) in owners.iter().filter(|_| stat != Stat::StaleFh) {
            self.release(handle, held).await;
        }
        self.change(|table| drop(table.close(id)));
    }
}
