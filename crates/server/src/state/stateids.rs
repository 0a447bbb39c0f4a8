//! State ids. Each names an open, an owner's locks of a file, or a delegation (RFC 8881, section 8.2; RFC
//! 7530, section 9.1.4).
//!
//! A pure table. On the wire a state id contains the server's epoch and the numbers of the client and the
//! state. So the server can tell an id of an earlier incarnation or of an expired client from one that
//! never existed. All but the seqid is encrypted ([`super::ids`]):
//!
//! ```text
//! seqid 4 | { epoch 4 | client 4 | state 4 }
//! ```

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use protocol::nfs4::{Clientid, Stateid, Status};
use vfs::{Handle, HolderId, LeaseId, LeaseKind, OpenId, Principal, Share, SharedHandle};

use super::capacity::Bounds;
use super::footprint::of_map;
use super::ids::IdKey;
use super::owners::{OwnerKind, OwnerName};
use crate::exports::ExportId;

/// Opens and locks of one client at most.
const STATES_PER_CLIENT_MAX: usize = 1 << 17;
/// A client that has not freed this many revoked delegations gets no further ones.
const REVOKED_PER_CLIENT_MAX: usize = 1 << 12;
/// A client with fewer states than this has not used up the capacity of any file system.
const STATES_FEW: usize = 16;

/// Names a state in the tables: the client and state numbers of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StateKey {
    client: u32,
    state: u32,
}

/// A file that has state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileKey {
    pub(crate) export: ExportId,
    pub(crate) handle: Handle,
}

/// One state.
#[derive(Clone, Debug)]
pub(crate) struct HeldState {
    pub(crate) key: StateKey,
    /// Counts the changes of the state; never zero.
    pub(crate) seqid: u32,
    pub(crate) client: Clientid,
    pub(crate) holder: HolderId,
    pub(crate) export: ExportId,
    /// Shared by all states of the file.
    pub(crate) handle: SharedHandle,
    pub(crate) kind: Kind,
}

/// The kind of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Open {
        open: OpenId,
        owner: Bytes,
        access: Share,
        deny: Share,
        /// The user that opened it last, and was found to have the rights.
        opener: Principal,
        /// False until OPEN_CONFIRM, which minor version 0 may require first.
        confirmed: bool,
    },
    /// The locks of an owner under an open.
    Lock { by: StateKey, owner: Bytes },
    Delegation {
        lease: LeaseId,
        kind: LeaseKind,
        /// The user that opened the file with it.
        opener: Principal,
        standing: Standing,
    },
}

impl Kind {
    /// The owner of an open or lock of this client.
    fn owner_of(&self, client: Clientid) -> Option<OwnerName> {
        match self {
            Kind::Open { owner, .. } => {
                Some(OwnerName { client, kind: OwnerKind::Open, name: owner.clone() })
            }
            Kind::Lock { owner, .. } => {
                Some(OwnerName { client, kind: OwnerKind::Lock, name: owner.clone() })
            }
            Kind::Delegation { .. } => None,
        }
    }
}

/// The standing of a delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Good,
    Recalled,
    /// It is lost, and the client must still be told.
    Revoked,
}

impl HeldState {
    /// The file.
    pub(crate) fn file(&self) -> FileKey {
        FileKey { export: self.export, handle: self.handle.handle() }
    }

    fn is_delegation(&self) -> bool {
        matches!(self.kind, Kind::Delegation { .. })
    }

    fn is_revoked(&self) -> bool {
        matches!(self.kind, Kind::Delegation { standing: Standing::Revoked, .. })
    }
}

/// The client that asks about a state id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) minor: u32,
    /// The client of the session. Unknown in minor version 0, and if the session was destroyed while its
    /// compound runs.
    pub(crate) client: Option<Clientid>,
}

/// All states.
#[derive(Debug)]
pub(crate) struct Stateids {
    epoch: u32,
    ids_by: IdKey,
    most: usize,
    delegations_max: usize,
    /// Number of delegations among `held`.
    delegations: usize,
    next: u32,
    held: BTreeMap<StateKey, Box<HeldState>>,
    opens: HashMap<(u32, FileKey, Bytes), StateKey>,
    locks: HashMap<(StateKey, Bytes), StateKey>,
    leases: HashMap<(ExportId, LeaseId), StateKey>,
    files: HashMap<ExportId, HashMap<SharedHandle, Vec<StateKey>>>,
    counts: HashMap<u32, Count>,
    /// Numbers of opens and locks of each owner.
    owners: HashMap<OwnerName, usize>,
}

/// The number of states of a client.
#[derive(Debug, Default)]
struct Count {
    states: usize,
    /// Of these, delegations.
    delegations: usize,
    revoked: usize,
    /// The user of the newest state. All states of one user share its credential.
    opener: Option<Principal>,
}

impl Count {
    /// Shares the credential, if it is the same as for the state before.
    fn share_opener(&mut self, kind: &mut Kind) {
        let (Kind::Open { opener, .. } | Kind::Delegation { opener, .. }) = kind else { return };
        match &self.opener {
            Some(known) if known == opener => *opener = known.clone(),
            _ => self.opener = Some(opener.clone()),
        }
    }
}

impl Stateids {
    /// An empty table of this server incarnation.
    pub(crate) fn new((epoch, ids_by): (u32, IdKey)) -> Stateids {
        Stateids {
            epoch,
            ids_by,
            most: Bounds::default().states,
            delegations_max: Bounds::default().delegations,
            delegations: 0,
            next: 1,
            held: BTreeMap::new(),
            opens: HashMap::new(),
            locks: HashMap::new(),
            leases: HashMap::new(),
            files: HashMap::new(),
            counts: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    /// With a limit of `most` opens and locks, and one of delegations.
    pub(crate) fn up_to(self, most: usize, delegations_max: usize) -> Stateids {
        Stateids { most, delegations_max, ..self }
    }

    /// See [`super::Footprint`].
    pub(crate) fn bytes(&self) -> usize {
        let held = self.held.len() * (size_of::<(StateKey, Box<HeldState>)>() + size_of::<HeldState>());
        let files = self.files.values().map(of_map).sum::<usize>() + self.held.len() * size_of::<StateKey>();
        let by_name = of_map(&self.opens) + of_map(&self.locks) + of_map(&self.leases);
        held + files + by_name + of_map(&self.counts) + of_map(&self.owners)
    }

    /// Is there capacity for one more open or lock?
    pub(crate) fn has_capacity(&self) -> bool {
        self.held.len() - self.delegations < self.most
    }

    /// May this client have one more state of this kind?
    fn may_have(&self, client: u32, kind: &Kind) -> bool {
        let count = self.counts.get(&client);
        if matches!(kind, Kind::Delegation { .. }) {
            let revoked = count.map_or(0, |count| count.revoked);
            revoked < REVOKED_PER_CLIENT_MAX && self.delegations < self.delegations_max
        } else {
            let others = count.map_or(0, |count| count.states - count.delegations);
            others < STATES_PER_CLIENT_MAX && self.has_capacity()
        }
    }

    /// The state id on the wire.
    pub(crate) fn wire(&self, held: &HeldState) -> Stateid {
        let other = self.ids_by.state(self.epoch, held.key.client, held.key.state);
        Stateid { seqid: held.seqid, other }
    }

    /// The state that a wire state id names, if the id is of this epoch.
    pub(crate) fn parse(&self, stateid: Stateid) -> Option<StateKey> {
        let (client, state) = self.ids_by.state_numbers(self.epoch, stateid.other)?;
        Some(StateKey { client, state })
    }

    /// The number of a client. An id of another epoch gives zero, which is no client's number.
    fn number(&self, client: Clientid) -> u32 {
        self.ids_by.client_number(self.epoch, client).unwrap_or(0)
    }

    /// The state that a state id names at its present seqid, revoked or not.
    ///
    /// `client_lives` tells whether a client of this incarnation still exists.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`; in minor version 0 `StaleStateid` and `Expired`.
    pub(crate) fn find_any(
        &self,
        stateid: Stateid,
        requester: Requester,
        client_lives: impl Fn(u32) -> bool,
    ) -> Result<&HeldState, Status> {
        if stateid.is_special() {
            return Err(Status::BadStateid);
        }
        let minor0 = requester.minor == 0;
        let unknown = if minor0 { Status::StaleStateid } else { Status::BadStateid };
        let key = self.parse(stateid).ok_or(unknown)?;
        let Some(held) = self.get(key) else {
            let expired = minor0 && key.client != 0 && !client_lives(key.client);
            return Err(if expired { Status::Expired } else { Status::BadStateid });
        };
        // A compound that has lost its session has no client any more, and no right to any state.
        if !minor0 && requester.client != Some(held.client) {
            return Err(Status::BadStateid);
        }
        match stateid.seqid {
            0 if !minor0 => Ok(held),
            seqid if seqid == held.seqid => Ok(held),
            // Later than the present one by less than half of all seqids: it was never given out.
            seqid if seqid.wrapping_sub(held.seqid) < 1 << 31 => Err(Status::BadStateid),
            _ => Err(Status::OldStateid),
        }
    }

    /// The state that a state id names.
    ///
    /// # Errors
    /// As [`Stateids::find_any`], and `DelegRevoked`.
    pub(crate) fn find(
        &self,
        stateid: Stateid,
        requester: Requester,
        client_lives: impl Fn(u32) -> bool,
    ) -> Result<&HeldState, Status> {
        let held = self.find_any(stateid, requester, client_lives)?;
        match (held.is_revoked(), requester.minor) {
            (false, _) => Ok(held),
            (true, 0) => Err(Status::BadStateid),
            (true, _) => Err(Status::DelegRevoked),
        }
    }

    /// A state by its key.
    pub(crate) fn get(&self, key: StateKey) -> Option<&HeldState> {
        self.held.get(&key).map(|held| &**held)
    }

    /// The open of a file by an owner.
    pub(crate) fn open_of(&self, client: Clientid, file: FileKey, owner: &Bytes) -> Option<&HeldState> {
        self.get(*self.opens.get(&(self.number(client), file, owner.clone()))?)
    }

    /// The locks of an owner under an open.
    pub(crate) fn lock_of(&self, open: StateKey, owner: &Bytes) -> Option<&HeldState> {
        self.get(*self.locks.get(&(open, owner.clone()))?)
    }

    /// The delegation with this lease.
    pub(crate) fn delegation(&self, export: ExportId, lease: LeaseId) -> Option<&HeldState> {
        self.get(*self.leases.get(&(export, lease))?)
    }

    /// All states of a client.
    pub(crate) fn of_client(&self, client: Clientid) -> impl Iterator<Item = &HeldState> {
        let number = self.number(client);
        let of = |state| StateKey { client: number, state };
        self.held.range(of(0)..=of(u32::MAX)).map(|(_, held)| &**held)
    }

    /// Does the owner hold any state?
    pub(crate) fn has_of(&self, name: &OwnerName) -> bool {
        self.owners.contains_key(name)
    }

    /// All states of a file.
    pub(crate) fn of_file(&self, file: &FileKey) -> impl Iterator<Item = &HeldState> {
        let keys = self.files.get(&file.export).and_then(|files| files.get(file.handle.as_bytes()));
        keys.into_iter().flatten().filter_map(|key| self.get(*key))
    }

    /// Does the client have opens or locks?
    pub(crate) fn has_opens(&self, client: Clientid) -> bool {
        self.counts.get(&self.number(client)).is_some_and(|count| count.states > count.delegations)
    }

    /// Does the client hold at least seven eighths of all opens and locks, and not just a few?
    pub(crate) fn is_most(&self, client: Clientid) -> bool {
        let opens = |count: &Count| count.states.saturating_sub(count.delegations);
        let held = self.counts.get(&self.number(client)).map_or(0, opens);
        held >= STATES_FEW && 8 * held >= 7 * self.held.len().saturating_sub(self.delegations)
    }

    /// The delegations of a client that has opens too.
    pub(crate) fn delegations_beside_opens(&self, client: Clientid) -> usize {
        let count = self.counts.get(&self.number(client)).filter(|count| count.states > count.delegations);
        count.map_or(0, |count| count.delegations.saturating_sub(count.revoked))
    }

    /// Does the client have any state that is not revoked?
    pub(crate) fn has(&self, client: Clientid) -> bool {
        self.counts.get(&self.number(client)).is_some_and(|count| count.states > count.revoked)
    }

    /// The number of revoked delegations that the client has not freed.
    pub(crate) fn revoked(&self, client: Clientid) -> usize {
        self.counts.get(&self.number(client)).map_or(0, |count| count.revoked)
    }

    /// Does the client have a revoked delegation that it has not freed?
    pub(crate) fn has_revoked(&self, client: Clientid) -> bool {
        self.revoked(client) > 0
    }

    /// Enters a state, at seqid 1.
    ///
    /// # Errors
    /// `Delay` if there are too many.
    pub(crate) fn insert(
        &mut self,
        (client, holder): (Clientid, HolderId),
        file: FileKey,
        mut kind: Kind,
    ) -> Result<&HeldState, Status> {
        let number = self.number(client);
        if !self.may_have(number, &kind) {
            return Err(Status::Delay);
        }
        let more = usize::from(matches!(kind, Kind::Delegation { .. }));
        let count = self.counts.entry(number).or_default();
        count.states += 1;
        count.delegations += more;
        count.share_opener(&mut kind);
        self.delegations += more;
        let key = self.free_key(number);
        if let Some(name) = kind.owner_of(client) {
            *self.owners.entry(name).or_default() += 1;
        }
        match &kind {
            Kind::Open { owner, .. } => drop(self.opens.insert((number, file, owner.clone()), key)),
            Kind::Lock { by, owner } => drop(self.locks.insert((*by, owner.clone()), key)),
            Kind::Delegation { lease, .. } => drop(self.leases.insert((file.export, *lease), key)),
        }
        let files = self.files.entry(file.export).or_default();
        let known = files.get_key_value(file.handle.as_bytes());
        let handle = known.map_or_else(|| SharedHandle::new(&file.handle), |(handle, _)| handle.clone());
        // Most files have one state.
        files.entry(handle.clone()).or_insert_with(|| Vec::with_capacity(1)).push(key);
        let held = HeldState { key, seqid: 1, client, holder, export: file.export, handle, kind };
        Ok(&*self.held.entry(key).or_insert_with(|| Box::new(held)))
    }

    /// Changes a state and advances its seqid. Returns the new state id.
    pub(crate) fn change(&mut self, key: StateKey, change: impl FnOnce(&mut Kind)) -> Option<Stateid> {
        let held = self.held.get_mut(&key)?;
        change(&mut held.kind);
        held.seqid = held.seqid.checked_add(1).unwrap_or(1);
        let held = self.held.get(&key)?;
        Some(self.wire(held))
    }

    /// Sets the standing of a delegation. This does not advance its seqid.
    pub(crate) fn set_standing(&mut self, key: StateKey, to: Standing) {
        let Some(held) = self.held.get_mut(&key) else { return };
        let was_revoked = held.is_revoked();
        if let Kind::Delegation { standing, .. } = &mut held.kind {
            *standing = to;
        }
        let count = self.counts.entry(key.client).or_default();
        count.revoked = count.revoked + usize::from(held.is_revoked()) - usize::from(was_revoked);
    }

    /// Removes a state; its locks go with an open.
    pub(crate) fn remove(&mut self, key: StateKey) -> Option<HeldState> {
        let held = self.held.remove(&key)?;
        let count = self.counts.entry(key.client).or_default();
        debug_assert!(count.states > 0, "a state of a client is removed that has none");
        count.states = count.states.saturating_sub(1);
        count.delegations = count.delegations.saturating_sub(usize::from(held.is_delegation()));
        self.delegations = self.delegations.saturating_sub(usize::from(held.is_delegation()));
        debug_assert!(
            count.revoked > 0 || !held.is_revoked(),
            "a revoked state is removed that was not counted"
        );
        count.revoked = count.revoked.saturating_sub(usize::from(held.is_revoked()));
        if count.states == 0 {
            self.counts.remove(&key.client);
        }
        self.forget_of_file(&held);
        self.forget_of_owner(&held);
        match &held.kind {
            Kind::Open { owner, .. } => {
                self.opens.remove(&(key.client, held.file(), owner.clone()));
                for lock in self.locks_by(key, &held.file()) {
                    self.remove(lock);
                }
            }
            Kind::Lock { by, owner } => drop(self.locks.remove(&(*by, owner.clone()))),
            Kind::Delegation { lease, .. } => drop(self.leases.remove(&(held.export, *lease))),
        }
        Some(*held)
    }

    /// A state is no state of its owner any more.
    fn forget_of_owner(&mut self, held: &HeldState) {
        let Some(name) = held.kind.owner_of(held.client) else { return };
        let Some(count) = self.owners.get_mut(&name) else { return };
        *count -= 1;
        if *count == 0 {
            self.owners.remove(&name);
        }
    }

    /// A state is no state of its file any more.
    fn forget_of_file(&mut self, held: &HeldState) {
        let Some(files) = self.files.get_mut(&held.export) else { return };
        let Some(keys) = files.get_mut(&held.handle) else { return };
        keys.retain(|other| *other != held.key);
        if keys.is_empty() {
            files.remove(&held.handle);
        }
        if files.is_empty() {
            self.files.remove(&held.export);
        }
    }

    /// Removes all states of a client.
    pub(crate) fn remove_all(&mut self, client: Clientid) -> Vec<HeldState> {
        let keys: Vec<StateKey> = self.of_client(client).map(|held| held.key).collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Removes all states of an export.
    pub(crate) fn remove_of_export(&mut self, export: ExportId) -> Vec<HeldState> {
        let keys = self.files.get(&export).into_iter().flat_map(|files| files.values().flatten().copied());
        let keys: Vec<StateKey> = keys.collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The lock states under an open.
    fn locks_by(&self, open: StateKey, file: &FileKey) -> Vec<StateKey> {
        let is_its = |held: &&HeldState| matches!(&held.kind, Kind::Lock { by, .. } if *by == open);
        self.of_file(file).filter(is_its).map(|held| held.key).collect()
    }

    fn free_key(&mut self, client: u32) -> StateKey {
        loop {
            let key = StateKey { client, state: self.next };
            self.next = self.next.wrapping_add(1);
            if !self.held.contains_key(&key) {
                return key;
            }
        }
    }
}

#[cfg(test)]
mod tests;
