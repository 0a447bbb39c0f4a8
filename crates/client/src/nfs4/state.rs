//! The state that this client holds at the origin, without I/O: opens, byte-range locks and delegations,
//! under the ids that the layer above uses.
//!
//! Every change *touches* an object, so that [`super::durable`] records it before any caller relies on it. An
//! object that is being given up stays *going* until the origin has it back. If this process ends first, the
//! next incarnation gives the object back.
//!
//! An open is one (file, owner) pair at the origin. Its id ends when `close` begins. If an OPEN of the same
//! owner is answered later, it is a new open under a new id, whatever the origin makes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use protocol::nfs4::Stateid;
use smallvec::SmallVec;
use vfs::locks::{LockRange, LockRanges};
use vfs::{
    Combinations, Handle, Lease, LeaseId, LeaseKind, OpenId, Owner, Principal, Share, SharedHandle, Shares,
    Wcc,
};

use super::durable::record::Opening;

/// An open.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    handle: SharedHandle,
    pub(crate) owner: Owner,
    pub(crate) shares: Shares,
    /// The shares that OPEN_DOWNGRADE may narrow it to.
    pub(crate) had: Combinations,
    /// The principal that made the open, and that reclaims it.
    pub(crate) principal: Principal,
    /// `None` if the origin has lost the open and recovery failed.
    pub(crate) stateid: Option<Stateid>,
    /// Only an open under which a lock was asked for has it.
    locking: Option<Box<Locking>>,
}

/// The byte-range locks of an open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locking {
    pub(crate) locks: BTreeMap<Owner, Locks>,
    /// For each owner, the range of a LOCK or LOCKU that was sent and whose result is unknown.
    pub(crate) doubts: BTreeMap<Owner, Doubt>,
    /// Allows one LOCK or LOCKU at a time, so that our table of locks matches the origin's.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Open {
    /// An open without a state id.
    pub(crate) fn new(handle: &Handle, owner: Owner, shares: Shares, principal: Principal) -> Open {
        let had = [shares].into_iter().collect();
        Open { handle: handle.into(), owner, shares, had, principal, stateid: None, locking: None }
    }

    /// The file.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.handle()
    }

    /// The locks, by owner.
    pub(crate) fn locks(&self) -> &BTreeMap<Owner, Locks> {
        static NONE: BTreeMap<Owner, Locks> = BTreeMap::new();
        self.locking.as_ref().map_or(&NONE, |locking| &locking.locks)
    }

    /// For each owner, the range of a LOCK or LOCKU that was sent and whose result is unknown.
    pub(crate) fn doubts(&self) -> &BTreeMap<Owner, Doubt> {
        static NONE: BTreeMap<Owner, Doubt> = BTreeMap::new();
        self.locking.as_ref().map_or(&NONE, |locking| &locking.doubts)
    }

    /// The locks and the doubts, for a change.
    pub(crate) fn locking_mut(&mut self) -> &mut Locking {
        self.locking.get_or_insert_default()
    }

    /// The doubts, which end.
    pub(crate) fn take_doubts(&mut self) -> BTreeMap<Owner, Doubt> {
        self.locking.as_mut().map(|locking| std::mem::take(&mut locking.doubts)).unwrap_or_default()
    }

    /// The origin no longer has the locks.
    pub(crate) fn forget_locks(&mut self) {
        if let Some(locking) = &mut self.locking {
            locking.locks.clear();
        }
    }

    /// Allows one LOCK or LOCKU at a time.
    pub(crate) fn turn(&mut self) -> Arc<tokio::sync::Mutex<()>> {
        self.locking_mut().turn.clone()
    }
}

/// A range whose lock state at the origin is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The range, with the kind that was asked for.
    pub(crate) range: LockRange,
    /// The request was a LOCKU.
    pub(crate) unlocking: bool,
}

impl Doubt {
    fn and(self, other: Doubt) -> Doubt {
        let (a, b) = (self.range, other.range);
        let range = LockRange { start: a.start.min(b.start), end: a.end.max(b.end), ..b };
        Doubt { range, unlocking: self.unlocking || other.unlocking }
    }
}

/// The locks of one lock owner through one open.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    pub(crate) stateid: Stateid,
    pub(crate) ranges: LockRanges,
}

/// A delegation.
#[derive(Clone, Debug)]
pub(crate) struct Delegation {
    pub(crate) handle: SharedHandle,
    pub(crate) kind: LeaseKind,
    /// The object is a directory, so no open can reclaim the delegation.
    pub(crate) directory: bool,
    pub(crate) stateid: Stateid,
    pub(crate) principal: Principal,
    /// The layer above was asked to return it.
    pub(crate) recalled: bool,
    /// The change attribute at the time of the grant, if known.
    pub(crate) change: Option<u64>,
}

/// The state that a request relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// No state of ours.
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
    pub(crate) shares: Shares,
    pub(crate) principal: Principal,
    pub(crate) stateid: Stateid,
}

/// Number of given-up delegations to remember: more than there are requests in flight.
const GIVEN_UP_MAX: usize = 256;
/// Number of OPENs in flight to record: more than there are slots, plus some that a `soft` mount gave up.
const OPENINGS_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct State {
    opens: HashMap<OpenId, Open>,
    leases: HashMap<LeaseId, Delegation>,
    /// The opens and the delegation of each file that has any.
    files: HashMap<SharedHandle, OfFile>,
    /// State ids of the delegations given up last. A grant that was in flight at that time must be ignored.
    given_up: VecDeque<Stateid>,
    /// Objects that are being given back.
    going_opens: HashMap<OpenId, Open>,
    going_leases: HashMap<LeaseId, Delegation>,
    /// OPENs in flight.
    openings: HashMap<u64, Opening>,
    last: u64,
    /// Touched objects are recorded.
    recorded: bool,
    touched: BTreeSet<Touched>,
}

/// The opens and the delegation of one file.
#[derive(Debug, Default)]
struct OfFile {
    /// One open for each owner.
    opens: SmallVec<[OpenId; 1]>,
    lease: Option<LeaseId>,
}

/// An object to record again.
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

    /// The last id assigned.
    pub(crate) fn last_name(&self) -> u64 {
        self.last
    }

    /// Ensures that no id up to `last` is assigned again.
    pub(crate) fn skip_names(&mut self, last: u64) {
        self.last = self.last.max(last);
    }

    fn touch(&mut self, what: Touched) {
        if self.recorded {
            self.touched.insert(what);
        }
    }

    /// Starts or stops noting touched objects. At the start, every object counts as touched.
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

    /// Is the state recorded?
    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// The objects touched since the last call.
    pub(crate) fn take_touched(&mut self) -> BTreeSet<Touched> {
        std::mem::take(&mut self.touched)
    }

    /// Notes that an OPEN is about to be sent.
    pub(crate) fn opening(&mut self, opening: Opening) -> u64 {
        let number = self.name();
        if self.recorded && self.openings.len() < OPENINGS_MAX {
            self.openings.insert(number, opening);
            self.touch(Touched::Opening(number));
        }
        number
    }

    /// Notes that an OPEN was answered and its results are entered.
    pub(crate) fn opening_ended(&mut self, number: u64) {
        if self.openings.remove(&number).is_some() {
            self.touch(Touched::Opening(number));
        }
    }

    /// An OPEN in flight.
    pub(crate) fn opening_of(&self, number: u64) -> Option<&Opening> {
        self.openings.get(&number)
    }

    /// An open that is held or going. True if it is going.
    pub(crate) fn any_open(&self, id: OpenId) -> Option<(&Open, bool)> {
        let held = self.opens.get(&id).map(|open| (open, false));
        held.or_else(|| self.going_opens.get(&id).map(|open| (open, true)))
    }

    /// A delegation that is held or going. True if it is going.
    pub(crate) fn any_lease(&self, id: LeaseId) -> Option<(&Delegation, bool)> {
        let held = self.leases.get(&id).map(|lease| (lease, false));
        held.or_else(|| self.going_leases.get(&id).map(|lease| (lease, true)))
    }

    /// Notes that a LOCK or LOCKU is about to be sent. Its range is in doubt until [`State::sure`].
    pub(crate) fn doubt(&mut self, id: OpenId, owner: &Owner, doubt: Doubt) {
        let some = doubt.range.start < doubt.range.end;
        if let Some(open) = self.opens.get_mut(&id).filter(|_| self.recorded && some) {
            let all = open.doubts().get(owner).map_or(doubt, |old| old.and(doubt));
            open.locking_mut().doubts.insert(owner.clone(), all);
            self.touch(Touched::Open(id));
        }
    }

    /// Notes that the locks of an owner are known again.
    pub(crate) fn sure(&mut self, id: OpenId, owner: &Owner) {
        if let Some(open) = self.opens.get_mut(&id)
            && open.doubts().contains_key(owner)
        {
            open.locking_mut().doubts.remove(owner);
            self.touch(Touched::Open(id));
        }
    }

    /// Notes that the origin has an open back.
    pub(crate) fn closed(&mut self, id: OpenId) {
        if self.going_opens.remove(&id).is_some() {
            self.touch(Touched::Open(id));
        }
    }

    /// Notes that the origin has a delegation back.
    pub(crate) fn returned(&mut self, id: LeaseId) {
        if self.going_leases.remove(&id).is_some() {
            self.touch(Touched::Lease(id));
        }
    }

    /// Takes over an open of an earlier incarnation, under the same id.
    pub(crate) fn adopt_open(&mut self, id: OpenId, open: Open, going: bool) {
        self.skip_names(id.0);
        if going {
            self.going_opens.insert(id, open);
        } else {
            self.files.entry(open.handle.clone()).or_default().opens.push(id);
            self.opens.insert(id, open);
        }
        self.touch(Touched::Open(id));
    }

    /// Takes over a delegation of an earlier incarnation, under the same id.
    pub(crate) fn adopt_lease(&mut self, id: LeaseId, held: Delegation, going: bool) {
        self.skip_names(id.0);
        if going {
            self.going_leases.insert(id, held);
        } else {
            self.files.entry(held.handle.clone()).or_default().lease = Some(id);
            self.leases.insert(id, held);
        }
        self.touch(Touched::Lease(id));
    }

    /// Enters the result of an OPEN: a new open, or more shares of an existing one.
    pub(crate) fn opened(&mut self, granted: Granted) -> OpenId {
        if let Some(id) = self.open_of(&granted.handle, &granted.owner)
            && let Some(open) = self.opens.get_mut(&id)
        {
            open.shares = open.shares.union(granted.shares);
            open.had.add(granted.shares);
            open.principal = granted.principal;
            let newer = |old: &Stateid| {
                old.other != granted.stateid.other
                    || granted.stateid.seqid.wrapping_sub(old.seqid) < u32::MAX / 2
            };
            if open.stateid.as_ref().is_none_or(newer) {
                open.stateid = Some(granted.stateid);
            }
            self.touch(Touched::Open(id));
            return id;
        }
        let id = OpenId(self.name());
        let handle = self.packed(&granted.handle);
        let open = Open::new(&granted.handle, granted.owner, granted.shares, granted.principal);
        let open = Open { stateid: Some(granted.stateid), handle: handle.clone(), ..open };
        self.files.entry(handle).or_default().opens.push(id);
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

    /// Allows one LOCK or LOCKU of an open at a time.
    pub(crate) fn turn(&mut self, id: OpenId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        self.opens.get_mut(&id).map(Open::turn)
    }

    /// The opens of the file of an open.
    pub(crate) fn opens_beside(&self, id: OpenId) -> impl Iterator<Item = &Open> {
        let of = self.opens.get(&id).and_then(|open| self.files.get(&open.handle));
        of.into_iter().flat_map(|of| of.opens.iter()).filter_map(|id| self.opens.get(id))
    }

    /// All opens.
    pub(crate) fn opens(&self) -> impl Iterator<Item = (OpenId, &Open)> {
        self.opens.iter().map(|(id, open)| (*id, open))
    }

    /// Numbers of opens and of delegations, with those that are recorded as being given back.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.opens.len() + self.going_opens.len(), self.leases.len() + self.going_leases.len())
    }

    /// The open of a file by an owner.
    pub(crate) fn open_of(&self, handle: &Handle, owner: &Owner) -> Option<OpenId> {
        let of_owner = |id: &OpenId| self.opens.get(id).is_some_and(|open| open.owner == *owner);
        self.files.get(handle.as_bytes())?.opens.iter().copied().find(of_owner)
    }

    /// The handle, in the memory of the one that is held already, if any.
    fn packed(&self, handle: &Handle) -> SharedHandle {
        let held = self.files.get_key_value(handle.as_bytes()).map(|(held, _)| held.clone());
        held.unwrap_or_else(|| handle.into())
    }

    /// Forgets a file of which nothing is held.
    fn tidy(&mut self, handle: &SharedHandle) {
        if self.files.get(handle).is_some_and(|of| of.opens.is_empty() && of.lease.is_none()) {
            self.files.remove(handle);
        }
    }

    /// An open of a file with at least this access.
    pub(crate) fn open_for(&self, handle: &Handle, access: Share) -> Option<OpenId> {
        let ids = self.files.get(handle.as_bytes())?.opens.iter().copied();
        ids.into_iter().find(|id| {
            self.opens
                .get(id)
                .is_some_and(|open| open.shares.access.contains(access) && open.stateid.is_some())
        })
    }

    /// Removes an open: its id is invalid from now on. The open is going until [`closed`](State::closed).
    pub(crate) fn close(&mut self, id: OpenId) -> Option<Open> {
        let open = self.opens.remove(&id)?;
        if self.recorded && open.stateid.is_some() {
            self.going_opens.insert(id, open.clone());
        }
        self.touch(Touched::Open(id));
        if let Some(of) = self.files.get_mut(&open.handle) {
            of.opens.retain(|other| *other != id);
        }
        self.tidy(&open.handle);
        Some(open)
    }

    /// Notes that the origin no longer has this open and its locks.
    pub(crate) fn lose(&mut self, id: OpenId) {
        if let Some(open) = self.opens.get_mut(&id) {
            open.stateid = None;
            if let Some(locking) = &mut open.locking {
                locking.locks.clear();
                locking.doubts.clear();
            }
            self.touch(Touched::Open(id));
        }
    }

    /// Enters a delegation: a new one, or an update of the one for that file. The flag is true if the
    /// delegation is new or stronger. Returns `None` if the delegation was given up while this grant was in
    /// flight.
    pub(crate) fn delegated(&mut self, delegation: Delegation) -> Option<(LeaseId, bool)> {
        if self.was_given_up(&delegation.stateid) {
            return None;
        }
        let old = self.files.get(&delegation.handle).and_then(|of| of.lease);
        if let Some(id) = old
            && let Some(held) = self.leases.get_mut(&id)
            && held.stateid.other == delegation.stateid.other
        {
            let stronger = delegation.kind > held.kind;
            held.kind = held.kind.max(delegation.kind);
            // Replies overtake each other.
            if delegation.stateid.seqid.wrapping_sub(held.stateid.seqid) < u32::MAX / 2 {
                held.stateid = delegation.stateid;
                held.change = delegation.change;
            }
            self.touch(Touched::Lease(id));
            return Some((id, stronger));
        }
        if let Some(old) = old {
            self.leases.remove(&old);
            self.touch(Touched::Lease(old));
        }
        let id = LeaseId(self.name());
        let handle = self.packed(&delegation.handle.handle());
        self.files.entry(handle.clone()).or_default().lease = Some(id);
        self.leases.insert(id, Delegation { handle, ..delegation });
        self.touch(Touched::Lease(id));
        Some((id, true))
    }

    /// Was a delegation with this state id, or a later version of it, given up lately?
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

    /// Stores the change attribute that came with the grant of a delegation. It is not recorded.
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
        let id = self.files.get(handle.as_bytes())?.lease?;
        Some((id, self.leases.get(&id)?))
    }

    /// The delegation with this state id, whatever its seqid.
    pub(crate) fn lease_named(&self, stateid: &Stateid, handle: &Handle) -> Option<LeaseId> {
        self.lease_of(handle).filter(|(_, held)| held.stateid.other == stateid.other).map(|(id, _)| id)
    }

    /// Removes a delegation: its id is invalid from now on. The delegation is going until
    /// [`returned`](State::returned).
    pub(crate) fn give_up(&mut self, id: LeaseId) -> Option<Delegation> {
        let delegation = self.leases.remove(&id)?;
        if self.recorded {
            self.going_leases.insert(id, delegation.clone());
        }
        self.touch(Touched::Lease(id));
        self.given_up.truncate(GIVEN_UP_MAX - 1);
        self.given_up.push_front(delegation.stateid);
        if let Some(of) = self.files.get_mut(&delegation.handle) {
            of.lease.take_if(|lease| *lease == id);
        }
        self.tidy(&delegation.handle);
        Some(delegation)
    }

    /// The state to use for I/O on a file. It is the open's state if there is an open; otherwise that of a
    /// delegation that covers the access; otherwise none. Returns `None` if the open is unknown or lost.
    pub(crate) fn for_io(
        &self,
        handle: &Handle,
        open: Option<OpenId>,
        access: Share,
    ) -> Option<(Stateid, Used)> {
        if let Some(id) = open {
            let open = self.opens.get(&id).filter(|open| open.handle.as_bytes() == handle.as_bytes())?;
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

/// The state id with a seqid of zero, which means its latest version (RFC 8881, section 8.2.2).
pub(crate) fn latest(stateid: Stateid) -> Stateid {
    Stateid { seqid: 0, ..stateid }
}

/// A lease as the layer above sees it.
pub(crate) fn lease(id: LeaseId, kind: LeaseKind, change: u64) -> Lease {
    Lease { id, kind, until: None, change, space_limit: Lease::NO_SPACE_LIMIT }
}

/// Did only our own change happen to a directory between these two values of its change attribute?
pub(crate) fn unchanged(before: u64, after: Option<u64>, cinfo: protocol::nfs4::ChangeInfo) -> bool {
    cinfo.atomic && cinfo.before == before && after == Some(cinfo.after)
}

/// Nothing is known about the change.
pub(crate) const NO_WCC: Wcc = Wcc { before: None, after: None, change: None };

#[cfg(test)]
mod tests;
