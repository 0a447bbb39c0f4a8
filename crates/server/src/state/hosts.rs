//! The hosts that lock through NLM, as far as they outlive a restart: their holders, and the grace period in
//! which they reclaim.
//!
//! A pure table. A host is in the durable record before it gets its first lock. After a restart, the recorded
//! hosts may reclaim, and no client gets a new byte-range lock meanwhile (X/Open XNFS C702, section 9.2).
//! NLM has no word for "nothing more to reclaim", so this grace period ends with its time, or as soon as all
//! hosts have restarted themselves. Opens, reads and writes do not wait for it: byte-range locks are
//! advisory.
//!
//! Promise: lock-manager-restarts

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;
use vfs::{HolderId, Status};

use super::clients::{ClientName, Generation};
use super::grace::Claim;

/// Limit of recorded hosts. Those that hold nothing leave the record after a while.
const RECORDED_MAX: usize = 16_384;
/// Limit of recorded hosts with one address: a host that calls itself by many names fills no more.
const PER_ADDRESS_MAX: usize = 64;

/// The name of a host: the address of its calls, and its `caller_name` of at most 1,024 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct HostName {
    pub(crate) address: IpAddr,
    pub(crate) name: Bytes,
}

impl HostName {
    /// The name as a key of the durable record.
    pub(super) fn record(&self) -> ClientName {
        let address = match self.address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let mut ownerid = BytesMut::with_capacity(16 + self.name.len());
        ownerid.put_slice(&address.octets());
        ownerid.put_slice(&self.name);
        ClientName { generation: Generation::LockManager, ownerid: ownerid.freeze() }
    }

    /// The host of a key of the durable record, if it is one.
    pub(super) fn parse(name: &ClientName) -> Option<HostName> {
        let (address, rest) = name.ownerid.split_first_chunk::<16>()?;
        let is_host = name.generation == Generation::LockManager;
        let address = IpAddr::V6(Ipv6Addr::from(*address)).to_canonical();
        is_host.then(|| HostName { address, name: name.ownerid.slice_ref(rest) })
    }
}

/// A host in the record.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    holder: HolderId,
    /// The host may hold locks of this incarnation.
    active: bool,
    /// The host may reclaim locks of an earlier incarnation.
    before: bool,
    /// The host is on the disk.
    durable: bool,
}

/// Whether a host may get its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// The host is on the disk.
    Durable,
    /// The host must be written first.
    Unwritten,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Hosts {
    recorded: BTreeMap<HostName, Recorded>,
    ends: Option<Instant>,
    /// The end of grace is being written to the durable record.
    ending: bool,
}

impl Hosts {
    /// The hosts that held locks before a restart. If there are any, a grace period of this length begins.
    pub(super) fn new(
        before: impl IntoIterator<Item = (HostName, HolderId)>,
        now: Instant,
        period: Duration,
    ) -> Hosts {
        let recorded = |holder| Recorded { holder, active: false, before: true, durable: true };
        let recorded: BTreeMap<_, _> =
            before.into_iter().map(|(name, holder)| (name, recorded(holder))).collect();
        let ends = (!recorded.is_empty()).then_some(now + period);
        Hosts { recorded, ends, ending: false }
    }

    /// Is there a grace period in which hosts reclaim?
    pub(crate) fn in_grace(&self) -> bool {
        self.ends.is_some()
    }

    /// May this host claim a lock? `others` says whether clients of version 4 reclaim now.
    ///
    /// # Errors
    /// `Grace`, `NoGrace`, `ReclaimBad`.
    pub(super) fn admit(&self, name: &HostName, others: bool, claim: Claim) -> Result<(), Status> {
        match claim {
            Claim::New if others || self.in_grace() => Err(Status::Grace),
            Claim::New => Ok(()),
            Claim::Reclaim if !self.in_grace() || self.ending => Err(Status::NoGrace),
            Claim::Reclaim if self.recorded.get(name).is_some_and(|host| host.before) => Ok(()),
            Claim::Reclaim => Err(Status::ReclaimBad),
        }
    }

    /// The holder of a recorded host.
    pub(crate) fn holder(&self, name: &HostName) -> Option<HolderId> {
        self.recorded.get(name).map(|host| host.holder)
    }

    /// The host gets a lock.
    ///
    /// # Errors
    /// `Resource` if there are too many hosts, or too many of this address.
    pub(super) fn enter(&mut self, name: &HostName, holder: HolderId) -> Result<Entered, Status> {
        if let Some(host) = self.recorded.get_mut(name) {
            host.active = true;
            return Ok(if host.durable { Entered::Durable } else { Entered::Unwritten });
        }
        let first = HostName { address: name.address, name: Bytes::new() };
        let at_address = self.recorded.range(first..).take_while(|(other, _)| other.address == name.address);
        if self.recorded.len() >= RECORDED_MAX || at_address.count() >= PER_ADDRESS_MAX {
            return Err(Status::Resource);
        }
        let recorded = Recorded { holder, active: true, before: false, durable: false };
        self.recorded.insert(name.clone(), recorded);
        Ok(Entered::Unwritten)
    }

    /// The host is on the disk.
    pub(super) fn written(&mut self, name: &HostName) {
        if let Some(host) = self.recorded.get_mut(name) {
            host.durable = true;
        }
    }

    /// The host is not in the record any more.
    pub(super) fn remove(&mut self, name: &HostName) {
        self.recorded.remove(name);
    }

    /// The host has restarted: it reclaims nothing.
    pub(crate) fn restarted(&mut self, name: &HostName) {
        if let Some(host) = self.recorded.get_mut(name) {
            host.before = false;
        }
    }

    /// Is it time to end grace? True once. `others` says whether clients of version 4 reclaim now.
    pub(super) fn tick(&mut self, now: Instant, others: bool) -> bool {
        let all_done = self.recorded.values().all(|host| !host.before);
        let ends = !others && self.ends.is_some_and(|ends| all_done || now >= ends);
        ends && !std::mem::replace(&mut self.ending, true)
    }

    /// Grace is over. Returns the hosts that have reclaimed nothing, which leave the record.
    pub(super) fn end(&mut self) -> Vec<HostName> {
        (self.ends, self.ending) = (None, false);
        let gone = self.recorded.iter().filter(|(_, host)| !host.active).map(|(name, _)| name.clone());
        let gone: Vec<_> = gone.collect();
        self.recorded.retain(|_, host| host.active);
        self.recorded.values_mut().for_each(|host| host.before = false);
        gone
    }

    /// All recorded hosts, with their holders.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&HostName, HolderId)> {
        self.recorded.iter().map(|(name, host)| (name, host.holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(90);

    fn host(number: u8) -> HostName {
        HostName { address: IpAddr::from([192, 0, 2, number]), name: Bytes::copy_from_slice(&[number; 3]) }
    }

    #[test]
    fn a_name_comes_back_from_the_record() {
        let six = HostName { address: "2001:db8::7".parse().unwrap(), name: Bytes::new() };
        for name in [host(1), six] {
            assert_eq!(HostName::parse(&name.record()), Some(name));
        }
        let other = ClientName { generation: Generation::Minor0, ownerid: host(1).record().ownerid };
        assert_eq!(HostName::parse(&other), None);
    }

    #[test]
    fn without_hosts_there_is_no_grace() {
        let hosts = Hosts::new([], Instant::now(), PERIOD);
        assert!(!hosts.in_grace());
        assert_eq!(hosts.admit(&host(1), false, Claim::New), Ok(()));
        assert_eq!(hosts.admit(&host(1), true, Claim::New), Err(Status::Grace));
        assert_eq!(hosts.admit(&host(1), false, Claim::Reclaim), Err(Status::NoGrace));
    }

    #[test]
    fn recorded_hosts_alone_reclaim_and_the_others_wait_for_the_end() {
        let now = Instant::now();
        let mut hosts = Hosts::new([(host(1), HolderId(1)), (host(2), HolderId(2))], now, PERIOD);
        assert_eq!(hosts.admit(&host(1), false, Claim::Reclaim), Ok(()));
        assert_eq!(hosts.admit(&host(1), false, Claim::New), Err(Status::Grace));
        assert_eq!(hosts.admit(&host(3), false, Claim::Reclaim), Err(Status::ReclaimBad));
        assert_eq!(hosts.enter(&host(1), HolderId(1)), Ok(Entered::Durable));
        assert!(!hosts.tick(now + PERIOD / 2, false) && !hosts.tick(now + PERIOD, true));
        assert!(hosts.tick(now + PERIOD, false) && !hosts.tick(now + PERIOD, false));
        assert_eq!(hosts.admit(&host(1), false, Claim::Reclaim), Err(Status::NoGrace), "ending");
        assert_eq!(hosts.end(), [host(2)]);
        assert_eq!(hosts.admit(&host(2), false, Claim::New), Ok(()));
        assert_eq!(hosts.holder(&host(1)), Some(HolderId(1)));
    }

    #[test]
    fn a_new_host_is_written_before_it_gets_a_lock() {
        let mut hosts = Hosts::new([], Instant::now(), PERIOD);
        assert_eq!(hosts.enter(&host(1), HolderId(1)), Ok(Entered::Unwritten));
        assert_eq!(hosts.enter(&host(1), HolderId(1)), Ok(Entered::Unwritten), "another call meanwhile");
        hosts.written(&host(1));
        assert_eq!(hosts.enter(&host(1), HolderId(1)), Ok(Entered::Durable));
    }

    #[test]
    fn the_record_is_bounded() {
        let mut hosts = Hosts::new([], Instant::now(), PERIOD);
        for number in 0..=RECORDED_MAX as u32 {
            let address = IpAddr::from((number / PER_ADDRESS_MAX as u32).to_be_bytes());
            let name = HostName { address, name: Bytes::from(number.to_string()) };
            assert_eq!(hosts.enter(&name, HolderId(1)).is_ok(), number < RECORDED_MAX as u32);
        }
    }

    #[test]
    fn one_address_has_a_share_of_the_record() {
        let mut hosts = Hosts::new([(host(1), HolderId(1))], Instant::now(), PERIOD);
        for number in 1..=PER_ADDRESS_MAX {
            let name = HostName { name: Bytes::from(number.to_string()), ..host(1) };
            assert_eq!(hosts.enter(&name, HolderId(2)).is_ok(), number < PER_ADDRESS_MAX);
        }
        assert_eq!(hosts.enter(&host(1), HolderId(1)), Ok(Entered::Durable), "it is recorded");
        assert_eq!(hosts.enter(&host(2), HolderId(3)), Ok(Entered::Unwritten), "another address");
    }

    #[test]
    fn grace_ends_early_if_every_host_has_restarted() {
        let now = Instant::now();
        let mut hosts = Hosts::new([(host(1), HolderId(1))], now, PERIOD);
        hosts.restarted(&host(1));
        assert_eq!(hosts.admit(&host(1), false, Claim::Reclaim), Err(Status::ReclaimBad));
        assert!(hosts.tick(now, false));
    }
}
