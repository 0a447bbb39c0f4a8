//! Lists the clients of version 4 and the state that they hold, for an administrator.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::Clientid;
use tokio::time::Instant;
use vfs::{Handle, HolderId, LeaseId, LeaseKind, Share};

use super::State;
use super::clients::{Client, Generation};
use super::stateids::{HeldState, Kind, Standing};
use crate::exports::ExportId;

/// A client with a confirmed record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedClient {
    /// Its client id.
    pub id: Clientid,
    /// The name that it chose: `co_ownerid`, any bytes.
    pub name: Bytes,
    /// The address from which it made itself known.
    pub address: IpAddr,
    /// It speaks minor version 0, which has no sessions.
    pub is_minor0: bool,
    /// Time since its last renewal.
    pub silent: Duration,
    /// Its lease has expired.
    pub is_courtesy: bool,
    /// Names it towards the layers below.
    pub holder: HolderId,
    /// Opens.
    pub opens: usize,
    /// Owners with locks, one for each open that they lock under.
    pub locks: usize,
    /// Delegations that it has not returned.
    pub delegations: usize,
    /// Delegations that were revoked. The client has not freed them yet, and may still rely on them.
    pub revoked: usize,
}

/// A state that a client holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedState {
    /// The export of the file.
    pub export: ExportId,
    /// The file.
    pub handle: Handle,
    /// The state.
    pub held: Held,
}

/// The kind of a listed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// An open.
    Open {
        /// What it may do.
        access: Share,
        /// What it denies to others.
        deny: Share,
    },
    /// Byte-range locks of one owner.
    Locks {
        /// The owner, any bytes.
        owner: Bytes,
    },
    /// A delegation.
    Delegation {
        /// The lease that it stands for.
        lease: LeaseId,
        /// What it allows.
        kind: LeaseKind,
        /// It was recalled.
        is_recalled: bool,
    },
}

impl State {
    /// All clients, by address and name.
    pub(crate) fn list_clients(&self) -> Vec<ListedClient> {
        let (tables, now) = (self.tables(), Instant::now());
        let of = |client: &Client| {
            let mut listed = ListedClient {
                id: client.id,
                name: client.name.ownerid.clone(),
                address: client.maker.address,
                is_minor0: client.name.generation == Generation::Minor0,
                silent: now.saturating_duration_since(client.renewed),
                is_courtesy: tables.clients.is_courtesy(client.id, now),
                holder: client.holder,
                opens: 0,
                locks: 0,
                delegations: 0,
                revoked: tables.stateids.revoked(client.id),
            };
            for held in tables.stateids.of_client(client.id).filter_map(listed_state) {
                match held.held {
                    Held::Open { .. } => listed.opens += 1,
                    Held::Locks { .. } => listed.locks += 1,
                    Held::Delegation { .. } => listed.delegations += 1,
                }
            }
            listed
        };
        let mut clients: Vec<ListedClient> = tables.clients.iter().map(of).collect();
        clients.sort_by(|one, other| (one.address, &one.name).cmp(&(other.address, &other.name)));
        clients
    }

    /// What a client holds.
    pub(crate) fn list_states(&self, client: Clientid) -> Vec<ListedState> {
        self.tables().stateids.of_client(client).filter_map(listed_state).collect()
    }
}

/// `None` for a delegation that the client has lost and must still be told of.
fn listed_state(held: &HeldState) -> Option<ListedState> {
    let kind = match &held.kind {
        Kind::Open { access, deny, .. } => Held::Open { access: *access, deny: *deny },
        Kind::Lock { owner, .. } => Held::Locks { owner: owner.clone() },
        Kind::Delegation { standing: Standing::Revoked, .. } => return None,
        Kind::Delegation { lease, kind, standing, .. } => {
            Held::Delegation { lease: *lease, kind: *kind, is_recalled: *standing == Standing::Recalled }
        }
    };
    Some(ListedState { export: held.export, handle: held.handle.handle(), held: kind })
}
