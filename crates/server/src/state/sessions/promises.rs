//! The memory that sessions may use for kept replies. A client may make the server keep a reply in every
//! slot, so the number of slots times their size is a promise.
//!
//! The sum of all promises stays within a budget, except for one slot of [`SCARCE_BYTES`] for each session:
//! no client is refused. A peer may hold as much as is left for the other peers. A new session gets what it
//! asks for if that is at most a quarter of what the peer may still get.
//!
//! If less is left, slots keep smaller replies (as large as Linux's server keeps), and then there are fewer
//! slots. When most of the budget is promised, the clients of the peer with the most are asked to give up
//! slots ([`super::lowering`]).

use std::collections::HashMap;

use protocol::nfs4::ChannelAttrs;
use rpc::account::Peer;

/// Bytes that a slot keeps when little is left: as in Linux's server.
const SCARCE_BYTES: u32 = 2 << 10;
/// Bytes that a slot uses beside its reply.
const SLOT_BYTES: usize = 128;
/// One session gets at most this fraction (one quarter) of what a peer may still get.
const PART: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Promises {
    budget: usize,
    total: usize,
    of: HashMap<Peer, usize>,
}

/// Bytes that a session with these attributes may make the server keep.
pub(super) fn promised(fore: &ChannelAttrs) -> usize {
    fore.maxrequests as usize * (fore.maxresponsesize_cached as usize + SLOT_BYTES)
}

impl Promises {
    /// No promises yet, and a budget in bytes.
    pub(super) fn within(budget: usize) -> Promises {
        Promises { budget, total: 0, of: HashMap::new() }
    }

    /// The attributes that a new session of the peer gets, out of those it asks for.
    pub(super) fn grant(&self, peer: Peer, asked: ChannelAttrs) -> ChannelAttrs {
        let own = self.of.get(&peer).copied().unwrap_or(0);
        let left = self.budget.saturating_sub(self.total).saturating_sub(own) / PART;
        if promised(&asked) <= left {
            return asked;
        }
        let maxresponsesize_cached = asked.maxresponsesize_cached.min(SCARCE_BYTES);
        let slots = left / (maxresponsesize_cached as usize + SLOT_BYTES);
        let maxrequests = u32::try_from(slots).unwrap_or(u32::MAX).clamp(1, asked.maxrequests.max(1));
        ChannelAttrs { maxresponsesize_cached, maxrequests, ..asked }
    }

    /// If more than three quarters of the budget are promised, the peer that has most.
    pub(super) fn greatest_when_short(&self) -> Option<Peer> {
        let short = self.total > self.budget - self.budget / 4;
        let greatest = || self.of.iter().max_by_key(|(peer, bytes)| (**bytes, **peer)).map(|(peer, _)| *peer);
        if short { greatest() } else { None }
    }

    /// Adds the promise of a new session.
    pub(super) fn add(&mut self, peer: Peer, bytes: usize) {
        self.total += bytes;
        *self.of.entry(peer).or_default() += bytes;
    }

    /// Removes the promise of a session that has ended.
    pub(super) fn remove(&mut self, peer: Peer, bytes: usize) {
        debug_assert!(self.total >= bytes, "{bytes} bytes end of {} promised", self.total);
        self.total = self.total.saturating_sub(bytes);
        if let Some(own) = self.of.get_mut(&peer) {
            debug_assert!(*own >= bytes, "{bytes} bytes end of {own} promised to the peer");
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.of.remove(&peer);
            }
        }
    }

    /// Bytes that are promised.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(number: u8) -> Peer {
        Peer::from(IpAddr::from([10, 0, 0, number]))
    }

    fn asked() -> ChannelAttrs {
        ChannelAttrs { maxresponsesize_cached: 8 << 10, maxrequests: 128, ..ChannelAttrs::default() }
    }

    #[test]
    fn promises_stay_within_the_budget_and_nobody_is_refused() {
        const BUDGET: usize = 64 << 20;
        let mut promises = Promises::within(BUDGET);
        let mut slots = Vec::new();
        for number in 0..2000u32 {
            let granted = promises.grant(peer((number % 3) as u8), asked());
            assert!(granted.maxrequests >= 1 && granted.maxresponsesize_cached >= SCARCE_BYTES);
            promises.add(peer((number % 3) as u8), promised(&granted));
            slots.push(granted.maxrequests);
        }
        let scarce = SCARCE_BYTES as usize + SLOT_BYTES;
        assert!(promises.total() <= BUDGET + 2000 * scarce, "{}", promises.total());
        assert_eq!((slots[0], slots.last()), (128, Some(&1)));
        // A late peer still gets a session that it can work with.
        let late = promises.grant(peer(9), asked());
        assert!(late.maxrequests > slots[1999], "{late:?}");
        let given: Vec<(Peer, usize)> = promises.of.iter().map(|(peer, bytes)| (*peer, *bytes)).collect();
        given.into_iter().for_each(|(peer, bytes)| promises.remove(peer, bytes));
        assert_eq!((promises.total(), promises.of.len()), (0, 0));
        assert_eq!(promises.grant(peer(1), asked()), asked());
    }
}
