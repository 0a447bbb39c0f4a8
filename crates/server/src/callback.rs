//! The routes for callbacks to version 4 clients (RFC 8881, sections 2.10.3.1 and 20; RFC 7530, section 15):
//! the backchannels of sessions ([`session`], [`slots`]) and, in minor version 0, connections that the server
//! opens ([`minor0`]).
//!
//! `recalls` receives the callbacks of the file systems, and `nfs4::callbacks` sends them over these routes.
//! The file system decides whether and when a lease is revoked.

mod minor0;
mod session;
mod slots;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::nfs4::callback::{CbArgOp, CbResOp};
use protocol::nfs4::{Clientid, Results, Sessionid};
use tokio::time::Instant;

use crate::state::clients::{Client, Way};
use crate::state::{State, Tables};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::slots::fuzzing::backchannel;
}

/// The routes for callbacks to clients.
#[derive(Debug)]
pub(crate) struct Ways {
    state: Arc<State>,
    sessions: Mutex<HashMap<Sessionid, session::Numbered>>,
    minor0: Mutex<HashMap<Clientid, Arc<minor0::Way>>>,
}

/// The client did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable;

impl Ways {
    /// No routes yet to the clients of `state`.
    pub(crate) fn new(state: Arc<State>) -> Ways {
        Ways { state, sessions: Mutex::default(), minor0: Mutex::default() }
    }

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

    /// Sends one callback operation to a client. Its result comes next in the returned results.
    pub(crate) async fn call(
        &self,
        client: Clientid,
        operation: CbArgOp,
        deadline: Instant,
    ) -> Result<Results<CbResOp>, Unreachable> {
        let has_sessions = {
            let tables = self.state.tables();
            let client = tables.clients.confirmed(client).ok_or(Unreachable)?;
            matches!(client.way, Way::Sessions { .. })
        };
        if has_sessions {
            session::call(self, client, operation, deadline).await
        } else {
            minor0::call(self, client, operation, deadline).await
        }
    }

    /// A client of minor version 0 has set its callback address: tests whether the address works.
    pub(crate) fn probe(&self, client: Clientid, peer: SocketAddr) {
        minor0::probe(self, client, peer);
    }
}
