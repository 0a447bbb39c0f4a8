//! Client records: who our clients are, and until when their leases last (RFC 8881, sections 2.4 and 8.3; RFC 7530,
//! section 9.1).
//!
//! A pure table. A client makes itself known under a name of its choice; the record it gets is unconfirmed until it
//! shows that it received the answer, and replaces the confirmed one under that name only then. Minor version 0
//! ([`setclientid`]) and the minor versions with sessions ([`exchange_id`]) do this in words of their own, and their
//! names are apart.
//!
//! A client that comes back after a restart is the holder that it was, so that what file systems hold for it is still
//! its own. No holder is ever another client: the epoch is the high half of their numbers too.
//!
//! A client whose lease has run out is *silent*, not gone: what it holds stays until somebody is in conflict with it,
//! what it takes up is wanted ([`super::capacity`]), or a day has passed.

mod exchange_id;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod setclientid;
mod unconfirmed;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::{Clientid, CreateSessionOk, Status, Verifier};
use rpc::Credential;
use rpc::account::Peer;
use tokio::time::Instant;
use vfs::HolderId;

use super::capacity::Bounds;
use super::ids::IdKey;
use super::maker::Maker;
use super::records::Holders;
use unconfirmed::{UNCONFIRMED_MAX, Unconfirmed};

pub(crate) use exchange_id::{Exchanged, SessionConfirm};
pub(crate) use setclientid::{CallbackAddress, Setclientid};

/// How long a silent client keeps what it holds if it is in nobody's way.
const COURTESY: Duration = Duration::from_secs(24 * 60 * 60);

/// The name that a client chose for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientName {
    pub(crate) generation: Generation,
    /// `co_ownerid` or `nfs_client_id4.id`: at most 1,024 bytes.
    pub(crate) ownerid: Bytes,
}

/// Which kind of client: their names do not mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Generation {
    /// Minor version 0.
    Minor0,
    /// Minor version 1 and up.
    Sessions,
}

/// The user that made a record, and alone may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Principal {
    None,
    User(u32),
    Other(u32),
}

impl From<&Credential> for Principal {
    fn from(credential: &Credential) -> Principal {
        match credential {
            Credential::None => Principal::None,
            Credential::Sys(sys) => Principal::User(sys.uid),
            Credential::Other(flavor) => Principal::Other(*flavor),
        }
    }
}

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: Clientid,
    pub(crate) name: ClientName,
    /// Which incarnation.
    pub(crate) verifier: Verifier,
    pub(crate) maker: Maker,
    pub(crate) holder: HolderId,
    /// When its lease was renewed last.
    pub(crate) renewed: Instant,
    /// It has an entry in the durable record.
    pub(crate) recorded: bool,
    /// It has said RECLAIM_COMPLETE.
    pub(crate) reclaim_complete: bool,
    pub(crate) way: Way,
}

/// What the minor versions keep apart.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Minor0 {
        /// What SETCLIENTID_CONFIRM must bring.
        confirm: Verifier,
        callback: CallbackAddress,
    },
    Sessions {
        /// That of the last CREATE_SESSION.
        sequence: u32,
        /// What it gave, and to whom; `None` before the first.
        created: Option<(CreateSessionOk, Principal)>,
    },
}

/// A client that is no more. What it held is to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) id: Clientid,
    pub(crate) holder: HolderId,
    /// Its name, if it has an entry in the durable record.
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
    /// Which life of the server this is.
    epoch: u32,
    ids_by: IdKey,
    lease: Duration,
    names: HashMap<ClientName, Named>,
    ids: HashMap<Clientid, ClientName>,
    holders: HashMap<HolderId, Clientid>,
    /// Who held state before the restart, and has not come back yet.
    before: Holders,
    /// Confirmed records at most; of those that are not, there is a bound beside it.
    most: usize,
    unconfirmed: Unconfirmed,
    next: u32,
    next_holder: u64,
    next_verifier: u64,
}

impl Clients {
    /// None yet, in this life of the server. Those who held state `before` are expected back.
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

    /// With so many clients, at most, and no more records that are not confirmed.
    pub(crate) fn up_to(self, most: usize) -> Clients {
        Clients { most, unconfirmed: Unconfirmed::up_to(most.min(UNCONFIRMED_MAX)), ..self }
    }

    /// The confirmed record with this id.
    pub(crate) fn confirmed(&self, id: Clientid) -> Option<&Client> {
        let named = self.names.get(self.ids.get(&id)?)?;
        named.confirmed.as_ref().filter(|client| client.id == id)
    }

    /// The same, to be changed.
    pub(crate) fn confirmed_mut(&mut self, id: Clientid) -> Option<&mut Client> {
        let named = self.names.get_mut(self.ids.get(&id)?)?;
        named.confirmed.as_mut().filter(|client| client.id == id)
    }

    /// The confirmed client that is this holder.
    pub(crate) fn holder(&self, holder: HolderId) -> Option<&Client> {
        self.confirmed(*self.holders.get(&holder)?)
    }

    /// A confirmed client of minor version 0, or what to tell whoever is not one.
    ///
    /// # Errors
    /// `StaleClientid` of another life; `Expired` of this one.
    pub(crate) fn of_minor0(&self, id: Clientid) -> Result<&Client, Status> {
        match self.confirmed(id).filter(|client| matches!(client.way, Way::Minor0 { .. })) {
            Some(client) => Ok(client),
            None if self.was_ours(id) => Err(Status::Expired),
            None => Err(Status::StaleClientid),
        }
    }

    /// Is the client of this number still there?
    pub(crate) fn lives(&self, number: u32) -> bool {
        self.confirmed(self.ids_by.client(self.epoch, number)).is_some()
    }

    /// Could we have given out the id in this life?
    pub(crate) fn was_ours(&self, id: Clientid) -> bool {
        let number = self.ids_by.client_number(self.epoch, id);
        number.is_some_and(|number| number < self.next && number != 0)
    }

    /// All that are confirmed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.names.values().filter_map(|named| named.confirmed.as_ref())
    }

    /// The client shows that it is there.
    pub(crate) fn renew(&mut self, id: Clientid, now: Instant) {
        if let Some(client) = self.confirmed_mut(id) {
            client.renewed = now;
        }
    }

    /// Has its lease run out?
    pub(crate) fn is_courtesy(&self, id: Clientid, now: Instant) -> bool {
        self.confirmed(id).is_none_or(|client| now.saturating_duration_since(client.renewed) > self.lease)
    }

    /// The client that has been silent for longest, of those that are `wanted`.
    pub(crate) fn oldest_courtesy(&self, now: Instant, wanted: impl Fn(&Client) -> bool) -> Option<Clientid> {
        let courtesy = self.iter().filter(|client| self.is_courtesy(client.id, now) && wanted(client));
        courtesy.min_by_key(|client| (client.renewed, client.id)).map(|client| client.id)
    }

    /// Of the peer with the most clients that are `wanted`: the one that was heard of longest ago.
    pub(crate) fn of_greatest(&self, wanted: impl Fn(&Client) -> bool) -> Option<Clientid> {
        let peer = |client: &Client| Peer::from(client.maker.address);
        let mut counts: HashMap<Peer, usize> = HashMap::new();
        let wanted: Vec<&Client> = self.iter().filter(|client| wanted(client)).collect();
        wanted.iter().for_each(|client| *counts.entry(peer(client)).or_default() += 1);
        let (greatest, _) = counts.into_iter().max_by_key(|(peer, count)| (*count, *peer))?;
        let of = wanted.into_iter().filter(|client| peer(client) == greatest);
        of.min_by_key(|client| (client.renewed, client.id)).map(|client| client.id)
    }

    /// When the next client falls silent, if none of them says anything.
    pub(crate) fn next_courtesy(&self, now: Instant) -> Option<Instant> {
        // Silence begins behind the end of the lease.
        let ends = self.iter().map(|client| client.renewed + self.lease + Duration::from_millis(1));
        ends.filter(|end| *end > now).min()
    }

    /// Clients that have been silent for longer than courtesy goes; unconfirmed records are dropped on the way.
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

    /// Who made the record with this id, confirmed or not?
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

    /// Enters an unconfirmed record in the place of the one that the name had.
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

    /// An unconfirmed record gives way.
    fn drop_unconfirmed(&mut self, id: Clientid) {
        let named = self.ids.get(&id).and_then(|name| self.names.get_mut(name));
        match named.and_then(|named| named.unconfirmed.take_if(|client| client.id == id)) {
            Some(client) => self.forget_unconfirmed(&client),
            None => self.unconfirmed.remove(id),
        }
    }

    /// What else is kept of an unconfirmed record goes, unless its id is a confirmed one's too.
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

    /// Makes the unconfirmed record of a name its confirmed one, and says which one that replaces.
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

    /// Did another principal hold state under this name before the restart? It may come back until grace is over.
    fn is_reserved(&self, name: &ClientName, maker: &Maker) -> bool {
        let before = self.before.get(name).and_then(|before| before.principal);
        before.is_some_and(|principal| principal != maker.principal)
    }

    /// There is nothing more to reclaim: the names of those who have not come back are free.
    pub(crate) fn end_grace(&mut self) {
        self.before.values_mut().for_each(|before| before.principal = None);
    }

    /// Is there room for one more client?
    pub(crate) fn has_capacity(&self) -> bool {
        self.holders.len() < self.most
    }

    fn next_id(&mut self) -> Clientid {
        let id = self.ids_by.client(self.epoch, self.next);
        // After four thousand million clients, ids of the first are taken again; the zero is none.
        self.next = self.next.checked_add(1).unwrap_or(1);
        id
    }

    fn next_holder(&mut self) -> HolderId {
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
