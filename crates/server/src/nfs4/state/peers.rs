//! Whose connection it is, in minor version 0.
//!
//! Before sessions, most operations do not say which client asks: the GETATTR that goes before a DELEGRETURN does not, and
//! to hold it against the delegation that is about to come back would make the two wait for each other. A connection
//! belongs to one client, and says whose it is with the first state id, owner or client id that comes over it.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;
use vfs::HolderId;

/// Connections remembered. When there are more, all are forgotten: the next operation with state tells again.
const PEERS_MAX: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<SocketAddr, HolderId>>);

impl Peers {
    /// Who asked over this connection last.
    pub(crate) fn of(&self, peer: SocketAddr) -> Option<HolderId> {
        self.0.lock().get(&peer).copied()
    }

    /// It is this holder's.
    pub(crate) fn note(&self, peer: SocketAddr, holder: HolderId) {
        let mut peers = self.0.lock();
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.clear();
        }
        peers.insert(peer, holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_the_table_is_bounded() {
        let peers = Peers::default();
        for port in 0..=u16::MAX {
            let peer = SocketAddr::from(([127, 0, 0, 1], port));
            peers.note(peer, HolderId(1));
            peers.note(peer, HolderId(u64::from(port)));
            assert_eq!(peers.of(peer), Some(HolderId(u64::from(port))));
        }
        assert!(peers.0.lock().len() <= PEERS_MAX);
    }
}
