//! Unconfirmed client records, and which of them goes when there are too many.
//!
//! Any admitted peer creates one with a single call and need not come back. So unconfirmed records have a
//! limit of their own, beside the limit of clients. At the limit, the peer with the most unconfirmed
//! records loses its oldest one. A client normally confirms its record within a moment. Only a large number
//! of peers could push the record out in that time.

use std::collections::{HashMap, VecDeque};

use protocol::nfs4::Clientid;
use rpc::account::Peer;

/// The limit of unconfirmed records.
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
    /// An empty table with a limit of `most` records.
    pub(super) fn up_to(most: usize) -> Unconfirmed {
        Unconfirmed { most: most.max(1), order: VecDeque::new(), of: HashMap::new() }
    }

    /// The record that must be dropped before another is entered, if any.
    pub(super) fn to_go(&self) -> Option<Clientid> {
        if self.order.len() < self.most {
            return None;
        }
        let (greatest, _) = self.of.iter().max_by_key(|(peer, count)| (**count, **peer))?;
        self.order.iter().find(|(_, peer)| peer == greatest).map(|(id, _)| *id)
    }

    pub(super) fn enter(&mut self, id: Clientid, peer: Peer) {
        self.order.push_back((id, peer));
        *self.of.entry(peer).or_default() += 1;
    }

    /// The record was confirmed or removed.
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

    /// The number of records.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}
