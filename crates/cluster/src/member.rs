//! One member, as a machine: the answers of the store and the time go in, transactions and orders come out.
//!
//! The crate's header has the four rules. The rest is here:
//!
//! - One transaction is in flight at a time. Each puts the member's own record, on the condition that it is
//!   unchanged, and does at most one thing besides: release servers, fence a silent member, or take servers.
//! - If a transaction has no answer, nobody knows whether it was carried out. The next answer tells: the own
//!   record then has the beat of that transaction, or an older one. In the first case the term counts from
//!   when that transaction was sent.
//! - A member that drains says so in its record, and gives its servers away when the others have had the
//!   time to see it. From then on they look often, so that a server is taken soon after it was released.
//! - A member whose record is gone was fenced. It runs nothing from then on, and joins again under a new
//!   incarnation, so that no record of a server seems to be held by it again.

mod view;

use std::collections::{BTreeMap, BTreeSet};

use crate::assign::{Candidate, assign};
use crate::records::{Holder, Keys, MemberRecord, ServerRecord};
use crate::store::{Change, Committed, Condition, StoreError, Transaction};
use crate::times::{Moment, Times};

pub use view::View;

/// Servers that one transaction takes or releases. etcd allows 128 operations.
const AT_ONCE: usize = 32;
/// Transactions without an answer that are remembered. They end with the first answer.
const UNKNOWN_MAX: usize = 64;

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its name, unique in the cluster.
    pub name: String,
    /// A random text: no two lives of a member have the same.
    pub life: String,
    /// Its machine and directory ([`MemberRecord::place`]).
    pub place: String,
    /// The version of the program.
    pub version: String,
    /// A digest of what all members must have in common.
    pub digest: String,
}

/// The servers that this member runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    /// Until when it may run them. None if it may run nothing.
    pub until: Option<Moment>,
    /// The servers.
    pub run: BTreeMap<String, Run>,
    /// Servers to give away. They are to be stopped, and reported by [`Member::stopped`] even if they have
    /// never run here.
    pub give: BTreeMap<String, Run>,
}

/// A server that this member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// Grows whenever a member takes the server.
    pub epoch: u64,
    /// The revision of the server's record. It changes when another member takes the server.
    pub changed_at: u64,
}

/// The member cannot be part of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store refuses.
    #[error("{0}")]
    Store(String),
    /// The prefix of the cluster in the store is used for something else.
    #[error("{key} in etcd is not of this version of Leasehold; choose another name of the cluster")]
    Foreign {
        /// The key that is not understood.
        key: String,
    },
    /// Another living member has other tables.
    #[error(
        "member {member} has other [[server]] or [[origin]] tables, or another handle key; all members must have the same"
    )]
    Differs {
        /// That member.
        member: String,
    },
    /// Another living member has this name.
    #[error("a member {name} is in the cluster already, from {place}; each member needs a name of its own")]
    NameInUse {
        /// The name.
        name: String,
        /// Where that one is.
        place: String,
    },
    /// The store has an older state than it had before.
    #[error(
        "etcd has gone back from revision {before} to {now}: it was restored from a copy; stop all members, then start them"
    )]
    WentBack {
        /// The revision that was seen.
        before: u64,
        /// The present one.
        now: u64,
    },
}

/// Is this member part of the cluster, as far as it knows?
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Standing {
    Out,
    In { incarnation: String, changed_at: u64, until: Moment, since: Moment },
}

/// A transaction in flight, or one whose answer is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sent {
    at: Moment,
    beat: u64,
    /// The incarnation that it puts. None if it puts no record.
    incarnation: Option<String>,
    /// It removes the own record.
    leaves: bool,
}

/// Another member, as seen by this one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    changed_at: u64,
    /// When this revision was first seen.
    since: Moment,
    incarnation: String,
    /// When this incarnation was first seen.
    first: Moment,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    identity: Identity,
    keys: Keys,
    times: Times,
    /// The addresses of all virtual servers.
    servers: Vec<String>,
    draining: bool,
    leaving: bool,
    /// When the record first said that this member drains or leaves.
    announced: Option<Moment>,
    standing: Standing,
    beat: u64,
    in_flight: Option<Sent>,
    unknown: Vec<Sent>,
    last_sent: Option<Moment>,
    view: Option<View>,
    peers: BTreeMap<String, Peer>,
    /// Servers that are held and are being given away. The value is true if they do not run any more. A
    /// server is not ordered again before it was released and taken again: its user may be stopping it.
    giving: BTreeMap<String, bool>,
}

impl Member {
    /// A member of the cluster `cluster` that has not joined yet. `servers` are the addresses of all virtual
    /// servers.
    pub fn new(cluster: &str, identity: Identity, servers: Vec<String>, times: Times) -> Member {
        Member {
            identity,
            keys: Keys::new(cluster),
            times,
            servers,
            draining: false,
            leaving: false,
            announced: None,
            standing: Standing::Out,
            beat: 0,
            in_flight: None,
            unknown: Vec::new(),
            last_sent: None,
            view: None,
            peers: BTreeMap::new(),
            giving: BTreeMap::new(),
        }
    }

    /// The servers that this member runs, and until when.
    pub fn orders(&mut self, now: Moment) -> Orders {
        let Standing::In { until, .. } = self.standing else { return Orders::default() };
        self.decide_what_to_give(now);
        let mine = self.held().filter(|(server, _)| !self.giving.contains_key(*server));
        let run = mine.map(|(server, (record, changed_at))| {
            (server.clone(), Run { epoch: record.epoch, changed_at: *changed_at })
        });
        let run = run.collect();
        let give = self.held().filter(|(server, _)| self.giving.get(*server) == Some(&false));
        let give = give.map(|(server, (record, changed_at))| {
            (server.clone(), Run { epoch: record.epoch, changed_at: *changed_at })
        });
        Orders { until: Some(until), run, give: give.collect() }
    }

    /// Gives all servers away, or takes part again.
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Gives all servers away, and leaves when none is left.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Has it left, or was it never in?
    pub fn is_out(&self) -> bool {
        self.standing == Standing::Out && self.in_flight.is_none()
    }

    /// A server that is to be given away in this epoch does not run: nothing answers for it here.
    pub fn stopped(&mut self, server: &str, epoch: u64) {
        let is_it = self.held().any(|(held, (record, _))| held == server && record.epoch == epoch);
        if let Some(stopped) = self.giving.get_mut(server).filter(|_| is_it) {
            *stopped = true;
        }
    }

    fn decide_what_to_give(&mut self, now: Moment) {
        let assigned = self.assigned(now);
        let is_mine = |server: &String| assigned.get(server.as_str()) == Some(&&self.identity.name[..]);
        let given: Vec<String> = self.held().map(|(server, _)| server.clone()).collect();
        let given: Vec<String> = given.into_iter().filter(|server| !is_mine(server)).collect();
        for server in given {
            self.giving.entry(server).or_insert(false);
        }
    }

    /// When the next transaction is to be sent.
    pub fn due(&self, now: Moment) -> Moment {
        let period = if self.expects_servers(now) { self.times.period() / 16 } else { self.times.period() };
        let regular = self.last_sent.map_or(now, |sent| sent + period);
        if self.unknown.is_empty() && self.has_to_act(now) { now } else { regular }
    }

    /// Does another member have servers that it will give to this one? They have no member from then until
    /// this one sees it. The other one drains, or this one has just settled. Otherwise the two may not
    /// agree, for as long as they see each other differently.
    fn expects_servers(&self, now: Moment) -> bool {
        let (Some(view), Standing::In { since, .. }) = (&self.view, &self.standing) else { return false };
        let is_new = now < *since + self.times.settle + self.times.term * 2;
        let others = view.members.iter().filter(|(name, _)| **name != self.identity.name);
        let draining: BTreeSet<&str> =
            others.filter(|(_, (record, _))| record.draining).map(|(name, _)| &**name).collect();
        if !is_new && draining.is_empty() {
            return false;
        }
        let gives = |holder: &str| draining.contains(holder) || (is_new && holder != self.identity.name);
        let assigned = self.assigned(now);
        let mine = assigned.iter().filter(|(_, member)| **member == self.identity.name);
        mine.filter_map(|(server, _)| view.holder(server)).any(gives)
    }

    /// Does this member give its servers away? It lets the others know before.
    fn gives(&self, now: Moment) -> bool {
        self.announced.is_some_and(|announced| now >= announced + self.times.period())
    }

    fn has_to_act(&self, now: Moment) -> bool {
        let Some(view) = &self.view else { return true };
        match &self.standing {
            Standing::Out => {
                !self.leaving && self.may_join(now, view).is_ok_and(|replaced| replaced.is_some())
            }
            Standing::In { .. } => {
                !self.releases().is_empty()
                    || self.silent(now).is_some()
                    || !self.takes(now).is_empty()
                    || self.leaves()
            }
        }
    }

    /// The next transaction. The caller sends it at once, and gives the answer to [`Member::answered`] before
    /// it asks for another one.
    pub fn next(&mut self, now: Moment) -> Transaction {
        self.beat += 1;
        let (transaction, incarnation, leaves) = match &self.standing {
            Standing::Out => self.joining(now),
            Standing::In { incarnation, changed_at, .. } => {
                let incarnation = incarnation.clone();
                let (transaction, leaves) = self.acting(now, &incarnation, *changed_at);
                (transaction, Some(incarnation).filter(|_| !leaves), leaves)
            }
        };
        self.in_flight = Some(Sent { at: now, beat: self.beat, incarnation, leaves });
        self.last_sent = Some(now);
        transaction
    }

    fn record(&self, incarnation: &str) -> Vec<u8> {
        let Identity { place, version, digest, .. } = &self.identity;
        let record = MemberRecord {
            incarnation: incarnation.to_owned(),
            beat: self.beat,
            place: place.clone(),
            version: version.clone(),
            digest: digest.clone(),
            draining: self.draining || self.leaving,
        };
        serde_json::to_vec(&record).unwrap_or_default()
    }

    fn own_key(&self) -> String {
        self.keys.member(&self.identity.name)
    }

    /// The transaction of a member that is not in: it looks, fences who is in the way, or joins.
    fn joining(&self, now: Moment) -> (Transaction, Option<String>, bool) {
        let look = Transaction { prefix: self.keys.live(), ..Transaction::default() };
        let Some(view) = self.view.as_ref().filter(|_| !self.leaving) else { return (look, None, false) };
        if let Some(silent) = self.silent(now).filter(|name| **name != self.identity.name) {
            return (self.fencing(look, silent), None, false);
        }
        let Ok(Some(replaced)) = self.may_join(now, view) else { return (look, None, false) };
        let incarnation = format!("{}.{}", self.identity.life, self.beat);
        let mut conditions = vec![Condition { key: self.own_key(), changed_at: replaced }];
        let mut changes = vec![Change::Put { key: self.own_key(), value: self.record(&incarnation) }];
        if view.is_empty() {
            conditions.push(Condition { key: self.keys.format(), changed_at: 0 });
            let value = crate::records::FORMAT.to_vec();
            changes.push(Change::Put { key: self.keys.format(), value });
        }
        (Transaction { conditions, changes, ..look }, Some(incarnation), false)
    }

    /// The revision of the own record that may be replaced (zero: there is none), or none if an earlier one
    /// may still be alive.
    fn may_join(&self, now: Moment, view: &View) -> Result<Option<u64>, Refusal> {
        let others = view.members.iter().filter(|(name, _)| **name != self.identity.name);
        for (name, (record, _)) in others {
            if record.digest != self.identity.digest && !self.is_silent(now, name) {
                return Err(Refusal::Differs { member: name.clone() });
            }
        }
        Ok(match view.members.get(&self.identity.name) {
            None => Some(0),
            Some((record, changed_at)) if record.place == self.identity.place => Some(*changed_at),
            Some((_, changed_at)) => self.is_silent(now, &self.identity.name).then_some(*changed_at),
        })
    }

    /// The transaction of a member that is in: a beat, and one thing more.
    fn acting(&self, now: Moment, incarnation: &str, changed_at: u64) -> (Transaction, bool) {
        let own = self.own_key();
        let mut beat = Transaction {
            conditions: vec![Condition { key: own.clone(), changed_at }],
            changes: Vec::new(),
            prefix: self.keys.live(),
        };
        if self.leaves() {
            beat.changes.push(Change::Delete { key: own });
            return (beat, true);
        }
        beat.changes.push(Change::Put { key: own, value: self.record(incarnation) });
        let releases = self.releases();
        if !releases.is_empty() {
            return (self.setting(beat, releases, None), false);
        }
        if let Some(silent) = self.silent(now) {
            return (self.fencing(beat, silent), false);
        }
        let takes = self.takes(now);
        let holder = Holder { member: self.identity.name.clone(), incarnation: incarnation.to_owned() };
        (self.setting(beat, takes, Some(&holder)), false)
    }

    fn fencing(&self, mut transaction: Transaction, silent: &str) -> Transaction {
        let key = self.keys.member(silent);
        if let Some(peer) = self.peers.get(silent) {
            let condition = Condition { key: key.clone(), changed_at: peer.changed_at };
            transaction.conditions.push(condition);
            transaction.changes.push(Change::Delete { key });
        }
        transaction
    }

    /// Takes servers, or releases them if there is no holder.
    fn setting(
        &self,
        mut transaction: Transaction,
        servers: Vec<String>,
        holder: Option<&Holder>,
    ) -> Transaction {
        for server in servers {
            let known = self.view.as_ref().and_then(|view| view.servers.get(&server));
            let (epoch, changed_at) = known.map_or((0, 0), |(record, at)| (record.epoch, *at));
            let epoch = if holder.is_some() { epoch + 1 } else { epoch };
            let record = ServerRecord { epoch, holder: holder.cloned() };
            let key = self.keys.server(&server);
            transaction.conditions.push(Condition { key: key.clone(), changed_at });
            let value = serde_json::to_vec(&record).unwrap_or_default();
            transaction.changes.push(Change::Put { key, value });
        }
        transaction
    }

    /// The answer to the transaction in flight.
    ///
    /// # Errors
    /// If this member cannot be part of the cluster. It keeps its term, if it has one.
    pub fn answered(&mut self, now: Moment, answer: Result<Committed, StoreError>) -> Result<(), Refusal> {
        let Some(sent) = self.in_flight.take() else { return Ok(()) };
        let committed = match answer {
            Ok(committed) => committed,
            Err(StoreError::Unknown(_)) => {
                if (sent.incarnation.is_some() || sent.leaves) && self.unknown.len() < UNKNOWN_MAX {
                    self.unknown.push(sent);
                }
                return Ok(());
            }
            Err(StoreError::Refused(text)) => return Err(Refusal::Store(text)),
        };
        if let Some(before) = self.view.as_ref().map(|view| view.revision)
            && committed.revision < before
        {
            return Err(Refusal::WentBack { before, now: committed.revision });
        }
        let view = View::parse(&self.keys, &committed)?;
        self.see(now, &view);
        self.view = Some(view);
        self.announced = match self.announced {
            _ if !(self.draining || self.leaving) => None,
            None => self.is_announced().then_some(now),
            announced => announced,
        };
        if committed.succeeded && sent.leaves {
            self.standing = Standing::Out;
        } else if committed.succeeded
            && let Some(incarnation) = &sent.incarnation
        {
            self.is_in(now, incarnation, committed.revision, sent.at);
        } else {
            self.find_self(now);
        }
        if let (Standing::Out, Some(view), false) = (&self.standing, &self.view, self.leaving) {
            let in_use = view.members.get(&self.identity.name);
            if self.may_join(now, view)?.is_none()
                && let Some((other, _)) = in_use
            {
                let name = self.identity.name.clone();
                return Err(Refusal::NameInUse { name, place: other.place.clone() });
            }
        }
        let held: BTreeSet<String> = self.held().map(|(server, _)| server.clone()).collect();
        self.giving.retain(|server, _| held.contains(server));
        Ok(())
    }

    /// A record of this member was put by a transaction that was sent at `sent`.
    fn is_in(&mut self, now: Moment, incarnation: &str, changed_at: u64, sent: Moment) {
        let end = sent + self.times.term;
        let (until, since) = match &self.standing {
            Standing::In { until, since, incarnation: before, .. } if before == incarnation => {
                (end.max(*until), *since)
            }
            _ => (end, now),
        };
        self.standing = Standing::In { incarnation: incarnation.to_owned(), changed_at, until, since };
        // Those that have not been carried out never will: they need the record as it was.
        self.unknown.clear();
    }

    /// Finds out from the view what became of the transactions without an answer.
    fn find_self(&mut self, now: Moment) {
        let found = self.view.as_ref().and_then(|view| view.members.get(&self.identity.name)).cloned();
        if let (Standing::In { changed_at, .. }, Some((_, seen))) = (&self.standing, &found)
            && changed_at == seen
        {
            return;
        }
        if let Some((record, changed_at)) = &found {
            let is_it = |sent: &&Sent| {
                sent.beat == record.beat && sent.incarnation.as_ref() == Some(&record.incarnation)
            };
            if let Some(sent) = self.unknown.iter().find(is_it).cloned() {
                self.is_in(now, &record.incarnation, *changed_at, sent.at);
                return;
            }
        }
        self.standing = Standing::Out;
        self.giving.clear();
        self.unknown.clear();
    }

    /// Does the own record say that this member drains?
    fn is_announced(&self) -> bool {
        let own = self.view.as_ref().and_then(|view| view.members.get(&self.identity.name));
        own.is_some_and(|(record, _)| record.draining)
    }

    /// Notes which revisions of other members there are.
    fn see(&mut self, now: Moment, view: &View) {
        self.peers.retain(|name, _| view.members.contains_key(name));
        for (name, (record, changed_at)) in &view.members {
            let changed_at = *changed_at;
            let incarnation = record.incarnation.clone();
            let peer = self.peers.entry(name.clone()).or_insert_with(|| Peer {
                changed_at,
                since: now,
                incarnation: incarnation.clone(),
                first: now,
            });
            if peer.changed_at != changed_at {
                (peer.changed_at, peer.since) = (changed_at, now);
            }
            if peer.incarnation != incarnation {
                (peer.incarnation, peer.first) = (incarnation, now);
            }
        }
    }

    fn is_silent(&self, now: Moment, name: &str) -> bool {
        self.peers.get(name).is_some_and(|peer| now >= peer.since + self.times.patience())
    }

    /// A member that has not been heard of for too long.
    fn silent(&self, now: Moment) -> Option<&String> {
        let is_other = |name: &&String| self.standing == Standing::Out || **name != self.identity.name;
        self.peers.keys().filter(is_other).find(|name| self.is_silent(now, name))
    }

    fn incarnation(&self) -> Option<&str> {
        match &self.standing {
            Standing::In { incarnation, .. } => Some(incarnation),
            Standing::Out => None,
        }
    }

    /// The servers that this member has, by the store.
    fn held(&self) -> impl Iterator<Item = (&String, &(ServerRecord, u64))> {
        let servers = self.view.iter().flat_map(|view| &view.servers);
        servers.filter(|(_, (record, _))| {
            let by_me = |holder: &Holder| {
                holder.member == self.identity.name && Some(&holder.incarnation[..]) == self.incarnation()
            };
            record.holder.as_ref().is_some_and(by_me)
        })
    }

    /// The member for each server.
    fn assigned(&self, now: Moment) -> BTreeMap<&str, &str> {
        let Some(view) = &self.view else { return BTreeMap::new() };
        let takes_part = |name: &str, record: &MemberRecord| {
            let draining = if name == self.identity.name { self.gives(now) } else { record.draining };
            !draining && (name == self.identity.name || !self.is_silent(now, name))
        };
        let settled = |name: &str| {
            let first = match &self.standing {
                Standing::In { since, .. } if name == self.identity.name => Some(*since),
                _ => self.peers.get(name).map(|peer| peer.first),
            };
            first.is_some_and(|first| now >= first + self.times.settle)
        };
        let candidates: Vec<Candidate<'_>> = view
            .members
            .iter()
            .filter(|(name, (record, _))| takes_part(name, record))
            .map(|(name, _)| Candidate { name, settled: settled(name) })
            .collect();
        if candidates.is_empty() && !self.leaving {
            // All drain. A server that nobody has is better run by one of them than by none.
            let here =
                |server: &&String| view.holder(server).is_none_or(|holder| holder == self.identity.name);
            let servers = self.servers.iter().filter(here);
            return servers.map(|server| (server.as_str(), self.identity.name.as_str())).collect();
        }
        let holders = self.servers.iter().map(|server| (server.as_str(), view.holder(server)));
        assign(&candidates, &holders.collect())
    }

    /// Servers to release.
    fn releases(&self) -> Vec<String> {
        let stopped = self.giving.iter().filter(|(_, stopped)| **stopped);
        stopped.take(AT_ONCE).map(|(server, _)| server.clone()).collect()
    }

    /// Servers to take.
    fn takes(&self, now: Moment) -> Vec<String> {
        let (Some(view), Standing::In { .. }) = (&self.view, &self.standing) else { return Vec::new() };
        let assigned = self.assigned(now);
        let mine = assigned.iter().filter(|(_, member)| **member == self.identity.name);
        let free = mine.filter(|(server, _)| view.holder(server).is_none());
        free.take(AT_ONCE).map(|(server, _)| (*server).to_owned()).collect()
    }

    fn leaves(&self) -> bool {
        self.leaving && self.held().next().is_none()
    }

    /// The other members and the servers, for a status.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }
}

#[cfg(test)]
mod tests;
