//! The clients of NQNFS, and the routes for calls to them.
//!
//! The protocol has no client id. Here a client is the source host of a call together with the machine name
//! of its AUTH_SYS credential. So a client keeps its leases when it reconnects, and two clients on one host
//! are distinct. EVICTED goes over the route of the client's last call.
//!
//! A pure, bounded table. At its limit the server forgets the clients not heard of for longest. A forgotten
//! client that returns is a new one, and must wait for its own earlier leases like any other client.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rpc::{Connection, Credential, Datagrams};
use vfs::HolderId;

/// The limit of remembered clients.
const CLIENTS_MAX: usize = 16_384;

/// The identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    host: IpAddr,
    machine: Bytes,
}

/// The route to a client.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// The connection that the client opened.
    Stream(Weak<Connection>),
    /// In datagrams.
    Datagrams(Datagrams, SocketAddr),
    /// To a test.
    #[cfg(any(test, feature = "fuzzing"))]
    Told(tokio::sync::mpsc::UnboundedSender<protocol::nqnfs::Handle>),
}

#[derive(Debug)]
struct Client {
    holder: HolderId,
    way: Option<Way>,
    heard: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    names: HashMap<Name, Client>,
    of: HashMap<HolderId, Name>,
    next: u64,
    heard: u64,
}

impl Clients {
    /// A call arrived: returns the holder for which it acts.
    pub(crate) fn heard(&mut self, call: &rpc::Call) -> HolderId {
        let machine = match &call.header.credential {
            Credential::Sys(sys) => sys.machine.clone().into_bytes(),
            Credential::None
            | Credential::Gss(_)
            | Credential::Proven(_)
            | Credential::Tls
            | Credential::Other(_) => Bytes::new(),
        };
        let way = match (&call.connection, &call.datagrams) {
            (Some(connection), _) => Some(Way::Stream(Arc::downgrade(connection))),
            (None, Some(datagrams)) => Some(Way::Datagrams(datagrams.clone(), call.peer)),
            (None, None) => None,
        };
        self.note(call.peer.ip().to_canonical(), machine, way)
    }

    /// Lets a test receive the calls to a client.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn tell(&mut self, holder: HolderId, way: Way) {
        if let Some(client) = self.of.get(&holder).and_then(|name| self.names.get_mut(name)) {
            client.way = Some(way);
        }
    }

    /// The route to a holder, if known.
    pub(crate) fn way(&self, holder: HolderId) -> Option<Way> {
        self.names.get(self.of.get(&holder)?)?.way.clone()
    }

    fn note(&mut self, host: IpAddr, machine: Bytes, way: Option<Way>) -> HolderId {
        self.heard += 1;
        let name = Name { host, machine };
        if let Some(client) = self.names.get_mut(&name) {
            client.heard = self.heard;
            client.way = way.or(client.way.take());
            return client.holder;
        }
        if self.names.len() >= CLIENTS_MAX {
            self.forget_oldest();
        }
        self.next += 1;
        let holder = HolderId(HolderId::TERMED | self.next);
        // Copy the name, so that it does not keep the buffer of the complete record.
        let name = Name { machine: Bytes::copy_from_slice(&name.machine), ..name };
        self.of.insert(holder, name.clone());
        self.names.insert(name, Client { holder, way, heard: self.heard });
        holder
    }

    /// Forgets one sixteenth of the clients, so that the search is rare.
    fn forget_oldest(&mut self) {
        let mut all: Vec<u64> = self.names.values().map(|client| client.heard).collect();
        let at = all.len() / 16;
        let (_, limit, _) = all.select_nth_unstable(at);
        let limit = *limit;
        self.names.retain(|_, client| client.heard > limit);
        let names = &self.names;
        self.of.retain(|_, name| names.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(clients: &mut Clients, host: u8, machine: &'static str) -> HolderId {
        clients.note(IpAddr::from([127, 0, 0, host]), Bytes::from_static(machine.as_bytes()), None)
    }

    #[test]
    fn a_client_is_a_host_and_a_machine_name() {
        let mut clients = Clients::default();
        let one = note(&mut clients, 1, "a");
        assert_eq!(note(&mut clients, 1, "a"), one);
        assert_ne!(note(&mut clients, 1, "b"), one);
        assert_ne!(note(&mut clients, 2, "a"), one);
    }

    #[test]
    fn the_table_is_bounded_and_forgets_who_is_silent() {
        let mut clients = Clients::default();
        let loud = note(&mut clients, 1, "loud");
        for number in 0..CLIENTS_MAX * 2 {
            clients.note(IpAddr::from([127, 0, 0, 1]), Bytes::from(number.to_string()), None);
            assert_eq!(note(&mut clients, 1, "loud"), loud);
        }
        assert!(clients.names.len() <= CLIENTS_MAX && clients.of.len() == clients.names.len());
    }
}
