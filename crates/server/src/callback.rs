//! Callbacks from file systems to clients (RFC 8881, sections 2.10.3.1 and 20; RFC 7530, section 15). They
//! go over the backchannels of sessions ([`session`], [`slots`]) and, in minor version 0, over connections
//! that the server opens ([`minor0`]).
//!
//! [`crate::recalls`] receives the callbacks of the file systems. The file system decides whether and when a
//! lease is revoked.

mod minor0;
pub(crate) mod serve;
mod session;
mod slots;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::nfs4::callback::{CbArgOp, CbResOp};
use protocol::nfs4::{Clientid, Results, Sessionid};
use rpc::Connection;
use tokio::time::Instant;

use crate::front::Front;
use crate::state::Tables;
use crate::state::clients::{Client, Way};
use crate::state::sessions::Bond;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::slots::fuzzing::backchannel;
}

pub(crate) use serve::recall_soon;

/// A connection, as sessions need to know it. It does not keep the connection open.
#[derive(Clone, Debug)]
pub(crate) struct Channel(Weak<Connection>);

impl Channel {
    pub(crate) fn new(connection: &Arc<Connection>) -> Channel {
        Channel(Arc::downgrade(connection))
    }
}

impl PartialEq for Channel {
    fn eq(&self, other: &Channel) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl Bond for Channel {
    fn is_closed(&self) -> bool {
        self.0.upgrade().is_none_or(|connection| connection.is_closed())
    }
}

/// The routes for callbacks to clients.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    sessions: Mutex<HashMap<Sessionid, session::Numbered>>,
    minor0: Mutex<HashMap<Clientid, Arc<minor0::Way>>>,
}

/// The client did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable;

impl Ways {
    /// Would a callback reach the client, as far as is known?
    pub(crate) fn is_up(&self, tables: &Tables, client: &Client) -> bool {
        match client.way {
            Way::Minor0 { .. } => self.minor0.lock().get(&client.id).is_some_and(|way| way.is_up()),
            Way::Sessions { .. } => tables.sessions.of(client.id).any(|(_, session)| session.has_way_back()),
        }
    }

    /// Forgets a removed client.
    pub(crate) fn forget(&self, client: Clientid) {
        self.minor0.lock().remove(&client);
        self.sessions.lock().retain(|_, numbered| numbered.client != client);
    }

    /// Forgets a removed session.
    pub(crate) fn forget_session(&self, id: Sessionid) {
        self.sessions.lock().remove(&id);
    }
}

/// Sends one callback operation to a client. Its result comes next in the returned results.
pub(crate) async fn call(
    front: &Front,
    client: Clientid,
    operation: CbArgOp,
    deadline: Instant,
) -> Result<Results<CbResOp>, Unreachable> {
    let has_sessions = {
        let tables = front.state.tables();
        let client = tables.clients.confirmed(client).ok_or(Unreachable)?;
        matches!(client.way, Way::Sessions { .. })
    };
    if has_sessions {
        session::call(front, client, operation, deadline).await
    } else {
        minor0::call(front, client, operation, deadline).await
    }
}

/// A client of minor version 0 has set its callback address: tests whether the address works.
pub(crate) fn probe(front: &Arc<Front>, client: Clientid, peer: SocketAddr) {
    minor0::probe(front, client, peer);
}
