//! How much of replies sessions may keep: slots and bytes of a slot are a promise, which a client may have us keep.
//!
//! All promises together stay within a budget, but for one slot of [`SCARCE_BYTES`] for each session: no client is refused.
//! A peer gets what it asks for as long as that is a quarter of what it may still have, and it may have as much as is left
//! for others. When less is left, slots keep less (as much as Linux's server keeps), and then there are fewer of them. When
//! most of the budget is promised, the clients of the peer with the most are asked for slots ([`super::lowering`]).

use std::collections::HashMap;

use protocol::nfs4::ChannelAttrs;
use rpc::account::Peer;

/// What a slot keeps when there is little left: as Linux's server.
const SCARCE_BYTES: u32 = 2 << 10;
/// What a slot takes up beside its reply.
const SLOT_BYTES: usize = 128;
/// Part of what a peer may still have that one session gets.
const PART: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Promises {
    budget: usize,
    total: usize,
    of: HashMap<Peer, usize>,
}

/// Bytes that a session of these attributes may have us keep.
pub(super) fn promised(fore: &ChannelAttrs) -> usize {
    fore.maxrequests as usize * (fore.maxresponsesize_cached as usize + SLOT_BYTES)
}

impl Promises {
    /// None yet, and within so many bytes.
    pub(super) fn within(budget: usize) -> Promises {
        Promises { budget, total: 0, of: HashMap::new() }
    }

    /// What a new session of the peer gets of what it asks for.
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

    /// If more than three quarters are promised: the peer that has most.
    pub(super) fn greatest_when_short(&self) -> Option<Peer> {
        let short = self.total > self.budget - self.budget / 4;
        let greatest = || self.of.iter().max_by_key(|(peer, bytes)| (**bytes, **peer)).map(|(peer, _)| *peer);
        if short { greatest() } else { None }
    }

    /// A session was made.
    pub(super) fn add(&mut self, peer: Peer, bytes: usize) {
        self.total += bytes;
        *self.of.entry(peer).or_default() += bytes;
    }

    /// It is no more.
    pub(super) fn remove(&mut self, peer: Peer, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(own) = self.of.get_mut(&peer) {
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
        // A peer that comes late still gets a session that it can work with.
        let late = promises.grant(peer(9), asked());
        assert!(late.maxrequests > slots[1999], "{late:?}");
        let given: Vec<(Peer, usize)> = promises.of.iter().map(|(peer, bytes)| (*peer, *bytes)).collect();
        given.into_iter().for_each(|(peer, bytes)| promises.remove(peer, bytes));
        assert_eq!((promises.total(), promises.of.len()), (0, 0));
        assert_eq!(promises.grant(peer(1), asked()), asked());
    }
}
