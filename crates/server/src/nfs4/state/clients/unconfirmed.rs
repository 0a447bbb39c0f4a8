//! Records that nobody has confirmed: whose goes when there are too many.
//!
//! Anybody who is admitted makes one with a single call, and need not come back. So they have a bound of their own, beside
//! that of the clients there are; at it, the peer with the most loses its oldest. A client that confirms its record does so
//! within a moment: for others to push it out meanwhile, they would have to be many peers.

use std::collections::{HashMap, VecDeque};

use protocol::nfs4::Clientid;
use rpc::account::Peer;

/// Records at most.
pub(super) const UNCONFIRMED_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    most: usize,
    /// The oldest first.
    order: VecDeque<(Clientid, Peer)>,
    of: HashMap<Peer, usize>,
}

impl Unconfirmed {
    /// None yet, and so many at most.
    pub(super) fn up_to(most: usize) -> Unconfirmed {
        Unconfirmed { most: most.max(1), order: VecDeque::new(), of: HashMap::new() }
    }

    /// The record that must go before another is entered, if any must.
    pub(super) fn to_go(&self) -> Option<Clientid> {
        if self.order.len() < self.most {
            return None;
        }
        let (greatest, _) = self.of.iter().max_by_key(|(peer, count)| (**count, **peer))?;
        self.order.iter().find(|(_, peer)| peer == greatest).map(|(id, _)| *id)
    }

    /// One more.
    pub(super) fn enter(&mut self, id: Clientid, peer: Peer) {
        self.order.push_back((id, peer));
        *self.of.entry(peer).or_default() += 1;
    }

    /// It was confirmed, or is no more.
    pub(super) fn remove(&mut self, id: Clientid) {
        let Some(at) = self.order.iter().position(|(other, _)| *other == id) else { return };
        let Some((_, peer)) = self.order.remove(at) else { return };
        if let Some(count) = self.of.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&peer);
            }
        }
    }

    /// How many there are.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}
