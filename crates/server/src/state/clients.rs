//! Client records: the clients of this server, and when their leases expire (RFC 8881, sections 2.4 and
//! 8.3; RFC 7530, section 9.1).
//!
//! A pure table. A client makes itself known under a name of its choice. Its record is unconfirmed until
//! the client shows that it received the answer; only then the record replaces the confirmed one under that
//! name. Minor version 0 ([`setclientid`]) and the minor versions with sessions ([`exchange_id`]) have
//! separate operations for this, and separate names.
//!
//! A client that returns after a server restart keeps its holder id, so that it still owns what file
//! systems hold for it. A holder id is never given to another client: its high half is the epoch.
//!
//! A client whose lease has expired is a *courtesy client*. Its state stays until another client conflicts
//! with it, until its capacity is needed ([`super::capacity`]), or until a day has passed.

mod exchange_id;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod setclientid;
mod unconfirmed;

use std::collections::HashMap;
use std::hash::Hasher;
use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::{Clientid, CreateSessionOk, Status, Verifier};
use rpc::Credential;
use rpc::account::Peer;
use siphasher::sip128::{Hasher128, SipHasher};
use tokio::time::Instant;
use vfs::HolderId;

use super::capacity::Bounds;
use super::footprint::of_map;
use super::ids::IdKey;
use super::maker::Maker;
use super::records::Holders;
use unconfirmed::{UNCONFIRMED_MAX, Unconfirmed};

pub(crate) use exchange_id::{Exchanged, SessionConfirm};
pub(crate) use setclientid::{CallbackAddress, Setclientid};

/// How long a courtesy client keeps its state if no client conflicts with it.
const COURTESY: Duration = Duration::from_secs(24 * 60 * 60);

/// The name that a client chose for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientName {
    pub(crate) generation: Generation,
    /// `co_ownerid` or `nfs_client_id4.id`: at most 1,024 bytes.
    pub(crate) ownerid: Bytes,
}

/// The kind of client. The names of the two kinds are separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Generation {
    /// Minor version 0.
    Minor0,
    /// Minor version 1 and up.
    Sessions,
    /// A host that locks through NLM. Only the durable record has such names: see [`super::hosts`].
    LockManager,
}

/// The user that made a record. Only this user may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Principal {
    None,
    User(u32),
    Other(u32),
    /// A principal of Kerberos, by a hash of its name. Only the administrator of a realm makes names.
    Kerberos(u128),
}

impl From<&Credential> for Principal {
    fn from(credential: &Credential) -> Principal {
        match credential {
            Credential::None => Principal::None,
            Credential::Sys(sys) => Principal::User(sys.uid),
            Credential::Tls => Principal::Other(rpc::auth::AUTH_TLS),
            Credential::Gss(_) => Principal::Other(rpc::rpcsec_gss::RPCSEC_GSS),
            Credential::Proven(proven) => {
                let mut hasher = SipHasher::new();
                hasher.write(proven.user.principal.as_bytes());
                Principal::Kerberos(hasher.finish128().as_u128())
            }
            Credential::Other(flavor) => Principal::Other(*flavor),
        }
    }
}

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: Clientid,
    pub(crate) name: ClientName,
    /// Identifies the client's incarnation.
    pub(crate) verifier: Verifier,
    pub(crate) maker: Maker,
    pub(crate) holder: HolderId,
    /// When its lease was last renewed.
    pub(crate) renewed: Instant,
    /// It has an entry in the durable record.
    pub(crate) recorded: bool,
    /// The client has sent RECLAIM_COMPLETE.
    pub(crate) reclaim_complete: bool,
    pub(crate) way: Way,
}

/// The parts of a record in which the minor versions differ.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Minor0 {
        /// The verifier that SETCLIENTID_CONFIRM must carry.
        confirm: Verifier,
        callback: CallbackAddress,
    },
    Sessions {
        /// The sequence id of the last CREATE_SESSION.
        sequence: u32,
        /// The result of the last CREATE_SESSION and its principal; `None` before the first.
        created: Option<(CreateSessionOk, Principal)>,
    },
}

/// A client that was removed. The caller must release what it held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) id: Clientid,
    pub(crate) holder: HolderId,
    /// Its name, if the client has an entry in the durable record.
    pub(crate) recorded: Option<ClientName>,
}

impl From<&Client> for Gone {
    fn from(client: &Client) -> Gone {
        let recorded = client.recorded.then(|| client.name.clone());
        Gone { id: client.id, holder: client.holder, recorded }
    }
}

/// The records under one name.
#[derive(Debug, Default)]
struct Named {
    confirmed: Option<Client>,
    unconfirmed: Option<Client>,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    /// The epoch of this server incarnation.
    epoch: u32,
    ids_by: IdKey,
    lease: Duration,
    names: HashMap<ClientName, Named>,
    ids: HashMap<Clientid, ClientName>,
    holders: HashMap<HolderId, Clientid>,
    /// The holders from before the restart that have not come back yet.
    before: Holders,
    /// The limit of confirmed records. Unconfirmed records have a separate limit.
    most: usize,
    unconfirmed: Unconfirmed,
    next: u32,
    next_holder: u64,
    next_verifier: u64,
}

impl Clients {
    /// An empty table of this server incarnation. The clients in `before` held state and are expected back.
    pub(crate) fn new((epoch, ids_by): (u32, IdKey), lease: Duration, before: Holders) -> Clients {
        Clients {
            epoch,
            ids_by,
            lease,
            names: HashMap::new(),
            ids: HashMap::new(),
            holders: HashMap::new(),
            before,
            most: Bounds::default().clients,
            unconfirmed: Unconfirmed::up_to(UNCONFIRMED_MAX),
            next: 1,
            next_holder: u64::from(epoch) << 32 | 1,
            next_verifier: 1,
        }
    }

    /// Limits the table to `most` clients, and to no more unconfirmed records than that.
    pub(crate) fn up_to(self, most: usize) -> Clients {
        Clients { most, unconfirmed: Unconfirmed::up_to(most.min(UNCONFIRMED_MAX)), ..self }
    }

    /// The confirmed record with this id.
    pub(crate) fn confirmed(&self, id: Clientid) -> Option<&Client> {
        let named = self.names.get(self.ids.get(&id)?)?;
        named.confirmed.as_ref().filter(|client| client.id == id)
    }

    /// As [`Clients::confirmed`], mutable.
    pub(crate) fn confirmed_mut(&mut self, id: Clientid) -> Option<&mut Client> {
        let named = self.names.get_mut(self.ids.get(&id)?)?;
        named.confirmed.as_mut().filter(|client| client.id == id)
    }

    /// The confirmed client with this holder id.
    pub(crate) fn holder(&self, holder: HolderId) -> Option<&Client> {
        self.confirmed(*self.holders.get(&holder)?)
    }

    /// A confirmed client of minor version 0.
    ///
    /// # Errors
    /// `StaleClientid` for an id of another incarnation; `Expired` for an id of this one.
    pub(crate) fn of_minor0(&self, id: Clientid) -> Result<&Client, Status> {
        match self.confirmed(id).filter(|client| matches!(client.way, Way::Minor0 { .. })) {
            Some(client) => Ok(client),
            None if self.was_ours(id) => Err(Status::Expired),
            None => Err(Status::StaleClientid),
        }
    }

    /// Does the client with this number still exist?
    pub(crate) fn lives(&self, number: u32) -> bool {
        self.confirmed(self.ids_by.client(self.epoch, number)).is_some()
    }

    /// Can this incarnation have given out the id?
    pub(crate) fn was_ours(&self, id: Clientid) -> bool {
        let number = self.ids_by.client_number(self.epoch, id);
        number.is_some_and(|number| number < self.next && number != 0)
    }

    /// All confirmed clients.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.names.values().filter_map(|named| named.confirmed.as_ref())
    }

    /// Renews the client's lease.
    pub(crate) fn renew(&mut self, id: Clientid, now: Instant) {
        if let Some(client) = self.confirmed_mut(id) {
            client.renewed = now;
        }
    }

    /// Has the client's lease expired?
    pub(crate) fn is_courtesy(&self, id: Clientid, now: Instant) -> bool {
        self.confirmed(id).is_none_or(|client| now.saturating_duration_since(client.renewed) > self.lease)
    }

    /// The courtesy client with the oldest renewal, among those that are `wanted`.
    pub(crate) fn oldest_courtesy(&self, now: Instant, wanted: impl Fn(&Client) -> bool) -> Option<Clientid> {
        let courtesy = self.iter().filter(|client| self.is_courtesy(client.id, now) && wanted(client));
        courtesy.min_by_key(|client| (client.renewed, client.id)).map(|client| client.id)
    }

    /// Finds the peer with the most `wanted` clients, and of these the one with the oldest renewal.
    pub(crate) fn of_greatest(&self, wanted: impl Fn(&Client) -> bool) -> Option<Clientid> {
        let peer = |client: &Client| Peer::from(client.maker.address);
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        let wanted: Vec<&Client> = self.iter().filter(|client| wanted(client)).collect();
        wanted.iter().for_each(|client| *counts.entry(peer(client)).or_default() += 1);
        let (greatest, _) = counts.into_iter().max_by_key(|(peer, count)| (*count, *peer))?;
        let of = wanted.into_iter().filter(|client| peer(client) == greatest);
        of.min_by_key(|client| (client.renewed, client.id)).map(|client| client.id)
    }

    /// When the next client becomes a courtesy client, if none of them renews.
    pub(crate) fn next_courtesy(&self, now: Instant) -> Option<Instant> {
        // A lease is still valid at the instant of its end.
        let ends = self.iter().map(|client| client.renewed + self.lease + Duration::from_millis(1));
        ends.filter(|end| *end > now).min()
    }

    /// The courtesy clients whose time is over: a day if they hold state, two leases otherwise. Also drops
    /// the unconfirmed records whose lease time is over.
    pub(crate) fn overdue(&mut self, now: Instant, has_state: impl Fn(Clientid) -> bool) -> Vec<Clientid> {
        let lease = self.lease;
        let silence = |client: &Client| now.saturating_duration_since(client.renewed);
        let mut dropped = Vec::new();
        for named in self.names.values_mut() {
            if let Some(client) = named.unconfirmed.take_if(|client| silence(client) > lease) {
                dropped.push(client);
            }
        }
        dropped.iter().for_each(|client| self.forget_unconfirmed(client));
        let courtesy =
            |client: &&Client| silence(client) > if has_state(client.id) { COURTESY } else { 2 * lease };
        self.iter().filter(courtesy).map(|client| client.id).collect()
    }

    /// Removes a client, confirmed or not.
    pub(crate) fn remove(&mut self, id: Clientid) -> Option<Gone> {
        let name = self.ids.remove(&id)?;
        self.unconfirmed.remove(id);
        let named = self.names.get_mut(&name)?;
        named.unconfirmed.take_if(|client| client.id == id);
        let gone = named.confirmed.take_if(|client| client.id == id).map(|client| Gone::from(&client));
        if named.confirmed.is_none() && named.unconfirmed.is_none() {
            self.names.remove(&name);
        }
        if let Some(gone) = &gone {
            self.holders.remove(&gone.holder);
        }
        gone
    }

    /// The maker of the record with this id, confirmed or not.
    pub(crate) fn maker(&self, id: Clientid) -> Option<&Maker> {
        let (confirmed, unconfirmed) = self.named(self.ids.get(&id)?);
        let records = confirmed.into_iter().chain(unconfirmed);
        records.filter(|client| client.id == id).map(|client| &client.maker).next()
    }

    fn named(&self, name: &ClientName) -> (Option<&Client>, Option<&Client>) {
        self.names
            .get(name)
            .map_or((None, None), |named| (named.confirmed.as_ref(), named.unconfirmed.as_ref()))
    }

    /// Enters an unconfirmed record, in place of the name's previous unconfirmed one.
    fn enter(&mut self, client: Client) {
        let (id, name, peer) = (client.id, client.name.clone(), Peer::from(client.maker.address));
        let replaced = self.names.entry(name.clone()).or_default().unconfirmed.replace(client);
        if let Some(replaced) = replaced {
            self.forget_unconfirmed(&replaced);
        }
        while let Some(oldest) = self.unconfirmed.to_go() {
            self.drop_unconfirmed(oldest);
        }
        self.unconfirmed.enter(id, peer);
        self.ids.insert(id, name);
    }

    /// Drops an unconfirmed record to make place for another.
    fn drop_unconfirmed(&mut self, id: Clientid) {
        let named = self.ids.get(&id).and_then(|name| self.names.get_mut(name));
        match named.and_then(|named| named.unconfirmed.take_if(|client| client.id == id)) {
            Some(client) => self.forget_unconfirmed(&client),
            None => self.unconfirmed.remove(id),
        }
    }

    /// Removes the other traces of an unconfirmed record, except an id that a confirmed record has too.
    fn forget_unconfirmed(&mut self, client: &Client) {
        self.unconfirmed.remove(client.id);
        if self.confirmed(client.id).is_some() {
            return;
        }
        self.ids.remove(&client.id);
        if self
            .names
            .get(&client.name)
            .is_some_and(|named| named.confirmed.is_none() && named.unconfirmed.is_none())
        {
            self.names.remove(&client.name);
        }
    }

    /// Makes the unconfirmed record of a name its confirmed one, and returns the one that it replaces.
    fn confirm(&mut self, name: &ClientName, now: Instant) -> Option<Gone> {
        let named = self.names.get_mut(name)?;
        let mut client = named.unconfirmed.take()?;
        self.unconfirmed.remove(client.id);
        client.renewed = now;
        client.holder = self.before.remove(name).map_or(client.holder, |before| before.holder);
        self.holders.insert(client.holder, client.id);
        let replaced = named.confirmed.replace(client).as_ref().map(Gone::from)?;
        self.ids.remove(&replaced.id);
        self.holders.remove(&replaced.holder);
        Some(replaced)
    }

    /// Did another principal hold state under this name before the restart? The name is reserved for it
    /// during grace.
    fn is_reserved(&self, name: &ClientName, maker: &Maker) -> bool {
        let before = self.before.get(name).and_then(|before| before.principal);
        before.is_some_and(|principal| principal != maker.principal)
    }

    /// Grace is over: the names of clients that have not come back are free.
    pub(crate) fn end_grace(&mut self) {
        self.before.values_mut().for_each(|before| before.principal = None);
    }

    /// See [`super::Footprint`].
    pub(crate) fn bytes(&self) -> usize {
        of_map(&self.names) + of_map(&self.ids) + of_map(&self.holders)
    }

    /// Is there capacity for one more client?
    pub(crate) fn has_capacity(&self) -> bool {
        self.holders.len() < self.most
    }

    fn next_id(&mut self) -> Clientid {
        let id = self.ids_by.client(self.epoch, self.next);
        // After 2³² clients the numbers start again from 1. Zero is never a client's number.
        self.next = self.next.checked_add(1).unwrap_or(1);
        id
    }

    pub(super) fn next_holder(&mut self) -> HolderId {
        self.next_holder += 1;
        HolderId(self.next_holder - 1)
    }

    fn next_verifier(&mut self) -> Verifier {
        self.next_verifier += 1;
        self.ids_by.verifier(self.next_verifier)
    }
}

#[cfg(test)]
mod tests;
