//! Which client a connection belongs to, in minor version 0.
//!
//! Without sessions, most operations do not identify the client. One example is the GETATTR before a
//! DELEGRETURN. If the server held it until the delegation is returned, the two would wait for each other.
//! A connection belongs to one client. The first state id, owner or client id on it identifies the client.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;
use vfs::HolderId;

/// Connections remembered. At the limit all are forgotten; the next operation with state identifies the
/// client again.
const PEERS_MAX: usize = 16_384;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<SocketAddr, HolderId>>);

impl Peers {
    /// The holder that last used this connection.
    pub(crate) fn of(&self, peer: SocketAddr) -> Option<HolderId> {
        self.0.lock().get(&peer).copied()
    }

    /// Notes that the connection is this holder's.
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
