//! The open that the origin has for all opens of a file: how it is requested, used, narrowed and closed.
//!
//! An OPEN runs as a task of its own. A waiter that gives up must not leave a lease behind that the cache
//! does not know of.

pub mod piggyback;
pub mod read;
pub mod settle;
pub mod untold;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tokio::sync::OwnedMutexGuard;
use vfs::{
    AccessMask, Attributes, BringsDirectoryLease, Caller, Error, Handle, Lease, LeaseKind, Name, OpenId,
    OpenRequest, Opened, Owner, Read, Result, Share, Shares, Stability, StateidBasis, Status, Want, Wcc,
    Written,
};

use crate::changes::{Change, NameChange, OwnWrite, nameless};
use crate::core::Core;
use crate::held_lease::HeldLease;
use crate::lease::Early;
use crate::names::{Leads, NameEntry};
use crate::object::{Before, ObjectState, Opening, Seen};
use crate::table::Object;
use crate::trust::Sent;
use crate::writes::Cut;
use piggyback::{Brought, Reply};

/// The owner of all opens of a cache at the origin.
const OWNER: &[u8] = b"cache";

/// An operation that uses the open at the origin. The open is not closed meanwhile.
#[derive(Debug)]
pub struct Use {
    core: Weak<Core>,
    object: Arc<Object>,
    /// The id of the open.
    pub id: OpenId,
}

impl Drop for Use {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else { return };
        core.with(&self.object, |state| state.held.opens.end_use());
        core.settle_soon(&self.object);
    }
}

/// The result of an OPEN at the origin.
pub struct Granted {
    /// The file.
    pub object: Arc<Object>,
    /// Keeps the open from being closed. `None` if the OPEN crossed a close, which may have ended the open.
    pub usage: Option<Use>,
    /// The reply to the OPEN.
    pub opened: Opened,
    /// The result of the READ that was piggybacked on the OPEN.
    pub brought: Option<Brought>,
}

/// An open by name, and the state of its directory before.
struct Naming<'a> {
    directory: Arc<Object>,
    name: &'a Name,
    before: Before,
    /// If the open may create the file: the changes of the name and of the directory.
    making: Option<(NameChange<'a>, Change<'a>)>,
    /// If the open may truncate the file: the file that the name is believed to lead to, the write of the
    /// range that goes, and the change.
    cutting: Option<(Arc<Object>, OwnWrite, Change<'a>)>,
}

impl Core {
    /// The OPEN that the cache sends for this request. It asks for a lease whether or not the client wants
    /// one, because all clients benefit.
    pub fn open_below(request: &OpenRequest) -> OpenRequest {
        // To the origin, no open of this process is a reclaim.
        OpenRequest { owner: Owner(OWNER.into()), want: Want::Any, reclaim: false, ..request.clone() }
    }

    /// The OPEN that the cache sends for a file by its handle.
    pub fn open_handle_below(handle: Handle, shares: Shares, want: Want) -> OpenRequest {
        let Shares { access, deny } = shares;
        let owner = Owner(OWNER.into());
        OpenRequest { deny, want, ..OpenRequest::new(handle, None, owner, access) }
    }

    /// Sends an OPEN. `turn` is the lock of the file, if the file is known. It keeps the open from being
    /// closed meanwhile.
    pub async fn ask_open(
        &self,
        caller: &Caller,
        request: OpenRequest,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Result<Granted> {
        self.open_with_piggyback(caller, request, turn, None).await
    }

    /// The same, with a piggybacked READ of this range, if the layer below combines them.
    pub async fn open_with_piggyback(
        &self,
        caller: &Caller,
        request: OpenRequest,
        turn: Option<OwnedMutexGuard<()>>,
        piggyback: Option<Range<u64>>,
    ) -> Result<Granted> {
        let core = self.share().ok_or(Status::ServerFault)?;
        let caller = caller.clone();
        vfs::run_to_completion(async move {
            let granted = core.run_open(&caller, &request, piggyback).await;
            drop(turn);
            granted
        })
        .await
    }

    async fn run_open(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        piggyback: Option<Range<u64>>,
    ) -> Result<Granted> {
        let cut = match (&request.name, &request.create) {
            (Some(name), Some((_, set))) => self.cut_named(caller, &request.handle, name, set.size).await,
            _ => None,
        };
        if request.create.as_ref().is_some_and(|(_, set)| set.size.is_some()) {
            self.sync_journal().await;
        }
        let naming = request.name.as_ref().map(|name| self.begin_naming(request, name)).transpose()?;
        let directory = naming.as_ref().filter(|naming| naming.making.is_none());
        let directory = directory.map(|naming| naming.directory.clone());
        let wanted = directory.filter(|directory| self.wants_directory_lease(directory));
        let sent = self.policy.sending();
        let _grant = self.begin_grant();
        self.counters.open.bump();
        let asked = OpenRequest {
            want_directory_lease: wanted.is_some(),
            read_first: piggyback.as_ref().map(|range| (range.start, (range.end - range.start) as u32)),
            ..request.clone()
        };
        let mut result = self.below.open(caller, &asked).await;
        let lease = Opened::detach(&mut result);
        let read = result.as_mut().ok().and_then(|opened| opened.read.take()).map(|read| *read);
        match &read {
            Some(read) => {
                self.counters.piggybacked_reads.bump();
                self.measure(read.data.len() as u64);
            }
            None => self.link.on_round_trip(sent.at.elapsed()),
        }
        let read = piggyback.map(|range| range.start).zip(read);
        let result = match result {
            Ok(opened) => {
                let is_cut = |cut: &Cut| cut.is_of(&opened.handle) && !opened.created;
                cut.filter(is_cut).into_iter().for_each(Cut::done);
                if let Some(size) = request.create.as_ref().and_then(|(_, set)| set.size) {
                    self.was_cut(&self.object(&opened.handle), size);
                }
                Ok(self.note_opened(caller, request, (opened, read), naming, &sent))
            }
            Err(error) => {
                self.note_not_opened(caller, request, &error, naming, &sent);
                Err(error)
            }
        };
        if let Some(directory) = wanted {
            self.note_delegation(&directory, lease, &sent);
        }
        result
    }

    fn begin_naming<'a>(&'a self, request: &OpenRequest, name: &'a Name) -> Result<Naming<'a>> {
        let directory = self.object(&request.handle);
        let cut = request.create.as_ref().and_then(|(_, set)| set.size);
        let child = match self.name_entry(&request.handle, name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => Some(self.object(&child)),
            _ => None,
        };
        let cutting = match (cut, child) {
            (Some(size), Some(child)) => {
                let own = OwnWrite::begin(self, &child, size..u64::MAX)?;
                let change = Change::begin(self, &child);
                Some((child, own, change))
            }
            _ => None,
        };
        let making = request
            .create
            .is_some()
            .then(|| (NameChange::begin(self, &directory, name), Change::begin(self, &directory)));
        let before = self.with(&directory, |state| Before::of(state));
        Ok(Naming { directory, name, before, making, cutting })
    }

    fn note_opened(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        (opened, read): (Opened, Option<(u64, Read)>),
        mut naming: Option<Naming>,
        sent: &Sent,
    ) -> Granted {
        let object = self.object(&opened.handle);
        let forgotten = self.memory.table().may_be_written_since(&object.handle, sent.at);
        let cutting = naming.as_mut().and_then(|naming| naming.cutting.take());
        let cut = request.create.as_ref().and_then(|(_, set)| set.size).filter(|_| !opened.created);
        // The write is kept until this function ends: until then, the truncated range does not count as
        // known.
        let _own = cutting.map(|(child, own, change)| {
            if cut.is_some() && child.handle == opened.handle {
                change.done(&Wcc::seen(Some(opened.attributes)));
            } else {
                change.failed(&Status::NoEnt.into());
            }
            own
        });
        // A change of the name by us may have come between the OPEN and its reply. It has then moved the
        // file's ctime.
        let moved = naming.as_ref().is_some_and(|naming| {
            let before = naming.before.names_generation;
            self.with(&naming.directory, |state| state.touched_since(before, naming.name))
        });
        let (entry, usage, early, came) = self.with(&object, |state| {
            if let Some(size) = cut {
                // Counts as a write of ours: other bytes of ours in flight to that range are not known to
                // outlast it.
                let ticket = state.data.begin_write(size..u64::MAX);
                state.data.end_write(ticket);
                state.index.changed = true;
            }
            let opening = if opened.created { Opening::Made } else { Opening::Yes };
            let (kept, early) = self.take_lease(state, &object, opened.lease);
            let seen = state.observe(&self.policy, &opened.attributes, sent, opening);
            state.unlinked &= opened.attributes.nlink == 0;
            if let Some(lease) = &kept {
                self.grant_lease(state, lease, (seen, sent));
            }
            // A lease that came with a later call does not vouch for this reply.
            let racy = kept.is_none() && state.is_racy(&self.policy, sent);
            self.learn_rights(state, caller, request, &opened, (seen, sent, kept, racy));
            if moved {
                state.lose_names(&self.policy);
            }
            let shares = request.shares();
            let clear = state.held.opens.opened(opened.id, shares, caller, sent.sequence);
            let usage = if clear { state.held.opens.begin_use(shares) } else { None };
            // The lease vouches for the name, too, because it was granted by the same call.
            let (leads, epoch) = (Leads::To(opened.handle), state.epoch());
            let entry = NameEntry { leads, epoch, racy, within: None };
            let reply = Reply { seen, lease: opened.lease.as_ref(), forgotten, sent };
            let came = read.and_then(|(start, read)| self.take_piggybacked(state, start, read, &reply));
            ((matches!(seen, Seen::Known { .. }) && !moved).then_some(entry), usage, early, came)
        });
        let brought = self.brought(&object, came);
        let usage = usage.map(|id| Use { core: self.weak(), object: object.clone(), id });
        if let Some(naming) = naming {
            self.note_named(caller, &opened, naming, entry, sent);
        }
        if let Some(Early::Recall(recall)) = early {
            self.start_recall(&object, recall);
        }
        Granted { object, usage, opened, brought }
    }

    /// Records the rights of the caller that an OPEN has proven or reported. `kept` is the lease of the
    /// reply, if it is held.
    fn learn_rights(
        &self,
        state: &mut ObjectState,
        caller: &Caller,
        request: &OpenRequest,
        opened: &Opened,
        (seen, sent, kept, racy): (Seen, &Sent, Option<Lease>, bool),
    ) {
        if !matches!(seen, Seen::Known { .. }) || sent.sequence <= state.rights.touched() {
            return;
        }
        if let Some(granted) = opened.granted {
            state.rights.remember_answer(&caller.principal, granted, racy, sent.wall);
        }
        // The creator of a file may open it, whatever its mode.
        if !opened.created {
            let bits = needed(request.access);
            state.rights.remember_success(&caller.principal, bits, sent.wall);
        } else if let Some(lease) = kept.filter(|_| self.leases_alone()) {
            // With the lease, the origin has said what else the creator may do.
            let write = if lease.kind == LeaseKind::Write { Share::WRITE } else { Share::empty() };
            state.rights.remember_success(&caller.principal, needed(Share::READ | write), sent.wall);
        }
        state.index.changed = true;
    }

    /// Enters the lease of a reply in the table of leases, before the attributes of the reply are observed. A
    /// lease that it replaces ends here, in the state that it vouched for. Returns the lease, unless it has
    /// ended or its reply is late, and the news about it.
    pub fn take_lease(
        &self,
        state: &mut ObjectState,
        object: &Arc<Object>,
        lease: Option<Lease>,
    ) -> (Option<Lease>, Option<Early>) {
        let is_late = |lease: &Lease| state.held.lease.as_ref().is_some_and(|held| held.id > lease.id);
        let lease = lease.filter(|lease| lease.kind != LeaseKind::Timeout && !is_late(lease));
        let Some(lease) = lease else { return (None, None) };
        let used = object.used.load(Ordering::Relaxed);
        let early = self.origin.leases().put(lease.id, lease.kind, &object.handle, used);
        if matches!(early, Some(Early::Revoked | Early::Returned)) {
            return (None, early);
        }
        if state.held.lease.as_ref().is_some_and(|held| held.id != lease.id) {
            self.lose_lease(state, object);
        }
        (Some(lease), early)
    }

    /// The object has a lease that was [taken](Core::take_lease), with attributes that turned out to be
    /// `seen`.
    pub fn grant_lease(&self, state: &mut ObjectState, lease: &Lease, (seen, sent): (Seen, &Sent)) {
        let above = state.held.lease.as_ref().map(|held| held.above);
        let above = above.unwrap_or_else(|| self.origin.leases().name());
        state.grant(&self.policy, seen, sent, |since, from| HeldLease::granted(lease, above, since, from));
    }

    fn note_named(
        &self,
        caller: &Caller,
        opened: &Opened,
        naming: Naming,
        entry: Option<NameEntry>,
        sent: &Sent,
    ) {
        let Naming { directory, name, mut before, making, .. } = naming;
        if let Some((names, change)) = making {
            if opened.created {
                change.done(&opened.directory);
                let made = Some(&opened.attributes);
                self.with(&directory, |state| state.presume(&self.policy, &opened.directory, made));
            } else {
                change.unchanged(opened.directory.after.as_ref());
            }
            names.end(entry);
            // The name could be looked up in the state that our own change has left.
            self.with(&directory, |state| {
                let told = opened.directory.after.map(|after| after.wcc());
                if told.is_some() && state.attributes().map(Attributes::wcc) == told {
                    before.epoch = state.epoch();
                }
            });
        } else {
            let seen = self.observe(&directory, opened.directory.after.as_ref(), sent, Opening::No);
            let within = self.seen_within(&directory, seen, sent, &before);
            let entry = entry.map(|entry| NameEntry { within, ..entry });
            self.remember_name(&directory, name, entry, before.names_generation);
        }
        self.remember_success(caller, &directory, AccessMask::LOOKUP, sent, &before);
    }

    fn note_not_opened(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        error: &Error,
        naming: Option<Naming>,
        sent: &Sent,
    ) {
        let Some(Naming { directory, name, before, making, cutting }) = naming else {
            return self.note_error(&self.object(&request.handle), error, sent);
        };
        if let Some((_, _own, change)) = cutting {
            change.failed(&nameless(error));
        }
        match making {
            Some((names, change)) => {
                change.failed(error);
                names.failed(error);
            }
            None => self.note_not_found(caller, &directory, name, error, (sent, &before)),
        }
    }

    /// Begins an operation that uses the open at the origin, if the open has this share.
    pub fn use_open(&self, object: &Arc<Object>, shares: impl Into<Shares>) -> Option<Use> {
        let id = self.with(object, |state| state.held.opens.begin_use(shares.into()))?;
        Some(Use { core: self.weak(), object: object.clone(), id })
    }

    /// Opens a file for reading on behalf of a client that has no opens and wants this range of it, to gain a
    /// lease. When this returns, piggybacked bytes of the range count as a fetch in flight. If the OPEN
    /// fails, the READ does without.
    pub async fn open_for_reading(&self, caller: &Caller, object: &Arc<Object>, range: &Range<u64>) {
        let turn = object.turn.clone().lock_owned().await;
        let shares = Shares::from(Share::READ);
        if self.with(object, |state| state.held.opens.covers(shares) || state.held.opens.is_refused()) {
            return;
        }
        let request = Core::open_handle_below(object.handle, shares, Want::Any);
        let piggyback = self.piggyback_on_read(object, range);
        match self.open_with_piggyback(caller, request, Some(turn), piggyback).await {
            // The reader takes the bytes as they came, and does not wait for the local disk.
            Ok(Granted { brought, .. }) => brought.into_iter().for_each(|it| drop(tokio::spawn(it.store()))),
            Err(_) => self.with(object, |state| state.held.opens.refuse()),
        }
    }

    /// WRITE, under the open at the origin if there is one.
    pub async fn write_below(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        offset: u64,
        data: bytes::Bytes,
        stability: Stability,
    ) -> Result<Written> {
        self.counters.write.bump();
        if let Some(usage) = self.use_open(object, Share::WRITE) {
            let by = StateidBasis::Open(usage.id);
            match self.below.write(caller, &object.handle, by, offset, data.clone(), stability).await {
                Err(error) if is_lost(&error) => self.lose_open(object, usage.id, &error),
                result => return result,
            }
        }
        self.below.write(caller, &object.handle, StateidBasis::Anonymous, offset, data, stability).await
    }

    /// The stateid basis of any other operation.
    pub fn stateid_basis(usage: Option<&Use>) -> StateidBasis {
        usage.map_or(StateidBasis::Anonymous, |usage| StateidBasis::Open(usage.id))
    }

    /// As [`Core::use_open`], but waits for a narrowing in flight.
    pub async fn use_open_in_turn(&self, object: &Arc<Object>, shares: impl Into<Shares>) -> Option<Use> {
        let shares = shares.into();
        if let Some(usage) = self.use_open(object, shares) {
            return Some(usage);
        }
        if !self.with(object, |state| state.held.opens.covers(shares)) {
            return None;
        }
        let _turn = object.turn.lock().await;
        self.use_open(object, shares)
    }

    /// An operation under an open failed. If the origin no longer knows the open, the cache forgets the open
    /// and the locks that the origin held.
    pub fn lose_open(&self, object: &Arc<Object>, id: OpenId, error: &Error) {
        if error.status != Status::BadStateId {
            return;
        }
        self.with(object, |state| {
            state.held.opens.lose(id);
            state.held.locks.lose_told();
        });
    }
}

/// The rights that an open with this access needs.
pub fn needed(access: Share) -> AccessMask {
    let mut bits = AccessMask::empty();
    if access.contains(Share::READ) {
        bits |= AccessMask::READ;
    }
    if access.contains(Share::WRITE) {
        bits |= AccessMask::MODIFY | AccessMask::EXTEND;
    }
    bits
}

/// Does the failure mean that the origin has no such open, or none with that share?
pub fn is_lost(error: &Error) -> bool {
    matches!(error.status, Status::BadStateId | Status::OpenMode)
}
