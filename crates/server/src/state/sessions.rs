//! Sessions: their channels, the connections bound to them, and the slots that give exactly-once semantics
//! (RFC 8881, section 2.10).
//!
//! A pure table. `C` identifies a connection; [`Bond::is_closed`] tells whether it has closed. A slot keeps
//! a reply until its next request. The memory that all slots may use for replies is limited ([`promises`]).

mod channel;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod lowering;
mod promises;
mod slots;

use std::collections::HashMap;
use std::net::IpAddr;

use protocol::nfs4::{ChannelAttrs, Clientid, SequenceArgs, Sessionid, Status};
use xdr::Message;

use super::capacity::Bounds;
use super::footprint::of_map;
use super::ids::IdKey;
use super::maker::Maker;
use lowering::Lowering;
use promises::{Promises, promised};
use rpc::account::Peer;

pub(crate) use channel::{negotiated_back, negotiated_fore};
pub(crate) use slots::{Digest, Slots, Turn};

/// Sessions of one client at most.
const SESSIONS_PER_CLIENT_MAX: usize = 64;
/// Connections bound to one session at most; beyond it the oldest is forgotten.
const CONNECTIONS_PER_SESSION_MAX: usize = 64;

/// Addresses of a client from which connections may join a session by use; beyond it the oldest is
/// forgotten.
const ADDRESSES_PER_SESSION_MAX: usize = 16;

/// A connection, as sessions need to know it.
pub(crate) trait Bond: Clone + PartialEq {
    /// Has it closed?
    fn is_closed(&self) -> bool;
}

/// A connection of a session.
#[derive(Clone, Debug)]
pub(crate) struct Bound<C> {
    pub(crate) connection: C,
    /// It carries callbacks.
    pub(crate) back: bool,
}

/// The parameters of callbacks to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallbackTerms {
    /// Program number.
    pub(crate) program: u32,
    pub(crate) credential: rpc::Credential,
    /// The minor version of the session.
    pub(crate) minor: u32,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session<C> {
    pub(crate) client: Clientid,
    /// The maker of its CREATE_SESSION.
    pub(crate) maker: Maker,
    /// The addresses of its CREATE_SESSION and BIND_CONN_TO_SESSION. Another connection from one of them
    /// joins the session by use.
    addresses: Vec<IpAddr>,
    pub(crate) fore: ChannelAttrs,
    pub(crate) back: ChannelAttrs,
    pub(crate) callbacks: CallbackTerms,
    /// A callback failed on all of its connections.
    pub(crate) back_down: bool,
    /// The session has had a connection for callbacks.
    pub(crate) had_way_back: bool,
    pub(crate) connections: Vec<Bound<C>>,
    slots: Slots,
    lowering: Lowering,
}

impl<C: Bond> Session<C> {
    /// Is there a connection that can carry a callback?
    pub(crate) fn has_way_back(&self) -> bool {
        !self.back_down && self.connections.iter().any(|bound| bound.back && !bound.connection.is_closed())
    }

    /// Is the connection bound to the session?
    pub(crate) fn has(&self, connection: &C) -> bool {
        self.connections.iter().any(|bound| bound.connection == *connection)
    }

    /// Are so many requests in flight that the server should hold no more of them?
    pub(crate) fn is_crowded(&self) -> bool {
        self.slots.is_half_busy()
    }

    /// Open connections that carry callbacks, the newest first.
    pub(crate) fn ways_back(&self) -> impl Iterator<Item = &C> {
        let open = |bound: &&Bound<C>| bound.back && !bound.connection.is_closed();
        self.connections.iter().rev().filter(open).map(|bound| &bound.connection)
    }

    fn check(&self, peer: &Maker) -> Result<(), Status> {
        if !self.maker.is_reached_by(peer) {
            return Err(Status::BadSession);
        }
        if self.addresses.contains(&peer.address) { Ok(()) } else { Err(Status::ConnNotBoundToSession) }
    }

    fn bind(&mut self, connection: C, back: bool) {
        if let Some(bound) = self.connections.iter_mut().find(|bound| bound.connection == connection) {
            bound.back |= back;
        } else {
            self.connections.retain(|bound| !bound.connection.is_closed());
            if self.connections.len() >= CONNECTIONS_PER_SESSION_MAX {
                self.connections.remove(0);
            }
            self.connections.push(Bound { connection, back });
        }
        if back {
            (self.back_down, self.had_way_back) = (false, true);
        }
    }
}

/// A request as SEQUENCE sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving {
    pub(crate) sequence: SequenceArgs,
    /// Identifies the operations after SEQUENCE and the requester.
    pub(crate) digest: Digest,
    /// Bytes of the request, including its RPC header.
    pub(crate) bytes: usize,
    /// Operations of the compound, including SEQUENCE.
    pub(crate) operations: u32,
}

/// How to treat a request.
#[derive(Clone, Debug)]
pub(crate) enum Begun {
    /// It is new: execute it.
    Execute {
        client: Clientid,
        fore: ChannelAttrs,
        /// The highest slot id.
        highest_slot: u32,
        /// The highest slot id that the server would like the client to use.
        target_highest_slot: u32,
    },
    /// It is a retry: this was the reply, from the compound's status on.
    Replay(Message),
}

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions<C> {
    ids_by: IdKey,
    most: usize,
    next: u64,
    ids: HashMap<Sessionid, Session<C>>,
    clients: HashMap<Clientid, Vec<Sessionid>>,
    promises: Promises,
}

impl<C: Bond> Sessions<C> {
    /// An empty table.
    pub(crate) fn new(ids_by: IdKey) -> Sessions<C> {
        let Bounds { sessions: most, cached_bytes, .. } = Bounds::default();
        let promises = Promises::within(cached_bytes);
        Sessions { ids_by, most, next: 1, ids: HashMap::new(), clients: HashMap::new(), promises }
    }

    /// With a limit of `most` sessions and of `cached_bytes` for replies.
    pub(crate) fn up_to(self, most: usize, cached_bytes: usize) -> Sessions<C> {
        Sessions { most, promises: Promises::within(cached_bytes), ..self }
    }

    /// The attributes that a new session of this peer gets, out of those it asks for.
    pub(crate) fn granted(&self, fore: ChannelAttrs, maker: &Maker) -> ChannelAttrs {
        self.promises.grant(Peer::from(maker.address), fore)
    }

    /// See [`super::Footprint`]: sessions without their replies.
    pub(crate) fn bytes(&self) -> usize {
        let slots: usize = self.ids.values().map(|session| session.slots.bytes()).sum();
        of_map(&self.ids) + of_map(&self.clients) + slots
    }

    /// Bytes of the replies that are kept for retries.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.ids.values().map(|session| session.slots.reply_bytes()).sum()
    }

    /// Is there capacity for one more session?
    pub(crate) fn has_capacity(&self) -> bool {
        self.ids.len() < self.most
    }

    /// Creates a session. `connection` is its first connection, also for the backchannel if its flag is
    /// set.
    ///
    /// # Errors
    /// `Delay` if there are too many.
    pub(crate) fn create(
        &mut self,
        client: Clientid,
        (fore, back): (ChannelAttrs, ChannelAttrs),
        callbacks: CallbackTerms,
        maker: Maker,
        connection: Option<(C, bool)>,
    ) -> Result<Sessionid, Status> {
        let of_client = self.clients.get(&client).map_or(0, Vec::len);
        if of_client >= SESSIONS_PER_CLIENT_MAX || !self.has_capacity() {
            return Err(Status::Delay);
        }
        let id = self.ids_by.session(self.next);
        self.next += 1;
        self.clients.entry(client).or_default().push(id);
        let slots = Slots::new(fore.maxrequests);
        self.promises.add(Peer::from(maker.address), promised(&fore));
        let mut session = Session {
            client,
            addresses: vec![maker.address],
            maker,
            fore,
            back,
            callbacks,
            back_down: false,
            had_way_back: false,
            connections: Vec::new(),
            slots,
            lowering: Lowering::default(),
        };
        if let Some((connection, back)) = connection {
            session.bind(connection, back);
        }
        self.ids.insert(id, session);
        if let Some(greatest) = self.promises.greatest_when_short() {
            self.ask_for_slots(greatest);
        }
        Ok(id)
    }

    /// Asks the clients of a peer to give up slots, unless one of them was asked and still has its slots.
    fn ask_for_slots(&mut self, peer: Peer) {
        let of = |session: &&mut Session<C>| Peer::from(session.maker.address) == peer;
        let mut sessions: Vec<&mut Session<C>> = self.ids.values_mut().filter(of).collect();
        if sessions.iter().any(|session| session.lowering.is_asked()) {
            return;
        }
        let mut asked = 0;
        for session in &mut sessions {
            asked += usize::from(session.lowering.ask(session.fore.maxrequests));
        }
        tracing::info!(?peer, sessions = asked, "clients are asked for slots of their sessions");
    }

    /// The session.
    pub(crate) fn get(&self, id: Sessionid) -> Option<&Session<C>> {
        self.ids.get(&id)
    }

    /// As [`Sessions::get`], mutable.
    pub(crate) fn get_mut(&mut self, id: Sessionid) -> Option<&mut Session<C>> {
        self.ids.get_mut(&id)
    }

    /// The sessions of a client, the newest first.
    pub(crate) fn of(&self, client: Clientid) -> impl Iterator<Item = (Sessionid, &Session<C>)> {
        let ids = self.clients.get(&client).map_or(&[][..], Vec::as_slice);
        ids.iter().rev().filter_map(|id| Some((*id, self.ids.get(id)?)))
    }

    /// Does the client have any?
    pub(crate) fn has(&self, client: Clientid) -> bool {
        self.clients.get(&client).is_some_and(|ids| !ids.is_empty())
    }

    /// May this peer destroy the session?
    ///
    /// # Errors
    /// As of [`Sessions::join`]; `WrongCred` if the session belongs to another principal.
    pub(crate) fn check(&self, id: Sessionid, peer: &Maker) -> Result<(), Status> {
        let session = self.ids.get(&id).ok_or(Status::BadSession)?;
        session.check(peer)?;
        if session.maker.principal == peer.principal { Ok(()) } else { Err(Status::WrongCred) }
    }

    /// Destroys a session.
    ///
    /// # Errors
    /// `BadSession` if there is none.
    pub(crate) fn destroy(&mut self, id: Sessionid) -> Result<Clientid, Status> {
        let session = self.remove(id).ok_or(Status::BadSession)?;
        if let Some(ids) = self.clients.get_mut(&session.client) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.clients.remove(&session.client);
            }
        }
        Ok(session.client)
    }

    /// Destroys all sessions of a client.
    pub(crate) fn destroy_all(&mut self, client: Clientid) {
        for id in self.clients.remove(&client).unwrap_or_default() {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: Sessionid) -> Option<Session<C>> {
        let session = self.ids.remove(&id)?;
        self.promises.remove(Peer::from(session.maker.address), promised(&session.fore));
        Some(session)
    }

    /// Binds a connection to a session at its client's request.
    ///
    /// # Errors
    /// `BadSession` if this peer has no such session.
    pub(crate) fn bind(
        &mut self,
        id: Sessionid,
        (connection, back): (C, bool),
        peer: &Maker,
    ) -> Result<Clientid, Status> {
        let session = self.ids.get_mut(&id).ok_or(Status::BadSession)?;
        if !session.maker.is(peer) {
            return Err(Status::BadSession);
        }
        if !session.addresses.contains(&peer.address) {
            if session.addresses.len() >= ADDRESSES_PER_SESSION_MAX {
                session.addresses.remove(1); // the maker's address, at index 0, stays
            }
            session.addresses.push(peer.address);
        }
        session.bind(connection, back);
        Ok(session.client)
    }

    /// Adds a connection to the session because the client uses it for the session (RFC 8881, section
    /// 2.10.3.1). Several users of the client may share the connection, so only the peer is checked.
    ///
    /// # Errors
    /// `BadSession` if there is no such session or the peer does not reach it. `ConnNotBoundToSession` if
    /// the client has not bound a connection from this address.
    pub(crate) fn join(&mut self, id: Sessionid, connection: C, peer: &Maker) -> Result<(), Status> {
        let session = self.ids.get_mut(&id).ok_or(Status::BadSession)?;
        session.check(peer)?;
        session.bind(connection, false);
        Ok(())
    }

    /// SEQUENCE: finds the slot and decides whether the request is new.
    ///
    /// # Errors
    /// `ConnNotBoundToSession` if the connection has not joined the session; `BadSession`, `TooManyOps`,
    /// `ReqTooBig`, `BadSlot`, `SeqMisordered`, `SeqFalseRetry`, `RetryUncachedRep`; `Delay` if the request
    /// is still running.
    pub(crate) fn begin(&mut self, arriving: &Arriving, connection: &C) -> Result<Begun, Status> {
        let sequence = &arriving.sequence;
        let session = self.ids.get_mut(&sequence.sessionid).ok_or(Status::BadSession)?;
        if !session.has(connection) {
            return Err(Status::ConnNotBoundToSession);
        }
        if arriving.operations > session.fore.maxoperations {
            return Err(Status::TooManyOps);
        }
        if arriving.bytes > session.fore.maxrequestsize as usize {
            return Err(Status::ReqTooBig);
        }
        let turn = session.slots.begin(sequence.slotid, sequence.sequenceid, arriving.digest)?;
        match turn {
            Turn::Replay(reply) => Ok(Begun::Replay(reply)),
            Turn::Execute => {
                if let Some(slots) = session.lowering.arrives(sequence, &mut session.slots) {
                    let before = promised(&session.fore);
                    session.fore.maxrequests = slots;
                    let peer = Peer::from(session.maker.address);
                    self.promises.remove(peer, before - promised(&session.fore));
                }
                let highest_slot = session.fore.maxrequests.saturating_sub(1);
                Ok(Begun::Execute {
                    client: session.client,
                    fore: session.fore,
                    highest_slot,
                    target_highest_slot: session.lowering.target(highest_slot),
                })
            }
        }
    }

    /// The request of a slot is done. `reply` is the reply for a retry, if one is kept.
    pub(crate) fn complete(&mut self, id: Sessionid, slot: u32, reply: Option<Message>) {
        if let Some(session) = self.ids.get_mut(&id) {
            session.slots.complete(slot, reply);
        }
    }
}

#[cfg(test)]
mod tests;
