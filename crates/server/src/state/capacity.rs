//! Capacity: which state is dropped when a limit is reached.
//!
//! A courtesy client keeps its state until another client needs the capacity. Capacities are records,
//! sessions, state ids, and a file system's limit of open files (`vfs::Status::Resource`). The courtesy
//! client whose last renewal is oldest goes first, and no more clients go than needed. If a record or
//! session is needed, an idle client goes next: one that holds nothing, of the peer with the most such
//! clients. An idle client can make itself known again without loss.
//!
//! Otherwise, a client with a valid lease loses only delegations that it does not use. The server recalls
//! them and holds the requester until something has been returned, as for any recall.
//!
//! A cache may keep the open of a file as long as the delegation. So if state ids are lacking for an open,
//! the client with the most delegations is asked for a quarter of them (CB_RECALL_ANY), once a second.
//!
//! When the patience ends, a client that holds nearly all state gets SERVERFAULT, and other clients get
//! DELAY. A program that opens files until the limit would otherwise wait for itself forever.
//!
//! The server does not hold a request if holding it would keep the client from giving anything back. That
//! is so in minor version 0, where an owner's CLOSE waits for its OPEN. It is also so in a session with
//! more than half of its slots in use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::nfs4::Clientid;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::Tables;
use super::clients::{Client, Generation};
use super::stateids::{HeldState, Kind};
use crate::exports::ExportId;

/// Limits on the state of version 4 clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Confirmed clients. Unconfirmed records are limited to the same number, and to 1,024.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Bytes of replies that sessions may make the server keep.
    pub cached_bytes: usize,
    /// Opens, and locks of an owner under an open.
    pub states: usize,
    /// Delegations, with those that are revoked and that their client has not freed. They do not count as
    /// states, so that no client fails to open a file because of delegations.
    pub delegations: usize,
    /// Open owners and lock owners of minor version 0.
    pub owners: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let cached_bytes = 256 << 20;
        Bounds {
            clients: 8192,
            sessions: 16_384,
            cached_bytes,
            states: 1 << 20,
            delegations: 1 << 20,
            owners: 1 << 18,
        }
    }
}

/// Something of which the table may be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    Clients,
    Sessions,
    States,
    Owners,
}

/// A resource that a file system needs for every file that clients have open, or for locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    Files,
    Locks,
}

impl Below {
    fn takes(self, held: &HeldState) -> bool {
        match self {
            Below::Files => !matches!(held.kind, Kind::Lock { .. }),
            Below::Locks => matches!(held.kind, Kind::Lock { .. }),
        }
    }
}

/// Frees capacity in the file systems, by dropping clients.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    /// Serializes the waiters: what is freed for one may suffice for all.
    turn: Mutex<()>,
    /// Counts the clients that were dropped.
    made: AtomicU64,
    /// When a client was last asked for delegations, so that it ends opens.
    asked: parking_lot::Mutex<Option<Instant>>,
}

/// The shortest time between two requests for delegations.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

impl Capacity {
    /// The counter's value. A caller reads it before an attempt that may find no capacity.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// May a client be asked for delegations now? If so, the next one may be asked a second later.
    pub(crate) fn may_ask(&self, now: Instant) -> bool {
        let mut asked = self.asked.lock();
        let may = asked.is_none_or(|at| now.duration_since(at) >= ASK_INTERVAL);
        if may {
            *asked = Some(now);
        }
        may
    }

    /// Waits for the turn of this waiter, which ends when the guard is dropped.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Counts a client that was dropped.
    pub(crate) fn note_made(&self) {
        self.made.fetch_add(1, Ordering::Release);
    }
}

impl Tables {
    /// Is there capacity for one more?
    pub(crate) fn has(&self, what: Scarce) -> bool {
        match what {
            Scarce::Clients => self.clients.has_capacity(),
            Scarce::Sessions => self.sessions.has_capacity(),
            Scarce::States => self.stateids.has_capacity(),
            Scarce::Owners => self.owners.has_capacity(),
        }
    }

    /// The client to drop for one more, if there is no capacity: a courtesy client, else an idle client.
    pub(crate) fn dispensable(&self, what: Scarce) -> Option<Clientid> {
        self.courtesy_with(|client| self.takes(client, what)).or_else(|| self.idle_with(what))
    }

    /// The courtesy client to drop after a file system ran out of capacity.
    pub(crate) fn dispensable_below(&self, export: ExportId, what: Below) -> Option<Clientid> {
        let takes = |held: &HeldState| held.export == export && what.takes(held);
        self.courtesy_with(|client| self.stateids.of_client(client.id).any(takes))
    }

    fn takes(&self, client: &Client, what: Scarce) -> bool {
        match what {
            Scarce::Clients => true,
            Scarce::Sessions => self.sessions.has(client.id),
            Scarce::States => self.stateids.has_opens(client.id),
            Scarce::Owners => client.name.generation == Generation::Minor0 && self.owners.any_of(client.id),
        }
    }

    /// An idle client to drop for a record or session if there is no courtesy client. It holds nothing, and
    /// belongs to the peer with the most such clients. It makes itself known again and loses nothing.
    fn idle_with(&self, what: Scarce) -> Option<Clientid> {
        if !matches!(what, Scarce::Clients | Scarce::Sessions) {
            return None;
        }
        self.clients.of_greatest(|client| self.takes(client, what) && !self.has_state(client.id))
    }

    /// The courtesy client with the oldest renewal, among those for which `what` is true.
    fn courtesy_with(&self, what: impl Fn(&Client) -> bool) -> Option<Clientid> {
        self.clients.oldest_courtesy(Instant::now(), what)
    }
}
