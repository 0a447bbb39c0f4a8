//! The client hosts that lock through NLM, as this incarnation knows them.
//!
//! A pure table. A host is an address and a `caller_name`: two hosts behind one address have two names. The
//! server trusts the address alone, as for MOUNT, so only calls from a host's address concern it. A host that
//! holds nothing gives way when the table is full.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use vfs::HolderId;

use super::calling::Route;
use crate::state::hosts::HostName;

/// Limit of hosts.
const HOSTS_MAX: usize = 8192;
/// Limit of hosts with one address.
const HOSTS_PER_ADDRESS_MAX: usize = 64;

/// Holds back the calls of a host while what it held is released: a lock of its new boot must not be taken
/// for one of the old boot.
#[derive(Clone, Debug, Default)]
pub(super) struct Gate(Arc<watch::Sender<usize>>);

impl Gate {
    /// Waits until nothing is being released.
    pub(super) async fn pass(&self) {
        // The sender lives as long as `self`, so this ends when the count is zero.
        let _ = self.0.subscribe().wait_for(|releases| *releases == 0).await;
    }

    fn close(&self) -> Closed {
        self.0.send_modify(|releases| *releases += 1);
        Closed(self.0.clone())
    }
}

/// Keeps a [`Gate`] closed until it is dropped.
#[derive(Debug)]
pub(super) struct Closed(Arc<watch::Sender<usize>>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.send_modify(|releases| *releases -= 1);
    }
}

/// A host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) holder: HolderId,
    /// Where to call it back: the address of its last call, and the transport.
    pub(super) route: Route,
    /// The state number of its status monitor; zero if unknown.
    state: u32,
    gate: Gate,
    /// The last call.
    pub(super) used: Instant,
}

/// A host that has made a call.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) holder: HolderId,
    /// The call goes on when this is open.
    pub(super) gate: Gate,
    /// Its status monitor has another state number: it has restarted since its earlier calls, and holds
    /// nothing any more. The gate is closed until all is released.
    pub(super) restarted: Option<Closed>,
}

/// A host that has restarted, with its gate closed until all that it held is released.
#[derive(Debug)]
pub(super) struct Restarted {
    pub(super) holder: HolderId,
    pub(super) closed: Closed,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    by_name: BTreeMap<HostName, Host>,
    holders: HashSet<HolderId>,
}

/// The table is full of hosts that hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Hosts {
    /// A host has called. `state` is the state number of its monitor, if the call has one. `holder` gives a
    /// new host its holder, and `is_idle` says whether a host may be forgotten.
    ///
    /// # Errors
    /// If the table is full.
    pub(super) fn note(
        &mut self,
        (name, route, state): (&HostName, Route, u32),
        now: Instant,
        holder: impl FnOnce() -> HolderId,
        is_idle: impl Fn(HolderId) -> bool,
    ) -> Result<Noted, Full> {
        if let Some(host) = self.by_name.get_mut(name) {
            (host.route, host.used) = (route, now);
            let is_news = state != 0 && host.state != 0 && state != host.state;
            if state != 0 {
                host.state = state;
            }
            // The gate closes with the change of the number: no other call of the new boot comes between.
            let restarted = is_news.then(|| host.gate.close());
            return Ok(Noted { holder: host.holder, gate: host.gate.clone(), restarted });
        }
        let has_place =
            self.by_name.len() < HOSTS_MAX && self.at(name.address).count() < HOSTS_PER_ADDRESS_MAX;
        if !has_place && !self.forget_idle(name.address, is_idle) {
            return Err(Full);
        }
        let gate = Gate::default();
        let host = Host { holder: holder(), route, state, gate: gate.clone(), used: now };
        let holder = host.holder;
        // Copy the name, so that it does not keep the buffer of the complete record.
        let name = HostName { name: Bytes::copy_from_slice(&name.name), ..*name };
        self.by_name.insert(name, host);
        self.holders.insert(holder);
        Ok(Noted { holder, gate, restarted: None })
    }

    /// The monitor at this address says that a host has restarted. Returns the hosts that it concerns: those
    /// of its name, or the only one at the address. A notice that comes again concerns no host.
    pub(super) fn restarted(&mut self, address: IpAddr, name: &[u8], state: u32) -> Vec<Restarted> {
        let mut named: Vec<HostName> = self.at(address).map(|(name, _)| name.clone()).collect();
        if named.len() > 1 {
            named.retain(|of| is_same_host(&of.name, name));
        }
        let mut gone = Vec::new();
        for name in named {
            let Some(host) = self.by_name.get_mut(&name) else { continue };
            let is_news = state == 0 || host.state != state;
            host.state = state;
            if is_news {
                gone.push(Restarted { holder: host.holder, closed: host.gate.close() });
            }
        }
        gone
    }

    /// Closes the gate of a host, to take everything from it.
    pub(super) fn close(&self, holder: HolderId) -> Option<Closed> {
        self.by_name.values().find(|host| host.holder == holder).map(|host| host.gate.close())
    }

    /// Is this the holder of a host?
    pub(super) fn has(&self, holder: HolderId) -> bool {
        self.holders.contains(&holder)
    }

    /// Forgets the hosts that are idle and have not called since this time.
    pub(super) fn forget_unused(&mut self, since: Instant, is_idle: impl Fn(HolderId) -> bool) {
        let unused = self.by_name.iter().filter(|(_, host)| host.used <= since && is_idle(host.holder));
        for name in unused.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove(&name);
        }
    }

    /// Removes a host that holds nothing.
    fn remove(&mut self, name: &HostName) {
        if let Some(host) = self.by_name.remove(name) {
            self.holders.remove(&host.holder);
        }
    }

    /// All hosts, by address and name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&HostName, &Host)> {
        self.by_name.iter()
    }

    /// Number of hosts.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    fn at(&self, address: IpAddr) -> impl Iterator<Item = (&HostName, &Host)> {
        let first = HostName { address, name: Bytes::new() };
        self.by_name.range(first..).take_while(move |(name, _)| name.address == address)
    }

    /// Forgets the idle host that was silent for longest: one of this address if it has its share, else any.
    fn forget_idle(&mut self, address: IpAddr, is_idle: impl Fn(HolderId) -> bool) -> bool {
        let has_share = self.at(address).count() >= HOSTS_PER_ADDRESS_MAX;
        let may_go = self
            .by_name
            .iter()
            .filter(|(name, host)| (!has_share || name.address == address) && is_idle(host.holder));
        let oldest = may_go.min_by_key(|(_, host)| host.used).map(|(name, _)| name.clone());
        oldest.inspect(|name| self.remove(name)).is_some()
    }
}

/// Do two names mean the same host? One of them may lack the domain.
pub(super) fn is_same_host(one: &[u8], other: &[u8]) -> bool {
    let is_short = |short: &[u8], long: &[u8]| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
    };
    !one.is_empty() && !other.is_empty() && (is_short(one, other) || is_short(other, one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(address: u8, name: &'static str) -> HostName {
        HostName { address: IpAddr::from([192, 0, 2, address]), name: Bytes::from_static(name.as_bytes()) }
    }

    fn route(address: u8) -> Route {
        Route { address: IpAddr::from([192, 0, 2, address]), tcp: true, local: None }
    }

    fn note(hosts: &mut Hosts, host: &HostName, state: u32) -> Noted {
        let next = HolderId(hosts.len() as u64 + 1);
        hosts.note((host, route(1), state), Instant::now(), || next, |_| false).unwrap()
    }

    #[test]
    fn a_host_is_an_address_and_a_name() {
        let mut hosts = Hosts::default();
        let one = note(&mut hosts, &name(1, "a"), 0).holder;
        assert_eq!(note(&mut hosts, &name(1, "a"), 0).holder, one);
        assert_ne!(note(&mut hosts, &name(1, "b"), 0).holder, one);
        assert_ne!(note(&mut hosts, &name(2, "a"), 0).holder, one);
        assert!(hosts.has(one) && hosts.len() == 3);
        hosts.forget_unused(Instant::now(), |holder| holder == one);
        assert!(!hosts.has(one) && hosts.len() == 2);
    }

    #[test]
    fn a_new_state_number_is_a_restart() {
        let mut hosts = Hosts::default();
        assert!(note(&mut hosts, &name(1, "a"), 0).restarted.is_none());
        assert!(note(&mut hosts, &name(1, "a"), 3).restarted.is_none(), "it was unknown");
        assert!(note(&mut hosts, &name(1, "a"), 0).restarted.is_none(), "it is unknown");
        assert!(note(&mut hosts, &name(1, "a"), 5).restarted.is_some());
        let address = name(1, "a").address;
        assert!(hosts.restarted(address, b"a", 5).is_empty(), "its locks are of this incarnation");
        assert_eq!(hosts.restarted(address, b"a", 7).len(), 1);
        assert!(hosts.restarted(address, b"a", 7).is_empty(), "the notice came again");
        assert!(hosts.restarted(name(2, "a").address, b"a", 9).is_empty(), "another address");
    }

    #[tokio::test]
    async fn calls_of_a_new_boot_wait_until_the_old_one_is_released() {
        let mut hosts = Hosts::default();
        let host = name(1, "a");
        note(&mut hosts, &host, 3).gate.pass().await;
        let first = note(&mut hosts, &host, 5);
        let second = note(&mut hosts, &host, 5);
        assert!(second.restarted.is_none(), "the number is known by now");
        let mut passes = std::pin::pin!(second.gate.pass());
        assert!(polled(passes.as_mut()).await.is_pending(), "the first call still releases");
        let notice = hosts.restarted(host.address, b"a", 7);
        drop(first);
        assert!(polled(passes.as_mut()).await.is_pending(), "a later restart releases as well");
        drop(notice);
        passes.await;
    }

    async fn polled<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
    }

    #[test]
    fn a_notice_concerns_the_host_of_its_name() {
        let mut hosts = Hosts::default();
        let address = name(1, "a").address;
        note(&mut hosts, &name(1, "a.example.com"), 1);
        assert_eq!(hosts.restarted(address, b"anything", 3).len(), 1, "it is alone there");
        note(&mut hosts, &name(1, "ab"), 1);
        let gone = hosts.restarted(address, b"a", 5);
        assert_eq!(gone.iter().map(|gone| gone.holder).collect::<Vec<_>>(), [HolderId(1)]);
        assert!(hosts.restarted(address, b"c", 7).is_empty());
    }

    #[test]
    fn a_full_table_forgets_idle_hosts_alone() {
        let mut hosts = Hosts::default();
        let mut next = 0;
        let mut enter = |hosts: &mut Hosts, number: u64, idle: bool| {
            next += 1;
            let name = HostName { address: name(1, "").address, name: Bytes::from(number.to_string()) };
            hosts.note((&name, route(1), 0), Instant::now(), || HolderId(next), |_| idle)
        };
        for number in 0..HOSTS_PER_ADDRESS_MAX as u64 {
            enter(&mut hosts, number, false).unwrap();
        }
        assert_eq!(enter(&mut hosts, 999, false).err(), Some(Full));
        enter(&mut hosts, 999, true).unwrap();
        assert_eq!((hosts.len(), hosts.holders.len()), (HOSTS_PER_ADDRESS_MAX, HOSTS_PER_ADDRESS_MAX));
    }
}
