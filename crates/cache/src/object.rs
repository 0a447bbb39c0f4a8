//! The known state of one remote object, and the effect of new attributes on it.
//!
//! Everything cached about an object (data, names in it, names of it, rights, listing, link target) belongs
//! to one **known state**: the attributes that the origin showed last. New attributes have one of three
//! effects:
//! - They are the same. Everything cached stays valid, and its age starts anew.
//! - They differ, and our own operations explain the change ([`crate::history`]). Everything cached stays
//!   valid, with our changes applied.
//! - They differ otherwise. Another client changed the object, and the cache drops everything.
//!
//! Replies overtake each other. Attributes from a call that was sent before the known ones arrived count only
//! if their ctime is not earlier. The **epoch** is a number for "no other client has changed the object
//! since". Names and listings in the index carry the epoch that they belong to, and hold as long as the
//! object has that epoch.
//!
//! While a **lease** from the layer below is held, no other client changes the object unannounced. The known
//! state is then current without a call. Every change that is seen is our own, even if the replies do not
//! prove it.
//!
//! A lease may outlive the process. The index entry is then current too, if it holds everything there was to
//! know. The cache records in the index that the lease **vouches** for the entry. It removes that record
//! before it sends a change of the object, and before the lease ends.
//!
//! This module is pure bookkeeping. Its callers report what was sent and received; it touches neither disk
//! nor network.

mod before;
mod changes;
mod delayed;
mod leases;
mod names;
mod presumed;
mod resting;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use vfs::{Attributes, Name, Timestamp};

use crate::data::Data;
use crate::held_lease::HeldLease;
use crate::history::ChangeHistory;
use crate::locks::Locks;
use crate::opens::Opens;
use crate::policy::Policy;
use crate::readahead::Streams;
use crate::rights::Rights;
use crate::store::records::Kept;
use crate::store::{ObjectFile, Place};
use crate::trust::Sent;
pub use before::Before;
pub use delayed::{DelayedData, Landing};
pub use names::DirectoryNames;
use presumed::Presumed;
pub use resting::{AtRest, Resting, RestingLease};

/// A file that has not changed for so long is no lock file of a single operation.
const SETTLED_MIN: Duration = Duration::from_secs(5);

/// Does a reply count as an open of the object? Replies to GETATTR, LOOKUP and ACCESS do. Replies that merely
/// carry attributes do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// An open: everything that is valid only until the next open is dropped.
    Yes,
    /// The same, by the call that made the object: its attributes are no news of another client.
    Made,
    /// No open: nothing is dropped.
    No,
}

/// The relation of the attributes in a reply to the known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// They are the known state now, in this epoch. Another thread may end the epoch before the rest of the
    /// reply is recorded. The reply then belongs to a state that is over.
    Known {
        /// The epoch of the object.
        epoch: u64,
    },
    /// They are older than the known state.
    Late,
    /// Operations of ours are in flight, and may or may not explain the attributes.
    Unclear,
}

#[derive(Clone, Debug)]
struct Known {
    attributes: Attributes,
    /// The latest call that showed the attributes.
    sent: Sent,
    /// The event at which the reply of that call arrived.
    received: u64,
    /// When this process first saw this state. `None` after a restart, until a call shows the state again.
    seen: Option<Instant>,
    /// How long the attributes are believed without a call (the attribute timeout).
    timeout: Duration,
    /// When the timeout was last set or doubled.
    timeout_from: Instant,
}

/// Everything known of one object.
#[derive(Debug)]
pub struct ObjectState {
    known: Option<Known>,
    /// The known attributes are current only if their call was sent at or after this event.
    distrusted_before: u64,
    epoch: u64,
    own: OwnChanges,
    presumed: Presumed,
    /// Marks for the index and the local disk.
    pub index: IndexMarks,
    /// The lease, the opens and the locks.
    pub held: Held,
    /// The object has lost its last name.
    pub unlinked: bool,
    /// The directory and the name where the object was last seen.
    pub place: Option<Place>,
    /// When the origin was last told of a read, and for how long it is not told again.
    pub touched: Option<(Instant, Duration)>,
    /// The rights that the origin has granted, by credential.
    pub rights: Rights,
    /// File data.
    pub data: Data,
    /// The object was made or emptied here, and no change by another client has been seen since. If it is a
    /// file, it has also been open here all the time.
    pub fresh: bool,
    /// Delayed writes.
    pub delayed: DelayedData,
    /// Sequential readers.
    pub streams: Streams,
    /// A guess has brought the listing of this directory, or this file, and nobody has used it so far.
    pub guessed: bool,
    /// A reader was given the names in this directory without attributes.
    pub listed_bare: bool,
    /// The target of a symbolic link.
    pub link: Option<Bytes>,
    /// The names in this directory.
    pub names: DirectoryNames,
}

/// Our own changes of an object, as far as they explain its states.
#[derive(Debug)]
struct OwnChanges {
    history: ChangeHistory,
    /// The number of our operations since none was in flight.
    explained: u32,
    /// When the first of these operations was sent, or slightly earlier.
    explained_from: Sent,
    /// A lease has been held since before the first of these operations was sent: none of the changes is
    /// another client's.
    covered: bool,
    /// Under a lease, the replies to our operations left the current attributes unknown. The next attributes
    /// that arrive are the result of our operations.
    ours: bool,
    /// A change of one of the object's names by us has moved its ctime, and no reply has shown the new state
    /// since.
    name_moved: bool,
}

/// Marks of an object for the index and the local disk: what has changed, and what must go.
#[derive(Debug, Default)]
pub struct IndexMarks {
    /// The index records that the lease vouches for its entry.
    vouched: bool,
    /// That record must be removed from the index at once.
    pub unvouched: bool,
    /// The index lacks the latest state.
    pub changed: bool,
    /// Cached data or a listing was dropped because of a change that is not ours, or may not be.
    pub distrusted: bool,
    /// Data files to be removed from the local disk.
    pub trash: Vec<Arc<ObjectFile>>,
}

/// State that is held on an object, at the origin and by the layer above.
#[derive(Debug, Default)]
pub struct Held {
    /// The lease of the origin, if any.
    pub lease: Option<HeldLease>,
    /// Opens of the layer above, and the open at the origin.
    pub opens: Opens,
    /// Byte-range locks.
    pub locks: Locks,
}

impl ObjectState {
    /// An object of which nothing is known.
    pub fn new(policy: &Policy) -> ObjectState {
        ObjectState {
            known: None,
            distrusted_before: 0,
            epoch: policy.epoch(),
            own: OwnChanges {
                history: ChangeHistory::default(),
                explained: 0,
                explained_from: policy.sending(),
                covered: false,
                ours: false,
                name_moved: false,
            },
            presumed: Presumed::default(),
            index: IndexMarks::default(),
            held: Held::default(),
            unlinked: false,
            place: None,
            touched: None,
            rights: Rights::default(),
            data: Data::default(),
            fresh: false,
            delayed: DelayedData::default(),
            streams: Streams::default(),
            guessed: false,
            listed_bare: false,
            link: None,
            names: DirectoryNames::loaded_at(policy.event()),
        }
    }

    /// Restores the state from the index. The restored attributes are not believed to be current, unless they
    /// are `vouched` for by a lease that is still held.
    pub fn restore(policy: &Policy, kept: &Kept, vouched: bool) -> ObjectState {
        let mut state = ObjectState::new(policy);
        if kept.nonracy || vouched {
            state.epoch = kept.epoch;
        } else {
            // The record has another epoch.
            state.index.changed = true;
        }
        state.index.vouched = vouched;
        // Any call of this process that shows the state confirms it. Until then the state is not current.
        let sent = Sent { sequence: 0, wall: kept.confirmed, ..policy.sending() };
        state.distrusted_before = u64::from(!vouched);
        let (timeout, _) = policy.timeouts(kept.attributes.is_dir());
        let (received, seen, timeout_from) = (policy.event(), None, sent.at);
        state.known =
            Some(Known { attributes: kept.attributes, sent, received, seen, timeout, timeout_from });
        state
    }

    /// The part of the state for the index, if anything is known.
    pub fn keep(&self, policy: &Policy) -> Option<Kept> {
        let known = self.known.as_ref()?;
        // The next process may not have the lease, so only the timestamps count here.
        let nonracy = self.is_stamped(policy, &policy.sending());
        Some(Kept { attributes: known.attributes, epoch: self.epoch, nonracy, confirmed: known.sent.wall })
    }

    /// The known state.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.known.as_ref().map(|known| &known.attributes)
    }

    /// When the call that last showed the known state was sent, by the local clock.
    pub fn confirmed(&self) -> Option<Timestamp> {
        self.known.as_ref().map(|known| known.sent.wall)
    }

    /// Is the object empty, as far as is known?
    pub fn is_empty(&self) -> bool {
        self.attributes().is_some_and(|known| known.size == 0)
    }

    /// Is this a regular file of which every byte is cached?
    pub fn is_complete(&self) -> bool {
        let complete = |known: &Attributes| {
            known.file_type == vfs::FileType::Regular && self.data.valid().contains(&(0..known.size))
        };
        self.attributes().is_some_and(complete)
    }

    /// Records that the object was seen under this name.
    pub fn see_at(&mut self, directory: &vfs::Handle, name: &Name) {
        let same = |place: &Place| place.directory == *directory && place.name == *name;
        if !self.place.as_ref().is_some_and(same) {
            self.place = Some(Place { directory: *directory, name: name.clone() });
            self.index.changed = true;
        }
    }

    /// The current epoch. A new one begins whenever another client may have changed the object.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The attributes, if they may be believed without a call: by a lease or by the attribute timeouts.
    pub fn current(&self) -> Option<&Attributes> {
        self.current_within(None)
    }

    /// The same, if the attributes are also no older than `age_max`. Under a lease their age does not matter.
    pub fn current_within(&self, age_max: Option<Duration>) -> Option<&Attributes> {
        if let Some(attributes) = self.leased().or_else(|| Some(self.presumed()?.0)) {
            return Some(attributes);
        }
        let known = self.known.as_ref()?;
        let timeout = age_max.map_or(known.timeout, |max| max.min(known.timeout));
        let recent = known.sent.at.elapsed() < timeout;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.own.history.is_suspect();
        (recent && trusted).then_some(&known.attributes)
    }

    /// May a LOOKUP that is a `stat` find this file without a call? It was shown within the last second, and
    /// has not changed for a while. A younger file may be a lock file that has gone again, and an exclusive
    /// creation begins with a LOOKUP.
    pub fn is_settled(&self, policy: &Policy) -> bool {
        let recent = self.current_within(policy.negative_max());
        recent.is_some_and(|known| policy.age_of(known.ctime) >= SETTLED_MIN.max(policy.origin.granularity()))
    }

    /// Until when the attributes may be believed without a call, leases aside.
    pub fn current_until(&self) -> Option<Instant> {
        let known = self.known.as_ref()?;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.own.history.is_suspect();
        let timed = trusted.then(|| known.sent.at + known.timeout);
        timed.or_else(|| Some(self.presumed()?.1))
    }

    /// The attributes, if a lease vouches for them: the origin would answer the same now.
    pub fn leased(&self) -> Option<&Attributes> {
        let lease = self.held.lease.as_ref().filter(|lease| lease.is_valid())?;
        let known = self.known.as_ref()?;
        let from = lease.vouches_from.max(self.distrusted_before);
        (known.sent.sequence >= from && !self.own.history.is_suspect()).then_some(&known.attributes)
    }

    /// The change attribute that the origin would answer now, if a lease vouches for it and no change of ours
    /// is in flight.
    pub fn vouched_change(&self) -> Option<u64> {
        let still = !self.own.history.is_under_way();
        self.leased().filter(|_| still).map(|known| known.change)
    }

    /// The attributes, if they are fresh enough for the requester. If `open` is true, they must be as good as
    /// attributes that were requested after the request arrived.
    pub fn believed(&self, open: bool) -> Option<&Attributes> {
        let known = if open { self.leased().or_else(|| Some(self.presumed()?.0)) } else { self.current() };
        known.or_else(|| self.told())
    }

    /// Under a lease, while replies to our changes in flight do not fit together: the latest state that they
    /// have reported. A change that this state lacks has not been answered to its requester yet.
    fn told(&self) -> Option<&Attributes> {
        let known = self.known.as_ref()?;
        let lease = self.held.lease.as_ref().filter(|lease| lease.is_valid())?;
        let from = lease.vouches_from.max(self.distrusted_before);
        let ours =
            self.own.covered && self.own.history.is_under_way() && self.own.explained_from.sequence >= from;
        (ours && self.own.history.is_suspect()).then(|| self.own.history.latest(&known.attributes)).flatten()
    }

    /// Is the object needed for more than its known state: a lease, opens, locks or delayed writes?
    pub fn is_held(&self) -> bool {
        let used = self.held.lease.is_some() || !self.held.opens.is_empty() || !self.held.locks.is_empty();
        used || self.delayed.writes.is_some()
    }

    /// Were the known attributes requested after this event?
    pub fn is_known_since(&self, event: u64) -> bool {
        let since =
            |known: &Known| known.sent.sequence > event && known.sent.sequence >= self.distrusted_before;
        !self.own.history.is_suspect() && self.known.as_ref().is_some_and(since)
    }

    /// Did this call show the known state last?
    pub fn is_shown_by(&self, sent: &Sent) -> bool {
        self.known.as_ref().is_some_and(|known| known.sent.sequence == sent.sequence)
    }

    /// Has this process seen the known state?
    pub fn is_seen(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.seen.is_some())
    }

    /// Has a state been seen that our operations in flight may or may not explain? Then no cached value is
    /// used.
    pub fn is_suspect(&self) -> bool {
        self.own.history.is_suspect()
    }

    /// Could a change after `sent` carry the timestamps of the known state, without a lease that would
    /// announce it?
    pub fn is_racy(&self, policy: &Policy, sent: &Sent) -> bool {
        let announced = |lease: &HeldLease| lease.is_valid() && lease.since <= sent.sequence;
        !self.held.lease.as_ref().is_some_and(announced) && !self.is_stamped(policy, sent)
    }

    /// Does every change after `sent` show in the timestamps?
    fn is_stamped(&self, policy: &Policy, sent: &Sent) -> bool {
        let racy = |known: &Known| policy.origin.is_racy(&known.attributes.wcc(), known.seen, sent);
        self.known.as_ref().is_some_and(|known| !racy(known))
    }

    /// Takes note of the attributes in the reply to the call `sent`.
    pub fn observe(
        &mut self,
        policy: &Policy,
        attributes: &Attributes,
        sent: &Sent,
        opening: Opening,
    ) -> Seen {
        if opening != Opening::No {
            self.open();
        }
        let Some(known) = &mut self.known else {
            if opening != Opening::Made {
                policy.news.seen(attributes.ctime, policy.event());
            }
            self.adopt(policy, attributes, sent);
            return self.seen_known();
        };
        if same(&known.attributes, attributes) {
            confirm(known, policy, attributes, sent);
            self.presumed.shown(sent.sequence >= self.distrusted_before);
            // The index can now record that the lease vouches.
            self.index.changed |= self.held.lease.is_some() && !self.index.vouched;
            return self.seen_known();
        }
        let overtaken = sent.sequence < known.received;
        if overtaken
            && (attributes.ctime < known.attributes.ctime || self.own.history.has_passed(&attributes.wcc()))
        {
            return Seen::Late;
        }
        if self.own.history.is_under_way() {
            self.own.history.observe(attributes);
            if self.own.history.is_suspect() && opening != Opening::No {
                self.doubt_writes();
            }
            return if self.own.history.is_suspect() { Seen::Unclear } else { Seen::Late };
        }
        if self.own.ours && !overtaken && sent.sequence >= self.distrusted_before {
            self.own.ours = false;
            self.data.clip(attributes.size);
            self.adopt(policy, attributes, sent);
            return self.seen_known();
        }
        self.doubt_writes();
        self.drop_all(policy);
        if !std::mem::take(&mut self.own.name_moved) {
            self.note_stranger(policy, Some(attributes.ctime));
        }
        self.adopt(policy, attributes, sent);
        if overtaken {
            // The timestamps do not tell which of the two states is the later one.
            self.distrust(policy);
        }
        self.seen_known()
    }

    fn seen_known(&self) -> Seen {
        Seen::Known { epoch: self.epoch }
    }

    /// Does a reply that was seen so still belong to the known state? If it had no attributes, it belongs to
    /// the state `before` the call or to a later one.
    pub fn is_of(&self, seen: Option<Seen>, before: &Before) -> bool {
        let epoch = match seen {
            None => before.epoch,
            Some(Seen::Known { epoch }) => epoch,
            Some(Seen::Late | Seen::Unclear) => return false,
        };
        self.known.is_some() && self.epoch == epoch
    }

    /// Forgets everything known of the object: the origin no longer has it, or the cleaner evicts it.
    pub fn forget(&mut self, policy: &Policy) {
        self.drop_all(policy);
        self.known = None;
        self.distrust(policy);
    }

    /// From now on, the known attributes are not believed without a call.
    pub fn distrust(&mut self, policy: &Policy) {
        self.unvouch();
        self.distrusted_before = policy.event();
    }

    /// A change of mode or owner by us is about to begin, or has ended: drops all rights.
    pub fn touch_rights(&mut self, policy: &Policy) {
        self.unvouch();
        self.index.changed |= self.rights.touch(policy.event());
    }

    /// Drops the data alone, to free capacity.
    pub fn drop_data(&mut self) {
        if let Some(file) = self.data.discard() {
            self.index.trash.push(file);
            self.index.changed = true;
        }
    }

    /// Drops everything that belongs to the known state, because the object has left that state.
    fn drop_all(&mut self, policy: &Policy) {
        self.unvouch();
        self.fresh = false;
        self.index.distrusted |= self.data.file().is_some() || self.names.listing.is_some();
        self.own.ours = false;
        self.drop_data();
        self.rights.clear();
        self.link = None;
        self.names.listing = None;
        self.names.gathering = None;
        self.epoch = policy.epoch();
        self.index.changed = true;
    }

    /// Another client may have changed the file, or the origin may have lost our unstable writes. A COMMIT
    /// will show which.
    fn doubt_writes(&mut self) {
        if let Some(writes) = &mut self.delayed.writes {
            writes.doubt();
        }
    }

    /// An open: drops everything that is valid only until the next open.
    fn open(&mut self) {
        self.index.changed |= self.data.distrust_racy();
        self.index.changed |= self.rights.forget_racy();
        if self.names.listing.as_ref().is_some_and(|listing| listing.racy) {
            self.names.listing = None;
            self.index.changed = true;
        }
        if self.names.gathering.as_ref().is_some_and(|gathering| gathering.racy) {
            self.names.gathering = None;
        }
    }

    /// Takes note that another client has changed the object, as far as the attributes tell.
    fn note_stranger(&mut self, policy: &Policy, ctime: Option<Timestamp>) {
        let event = policy.event();
        match ctime {
            Some(ctime) => policy.news.seen(ctime, event),
            None => policy.news.heard(event),
        }
        self.names.doubted = event;
    }

    fn adopt(&mut self, policy: &Policy, attributes: &Attributes, sent: &Sent) {
        self.unvouch();
        policy.news.own(attributes.ctime);
        self.presumed.shown(sent.sequence >= self.distrusted_before);
        let (timeout, _) = policy.timeouts(attributes.is_dir());
        let now = Instant::now();
        self.known = Some(Known {
            attributes: *attributes,
            sent: *sent,
            received: policy.event(),
            seen: Some(now),
            timeout,
            timeout_from: now,
        });
        self.index.changed = true;
    }
}

/// Are both states the same, as far as the attributes tell? Access times and the blocks in use may differ.
fn same(a: &Attributes, b: &Attributes) -> bool {
    let identity = |a: &Attributes| (a.file_type, a.fileid, a.nlink, a.mode, a.uid, a.gid);
    a.wcc() == b.wcc() && identity(a) == identity(b)
}

/// Takes note that a reply showed the known state again.
fn confirm(known: &mut Known, policy: &Policy, attributes: &Attributes, sent: &Sent) {
    if sent.sequence <= known.sent.sequence {
        return;
    }
    known.attributes = *attributes;
    known.sent = *sent;
    known.received = policy.event();
    known.seen.get_or_insert_with(Instant::now);
    // As in Linux: each time the state outlives its timeout, the next timeout is twice as long.
    if known.timeout_from.elapsed() >= known.timeout {
        let (min, max) = policy.timeouts(attributes.is_dir());
        known.timeout = (known.timeout * 2).clamp(min, max);
        known.timeout_from = sent.at;
    }
}
