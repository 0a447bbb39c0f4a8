//! What this client holds at the origin, without I/O: opens, byte-range locks, delegations, under the names that the
//! layer above knows them by.
//!
//! Everything that changes is *touched*, so that [`super::durable`] records it before anybody relies on it. What is given
//! up stays *going* until the origin has it back, for the next life to give back if this one does not.
//!
//! An open is one (file, owner) at the origin. Its name ends when `close` begins: an OPEN of the same owner whose reply
//! comes later is a new open under a new name, whatever the origin makes of it.

mod combinations;
pub(crate) mod ranges;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use protocol::nfs4::Stateid;
use vfs::{Handle, Lease, LeaseId, LeaseKind, OpenId, Owner, Principal, Share, Wcc};

pub(crate) use combinations::Combinations;
use ranges::{Range, Ranges};

use super::durable::record::Opening;

/// An open.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) handle: Handle,
    pub(crate) owner: Owner,
    pub(crate) access: Share,
    pub(crate) deny: Share,
    /// What it may be narrowed to.
    pub(crate) had: Combinations,
    /// As whom it was made, and is made again.
    pub(crate) principal: Principal,
    /// `None` if the origin has lost it and it could not be got back.
    pub(crate) stateid: Option<Stateid>,
    pub(crate) locks: HashMap<Owner, Locks>,
    /// What a LOCK or LOCKU of each owner is about that was sent and whose answer is not known.
    pub(crate) doubts: HashMap<Owner, Doubt>,
    /// One LOCK or LOCKU at a time, so that what we believe to hold is what the origin believes.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Open {
    /// Without a state id yet.
    pub(crate) fn new(
        handle: Handle,
        owner: Owner,
        (access, deny): (Share, Share),
        principal: Principal,
    ) -> Open {
        let mut had = Combinations::default();
        had.add(access, deny);
        Open {
            handle,
            owner,
            access,
            deny,
            had,
            principal,
            stateid: None,
            locks: HashMap::new(),
            doubts: HashMap::new(),
            turn: Arc::default(),
        }
    }
}

/// A range of which it is not known what the origin has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// Its kind is the one that was asked for.
    pub(crate) range: Range,
    /// It was to be given up.
    pub(crate) unlocking: bool,
}

impl Doubt {
    fn and(self, other: Doubt) -> Doubt {
        let (a, b) = (self.range, other.range);
        let range = Range { start: a.start.min(b.start), end: a.end.max(b.end), ..b };
        Doubt { range, unlocking: self.unlocking || other.unlocking }
    }
}

/// What one lock owner has locked through one open.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    pub(crate) stateid: Stateid,
    pub(crate) ranges: Ranges,
}

/// A delegation.
#[derive(Clone, Debug)]
pub(crate) struct Delegation {
    pub(crate) handle: Handle,
    pub(crate) kind: LeaseKind,
    /// It is a directory's, which no open brings back.
    pub(crate) directory: bool,
    pub(crate) stateid: Stateid,
    pub(crate) principal: Principal,
    /// The layer above has been asked for it.
    pub(crate) recalled: bool,
    /// The change attribute that it was granted with, if it is known.
    pub(crate) change: Option<u64>,
}

/// On what state a request relies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// None of ours.
    Nothing,
    Open(OpenId),
    Lock(OpenId, Owner),
    Lease(LeaseId),
}

/// An OPEN that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) handle: Handle,
    pub(crate) owner: Owner,
    pub(crate) access: Share,
    pub(crate) deny: Share,
    pub(crate) principal: Principal,
    pub(crate) stateid: Stateid,
}

/// So many are remembered: more than there are requests in flight.
const GIVEN_UP_MAX: usize = 256;
/// OPENs on their way that are recorded: more than there are slots, and some that a `soft` mount gave up.
const OPENINGS_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct State {
    opens: HashMap<OpenId, Open>,
    by_owner: HashMap<(Handle, Owner), OpenId>,
    by_file: HashMap<Handle, Vec<OpenId>>,
    leases: HashMap<LeaseId, Delegation>,
    by_handle: HashMap<Handle, LeaseId>,
    /// State ids of delegations given up last: a grant that was on its way then is not to be believed.
    given_up: VecDeque<Stateid>,
    /// What is on its way back.
    going_opens: HashMap<OpenId, Open>,
    going_leases: HashMap<LeaseId, Delegation>,
    /// OPENs on their way.
    openings: HashMap<u64, Opening>,
    last: u64,
    /// Somebody records what is touched.
    recorded: bool,
    touched: BTreeSet<Touched>,
}

/// Something that is to be recorded anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Touched {
    Open(OpenId),
    Lease(LeaseId),
    Opening(u64),
}

impl State {
    fn name(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The last name that was given.
    pub(crate) fn last_name(&self) -> u64 {
        self.last
    }

    /// No name up to this one is given again.
    pub(crate) fn skip_names(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    fn touch(&mut self, what: Touched) {
        if self.recorded {
            self.touched.insert(what);
        }
    }

    /// From now on somebody records what is touched, which at first is everything. Or nobody does any more.
    pub(crate) fn record(&mut self, recorded: bool) {
        self.recorded = recorded;
        self.touched.clear();
        if recorded {
            let opens = self.opens.keys().chain(self.going_opens.keys()).map(|id| Touched::Open(*id));
            let leases = self.leases.keys().chain(self.going_leases.keys()).map(|id| Touched::Lease(*id));
            let openings = self.openings.keys().map(|number| Touched::Opening(*number));
            self.touched = opens.chain(leases).chain(openings).collect();
        }
    }

    /// Is what is held recorded?
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// What was touched since this was last asked.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<Touched> {
        std::mem::take(&mut self.touched)
    }

    /// An OPEN is about to be sent.
    pub(crate) fn opening(&mut self, opening: Opening) -> u64 {
        let number = self.name();
        if self.recorded && self.openings.len() < OPENINGS_MAX {
            self.openings.insert(number, opening);
            self.touch(Touched::Opening(number));
        }
        number
    }

    /// It was answered, and what it gave is entered.
    pub(crate) fn opening_ended(&mut self, number: u64) {
        if self.openings.remove(&number).is_some() {
            self.touch(Touched::Opening(number));
        }
    }

    /// An OPEN on its way.
    pub(crate) fn opening_of(&self, number: u64) -> Option<&Opening> {
        self.openings.get(&number)
    }

    /// An open that is held or going, and whether it is going.
    pub(crate) fn any_open(&self, id: OpenId) -> Option<(&Open, bool)> {
        let held = self.opens.get(&id).map(|open| (open, false));
        held.or_else(|| self.going_opens.get(&id).map(|open| (open, true)))
    }

    /// The same for a delegation.
    pub(crate) fn any_lease(&self, id: LeaseId) -> Option<(&Delegation, bool)> {
        let held = self.leases.get(&id).map(|lease| (lease, false));
        held.or_else(|| self.going_leases.get(&id).map(|lease| (lease, true)))
    }

    /// A LOCK or LOCKU is about to be sent. It is in doubt until the doubt is removed.
    pub(crate) fn doubt(&mut self, id: OpenId, owner: &Owner, doubt: Doubt) {
        let some = doubt.range.start < doubt.range.end;
        if let Some(open) = self.opens.get_mut(&id).filter(|_| self.recorded && some) {
            let all = open.doubts.get(owner).map_or(doubt, |old| old.and(doubt));
            open.doubts.insert(owner.clone(), all);
            self.touch(Touched::Open(id));
        }
    }

    /// What an owner holds is known again.
    pub(crate) fn sure(&mut self, id: OpenId, owner: &Owner) {
        if self.opens.get_mut(&id).and_then(|open| open.doubts.remove(owner)).is_some() {
            self.touch(Touched::Open(id));
        }
    }

    /// The origin has an open back.
    pub(crate) fn closed(&mut self, id: OpenId) {
        if self.going_opens.remove(&id).is_some() {
            self.touch(Touched::Open(id));
        }
    }

    /// The origin has a delegation back.
    pub(crate) fn returned(&mut self, id: LeaseId) {
        if self.going_leases.remove(&id).is_some() {
            self.touch(Touched::Lease(id));
        }
    }

    /// Takes over an open of an earlier life under the name that it had there.
    pub(crate) fn adopt_open(&mut self, id: OpenId, open: Open, going: bool) {
        self.skip_names(id.0);
        if going {
            self.going_opens.insert(id, open);
        } else {
            self.by_file.entry(open.handle).or_default().push(id);
            self.by_owner.insert((open.handle, open.owner.clone()), id);
            self.opens.insert(id, open);
        }
        self.touch(Touched::Open(id));
    }

    /// The same for a delegation.
    pub(crate) fn adopt_lease(&mut self, id: LeaseId, held: Delegation, going: bool) {
        self.skip_names(id.0);
        if going {
            self.going_leases.insert(id, held);
        } else {
            self.by_handle.insert(held.handle, id);
            self.leases.insert(id, held);
        }
        self.touch(Touched::Lease(id));
    }

    /// Enters an OPEN's result: a new open, or more of one that there is.
    pub(crate) fn opened(&mut self, granted: Granted) -> OpenId {
        let key = (granted.handle, granted.owner.clone());
        if let Some(id) = self.by_owner.get(&key)
            && let Some(open) = self.opens.get_mut(id)
        {
            open.access |= granted.access;
            open.deny |= granted.deny;
            open.had.add(granted.access, granted.deny);
            open.principal = granted.principal;
            let newer = |old: &Stateid| {
                old.other != granted.stateid.other
                    || granted.stateid.seqid.wrapping_sub(old.seqid) < u32::MAX / 2
            };
            if open.stateid.as_ref().is_none_or(newer) {
                open.stateid = Some(granted.stateid);
            }
            let id = *id;
            self.touch(Touched::Open(id));
            return id;
        }
        let id = OpenId(self.name());
        self.by_file.entry(granted.handle).or_default().push(id);
        self.by_owner.insert(key, id);
        let shares = (granted.access, granted.deny);
        let open = Open::new(granted.handle, granted.owner, shares, granted.principal);
        let open = Open { stateid: Some(granted.stateid), ..open };
        self.opens.insert(id, open);
        self.touch(Touched::Open(id));
        id
    }

    pub(crate) fn open(&self, id: OpenId) -> Option<&Open> {
        self.opens.get(&id)
    }

    pub(crate) fn open_mut(&mut self, id: OpenId) -> Option<&mut Open> {
        self.touch(Touched::Open(id));
        self.opens.get_mut(&id)
    }

    /// All opens.
    pub(crate) fn opens(&self) -> impl Iterator<Item = (OpenId, &Open)> {
        self.opens.iter().map(|(id, open)| (*id, open))
    }

    /// The open of this file by this owner.
    #[cfg(test)]
    pub(crate) fn open_of(&self, handle: &Handle, owner: &Owner) -> Option<OpenId> {
        self.by_owner.get(&(*handle, owner.clone())).copied()
    }

    /// An open of this file that has at least this access.
    pub(crate) fn open_for(&self, handle: &Handle, access: Share) -> Option<OpenId> {
        let ids = self.by_file.get(handle)?.iter().copied();
        ids.into_iter().find(|id| {
            self.opens.get(id).is_some_and(|open| open.access.contains(access) && open.stateid.is_some())
        })
    }

    /// Takes an open out: its name means nothing any more. It is going until it is [`closed`](State::closed).
    pub(crate) fn close(&mut self, id: OpenId) -> Option<Open> {
        let open = self.opens.remove(&id)?;
        if self.recorded && open.stateid.is_some() {
            self.going_opens.insert(id, open.clone());
        }
        self.touch(Touched::Open(id));
        self.by_owner.remove(&(open.handle, open.owner.clone()));
        if let Some(ids) = self.by_file.get_mut(&open.handle) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_file.remove(&open.handle);
            }
        }
        Some(open)
    }

    /// The origin has this open no more, nor its locks.
    pub(crate) fn lose(&mut self, id: OpenId) {
        if let Some(open) = self.opens.get_mut(&id) {
            open.stateid = None;
            open.locks.clear();
            open.doubts.clear();
            self.touch(Touched::Open(id));
        }
    }

    /// Enters a delegation: a new one, or what is new about the one of that file. True if it is new or stronger. One that
    /// was given up while this grant was on its way is no more.
    pub(crate) fn delegated(&mut self, delegation: Delegation) -> Option<(LeaseId, bool)> {
        if self.was_given_up(&delegation.stateid) {
            return None;
        }
        if let Some(id) = self.by_handle.get(&delegation.handle).copied()
            && let Some(held) = self.leases.get_mut(&id)
            && held.stateid.other == delegation.stateid.other
        {
            let stronger = delegation.kind > held.kind;
            held.kind = held.kind.max(delegation.kind);
            held.stateid = delegation.stateid;
            held.change = delegation.change;
            self.touch(Touched::Lease(id));
            return Some((id, stronger));
        }
        if let Some(old) = self.by_handle.get(&delegation.handle).copied() {
            self.leases.remove(&old);
            self.touch(Touched::Lease(old));
        }
        let id = LeaseId(self.name());
        self.by_handle.insert(delegation.handle, id);
        self.leases.insert(id, delegation);
        self.touch(Touched::Lease(id));
        Some((id, true))
    }

    /// Has a delegation with this state id, or a later one of it, been given up lately?
    pub(crate) fn was_given_up(&self, stateid: &Stateid) -> bool {
        let later = |old: &Stateid| old.seqid.wrapping_sub(stateid.seqid) < u32::MAX / 2;
        self.given_up.iter().any(|old| old.other == stateid.other && later(old))
    }

    pub(crate) fn lease(&self, id: LeaseId) -> Option<&Delegation> {
        self.leases.get(&id)
    }

    pub(crate) fn lease_mut(&mut self, id: LeaseId) -> Option<&mut Delegation> {
        self.touch(Touched::Lease(id));
        self.leases.get_mut(&id)
    }

    /// The change attribute that came with the grant of a delegation. It is not recorded.
    pub(crate) fn granted_at(&mut self, id: LeaseId, change: u64) {
        if let Some(held) = self.leases.get_mut(&id) {
            held.change = Some(change);
        }
    }

    /// All delegations.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (LeaseId, &Delegation)> {
        self.leases.iter().map(|(id, delegation)| (*id, delegation))
    }

    /// The delegation of a file.
    pub(crate) fn lease_of(&self, handle: &Handle) -> Option<(LeaseId, &Delegation)> {
        let id = *self.by_handle.get(handle)?;
        Some((id, self.leases.get(&id)?))
    }

    /// The delegation with this state id, whatever its seqid.
    pub(crate) fn lease_named(&self, stateid: &Stateid, handle: &Handle) -> Option<LeaseId> {
        self.lease_of(handle).filter(|(_, held)| held.stateid.other == stateid.other).map(|(id, _)| id)
    }

    /// Takes a delegation out: its name means nothing any more. It is going until it is [`returned`](State::returned).
    pub(crate) fn give_up(&mut self, id: LeaseId) -> Option<Delegation> {
        let delegation = self.leases.remove(&id)?;
        if self.recorded {
            self.going_leases.insert(id, delegation.clone());
        }
        self.touch(Touched::Lease(id));
        self.given_up.truncate(GIVEN_UP_MAX - 1);
        self.given_up.push_front(delegation.stateid);
        if self.by_handle.get(&delegation.handle) == Some(&id) {
            self.by_handle.remove(&delegation.handle);
        }
        Some(delegation)
    }

    /// On what state I/O of a file is done: that of the open; without one, of a delegation that covers it; without
    /// either, none. `None` if the open is none, or lost.
    pub(crate) fn for_io(
        &self,
        handle: &Handle,
        open: Option<OpenId>,
        access: Share,
    ) -> Option<(Stateid, Used)> {
        if let Some(id) = open {
            let open = self.opens.get(&id).filter(|open| open.handle == *handle)?;
            return open.stateid.map(|stateid| (latest(stateid), Used::Open(id)));
        }
        if let Some((id, held)) = self.lease_of(handle)
            && (held.kind == LeaseKind::Write || access == Share::READ)
        {
            return Some((latest(held.stateid), Used::Lease(id)));
        }
        Some((Stateid::ANONYMOUS, Used::Nothing))
    }
}

/// The state id in its latest version: a seqid of zero (RFC 8881, section 8.2.2).
pub(crate) fn latest(stateid: Stateid) -> Stateid {
    Stateid { seqid: 0, ..stateid }
}

/// A lease as the layer above sees it.
pub(crate) fn lease(id: LeaseId, kind: LeaseKind, change: u64) -> Lease {
    Lease { id, kind, until: None, change, space_limit: Lease::NO_SPACE_LIMIT }
}

/// A directory before and after a change, if nothing else changed it in between.
pub(crate) fn unchanged(before: u64, after: Option<u64>, cinfo: protocol::nfs4::ChangeInfo) -> bool {
    cinfo.atomic && cinfo.before == before && after == Some(cinfo.after)
}

/// Nothing known.
pub(crate) const NO_WCC: Wcc = Wcc { before: None, after: None, change: None };

#[cfg(test)]
mod tests;
