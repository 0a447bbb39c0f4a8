//! Room: whose state goes when there is none for more.
//!
//! A client whose lease has run out keeps what it holds out of courtesy, and courtesy ends when something is wanted that it
//! takes up: a record, a session, a state id, or a file system's room for open files (`vfs::Status::Resource`). Who has been
//! silent for longest goes first, and no more go than are needed. Where a record or session is wanted, a client that holds
//! nothing goes next, of the peer with the most: it makes itself known again. Else, a client whose lease is good loses
//! nothing but delegations that it does not use: these are recalled, and the asker is held until something has come back,
//! as for any recall.
//!
//! A client that holds nearly all state is told SERVERFAULT when the patience ends, and others DELAY: a program that opens
//! files until it may not would wait for itself for ever.
//!
//! Nobody is held whose client could then not give anything back: in minor version 0, where an owner's CLOSE waits for its
//! OPEN, and in a session of whose slots half are in use.

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::nfs4::Clientid;
use tokio::time::Instant;
use vfs::Caller;

use super::Tables;
use super::clients::{Client, Generation};
use super::stateids::{HeldState, Kind};
use crate::exports::ExportId;
use crate::front::{Front, Object};
use crate::nfs4::compound::Compound;

/// How much is kept of the clients of version 4, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Clients, confirmed. Of records that are not confirmed, there are as many or 1,024 at most.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Bytes that sessions may have us keep of replies.
    pub cached_bytes: usize,
    /// Opens, locks of an owner by an open, and delegations.
    pub states: usize,
    /// Open owners and lock owners of minor version 0.
    pub owners: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        let cached_bytes = 256 << 20;
        Bounds { clients: 8192, sessions: 16_384, cached_bytes, states: 1 << 20, owners: 1 << 18 }
    }
}

/// What there may be none of for one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    Clients,
    Sessions,
    States,
    Owners,
}

/// What a file system keeps for every file that clients have open, or for locks.
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

/// Who makes room in the file systems.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    /// One at a time: what is freed for one may do for all.
    turn: tokio::sync::Mutex<()>,
    /// Counts clients that had to go.
    made: AtomicU64,
}

impl Capacity {
    /// To be asked before the attempt that may find none.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }
}

impl Tables {
    fn has(&self, what: Scarce) -> bool {
        match what {
            Scarce::Clients => self.clients.has_capacity(),
            Scarce::Sessions => self.sessions.has_capacity(),
            Scarce::States => self.stateids.has_capacity(),
            Scarce::Owners => self.owners.has_capacity(),
        }
    }

    fn takes(&self, client: &Client, what: Scarce) -> bool {
        match what {
            Scarce::Clients => true,
            Scarce::Sessions => self.sessions.has(client.id),
            Scarce::States => self.stateids.of_client(client.id).next().is_some(),
            Scarce::Owners => client.name.generation == Generation::Minor0 && self.owners.any_of(client.id),
        }
    }

    /// Of whom a record or session goes, although no client is silent: a client that holds nothing, of the peer with the
    /// most. It makes itself known again, and loses nothing.
    fn idle_with(&self, what: Scarce) -> Option<Clientid> {
        if !matches!(what, Scarce::Clients | Scarce::Sessions) {
            return None;
        }
        self.clients.of_greatest(|client| self.takes(client, what) && !self.has_state(client.id))
    }

    /// The client that has been silent for longest, of those that take up some of it.
    fn courtesy_with(&self, what: impl Fn(&Client) -> bool) -> Option<Clientid> {
        self.clients.oldest_courtesy(Instant::now(), what)
    }
}

impl Front {
    /// Is there room in the tables for one more? There is, if that of clients who are silent will do.
    pub(crate) async fn capacity_for(&self, what: Scarce) -> bool {
        loop {
            let courtesy = {
                let tables = self.state.tables();
                if tables.has(what) {
                    return true;
                }
                tables.courtesy_with(|client| tables.takes(client, what)).or_else(|| tables.idle_with(what))
            };
            let Some(client) = courtesy else { return false };
            tracing::info!(?what, "a client that is silent, or holds nothing, has to make room");
            self.expire(client).await;
        }
    }

    /// A file system had no room, and `made` was what [`Capacity::made`] said before it was asked: a silent client goes, if none
    /// has gone meanwhile. False if there is none that takes up any of it.
    pub(crate) async fn capacity_below(&self, export: ExportId, what: Below, made: u64) -> bool {
        let _turn = self.state.capacity.turn.lock().await;
        if self.state.capacity.made() != made {
            return true;
        }
        let courtesy = {
            let tables = self.state.tables();
            let takes = |held: &HeldState| held.file.export == export && what.takes(held);
            tables.courtesy_with(|client| tables.stateids.of_client(client.id).any(takes))
        };
        let Some(client) = courtesy else { return false };
        tracing::info!(?what, "a silent client has to make room");
        self.expire(client).await;
        self.state.capacity.made.fetch_add(1, Ordering::Release);
        true
    }
}

impl Compound<'_> {
    /// A file system had no room for one more open file. Is it worth another try, before `limit`?
    pub(crate) async fn capacity_for_file(&self, object: &Object, made: u64, limit: Instant) -> bool {
        if self.front.capacity_below(object.export.id, Below::Files, made).await {
            return true;
        }
        let until = self.held_until(limit);
        // Also for one who is not held: his next attempt will find what has come back.
        let deadline = Some(until.unwrap_or_else(Instant::now));
        let made = object.export.fs.free_capacity(&Caller { deadline, ..object.caller.clone() }).await;
        let now = Instant::now();
        now < limit && (made || until.is_some_and(|until| until <= now))
    }

    /// Does the asker hold nearly all that is held? Then room will come of his own closes, or not at all.
    pub(crate) fn holds_most(&self) -> bool {
        let tables = self.front.state.tables();
        let client = tables.client_of(self).map(|client| client.id);
        client.is_some_and(|client| tables.stateids.is_most(client))
    }

    /// Until when the asker is held before it is looked again: no longer than until another client falls silent. `None` if
    /// he is not to be held.
    fn held_until(&self, limit: Instant) -> Option<Instant> {
        let (now, session) = (Instant::now(), self.slot.as_ref().map(|slot| slot.session));
        let tables = self.front.state.tables();
        tables.sessions.get(session?).filter(|session| !session.is_crowded())?;
        Some(tables.clients.next_courtesy(now).map_or(limit, |next| next.min(limit)))
    }
}
