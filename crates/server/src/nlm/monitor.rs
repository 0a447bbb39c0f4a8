//! NSM, the status monitor: hosts that restart tell us, and we tell hosts when we restart.
//!
//! The server is its own monitor: it needs no `rpc.statd` on its machine. A notice concerns only hosts at the
//! address that sent it. The notices of our own restart go to every host in the durable record, for a
//! quarter of an hour: a host that is away meanwhile learns of the restart by its next lock alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::nsm::{self, Name, Procedure, StatChge, StatRes};
use rpc::message::Refusal;
use rpc::service::Outcome;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::calling::{self, Route, To};
use super::{Nlm, hosts};
use crate::shared::{arguments, reply};
use crate::state::hosts::HostName;

/// How long a host is told of our restart: as long as by sm-notify(8).
const NOTIFY_FOR: Duration = Duration::from_secs(15 * 60);
/// The first and the longest pause between two notices to a host.
const NOTIFY_PAUSE: Duration = Duration::from_secs(2);
const NOTIFY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// How many hosts are told at once.
const NOTIFY_AT_ONCE: usize = 256;

/// Answers one call of NSM.
pub(crate) async fn answer(nlm: &Arc<Nlm>, call: rpc::Call) -> Outcome {
    let Ok(procedure) = Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    let state = nlm.shared.state.monitor_state();
    match procedure {
        Procedure::Null | Procedure::SimuCrash => reply(&call, &()),
        Procedure::Stat => reply(&call, &StatRes { stat: nsm::STAT_SUCC, state }),
        // The monitor works for the lock manager of this server alone.
        Procedure::Mon => reply(&call, &StatRes { stat: nsm::STAT_FAIL, state }),
        Procedure::Unmon | Procedure::UnmonAll => reply(&call, &state),
        Procedure::Notify => match arguments::<StatChge>(&call) {
            Ok(StatChge { mon_name, state }) => {
                let address = call.peer.ip().to_canonical();
                restarted(nlm, address, &mon_name, state).await;
                reply(&call, &())
            }
            Err(refusal) => refusal.into(),
        },
    }
}

/// The host at this address has restarted: releases all that it holds. `state` is the new state number of
/// its monitor, or zero if that is not known.
pub(super) async fn restarted(nlm: &Arc<Nlm>, address: IpAddr, name: &[u8], state: u32) {
    let gone = nlm.hosts.lock().restarted(address, name, state);
    let release = |hosts::Restarted { holder, closed }| {
        tracing::info!(host = %address, state, "a host has restarted: its locks are released");
        nlm.release_behind(holder, closed)
    };
    let releases: Vec<_> = gone.into_iter().map(release).collect();
    // A reclaim that is repeated holds its file, and this ends it.
    forget_before(nlm, address, name);
    for release in releases {
        // The task ends in any case, and the notice is answered when it has.
        let _ = release.await;
    }
}

/// A host that has restarted, and has not called since our own restart, has nothing to reclaim.
fn forget_before(nlm: &Nlm, address: IpAddr, name: &[u8]) {
    let mut tables = nlm.shared.state.tables();
    let before = tables.hosts.iter().map(|(host, _)| host).filter(|host| host.address == address);
    let mut before: Vec<HostName> = before.cloned().collect();
    if before.len() > 1 {
        before.retain(|host| hosts::is_same_host(&host.name, name));
    }
    before.iter().for_each(|host| tables.hosts.restarted(host));
}

/// Tells the hosts that held locks before our restart.
pub(super) fn notify_all(nlm: &Arc<Nlm>) {
    let hosts: Vec<HostName> = {
        let tables = nlm.shared.state.tables();
        tables.hosts.iter().map(|(host, _)| host.clone()).collect()
    };
    let places = Arc::new(Semaphore::new(NOTIFY_AT_ONCE));
    for host in hosts {
        let (nlm, places) = (Arc::downgrade(nlm), places.clone());
        tokio::spawn(async move {
            let until = Instant::now() + NOTIFY_FOR;
            let mut pause = NOTIFY_PAUSE;
            // The first attempt is over UDP, as other monitors send it.
            let mut tcp = false;
            while Instant::now() < until {
                let Ok(place) = places.acquire().await else { return };
                let Some(nlm) = nlm.upgrade() else { return };
                if notify(&nlm, Route { address: host.address, tcp, local: None }).await {
                    return;
                }
                drop((nlm, place));
                sleep(pause).await;
                (tcp, pause) = (!tcp, (pause * 2).min(NOTIFY_PAUSE_MAX));
            }
            tracing::warn!(host = %host.address, "a host that held locks could not be told of the restart");
        });
    }
}

/// Sends one notice. True if the host has answered.
async fn notify(nlm: &Nlm, route: Route) -> bool {
    let change = StatChge { mon_name: our_name(), state: nlm.shared.state.monitor_state() };
    let procedure = Procedure::Notify as u32;
    let to = To { program: nsm::PROGRAM, version: nsm::VERSION, procedure };
    let told = calling::call_host(nlm, route, to, calling::encoded(&change)).await;
    if let Err(error) = &told {
        tracing::debug!(host = %route.address, %error, "a host was not told of the restart");
    }
    told.is_ok()
}

/// The name of this machine. Hosts find us by our address if they know us by another name.
fn our_name() -> Name {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    Name::new(name.trim_ascii().to_vec()).unwrap_or_default()
}
