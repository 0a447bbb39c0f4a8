//! What is known of one remote object, and what new knowledge does to it.
//!
//! Everything cached about an object (data, names in it, names of it, rights, listing, link target) belongs to one
//! **known state** of it: the attributes last shown by the origin. New attributes either
//! - are the same: everything holds, and is younger by as much;
//! - differ, and our own operations explain the change ([`crate::history`]): everything holds, with what we changed;
//! - differ otherwise: somebody else changed it, and everything is dropped.
//!
//! Replies overtake each other, so attributes count only if they were asked for after the known ones had arrived, or
//! carry a later ctime. The **epoch** is a number for "nobody else has changed it since": names and listings in the
//! index carry the epoch they belong to, and hold as long as it does.
//!
//! While a **lease** from below is held, nobody else changes the object unannounced: what is known is current without
//! being asked, and every change that is seen is our own, even if the replies do not prove it.
//!
//! A lease may outlive the process. Then what the index has is current too, if it was all there was to know: the index is
//! told so (it is **vouched** for), and told otherwise before anything of ours changes the object, and before the lease
//! ends.
//!
//! This is pure bookkeeping; it is told what was sent and received, and touches neither disk nor network.

mod changes;
mod leases;
mod names;
mod presumed;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use vfs::{Attributes, Name, Timestamp};

use crate::data::Data;
use crate::history::ChangeHistory;
use crate::lease::HeldLease;
use crate::listing::{Gathering, KnownListing};
use crate::locks::Locks;
use crate::opens::Opens;
use crate::policy::Policy;
use crate::readahead::Streams;
use crate::rights::Rights;
use crate::store::{ObjectFile, Place};
use crate::trust::Sent;
use crate::writes::Writes;
use names::{BusyName, DelegationBackoff, Touched};
use presumed::Presumed;

/// Does a reply count as an open of the object? Those to GETATTR, LOOKUP and ACCESS do; those that merely carry
/// attributes along do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// What is only good until the next open goes.
    Yes,
    /// The same, and the object was made by this very call: it is no news of another client.
    Made,
    /// It stays.
    No,
}

/// What the attributes in a reply turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// They are the known state now.
    Known,
    /// They are older than the known state.
    Late,
    /// Operations of ours are under way, and may or may not explain them.
    Unclear,
}

#[derive(Clone, Debug)]
struct Known {
    attributes: Attributes,
    /// The latest call that showed them.
    sent: Sent,
    /// When its reply came, in the order of events.
    received: u64,
    /// When this very state was first seen. Not known across a restart.
    seen: Option<Instant>,
    /// How long they are believed without asking.
    timeout: Duration,
    /// When that was last doubled, or set.
    timeout_from: Instant,
}

/// What is known of one object.
#[derive(Debug)]
pub struct ObjectState {
    known: Option<Known>,
    /// Attributes asked for before this event are the known state, but not the current one.
    distrusted_before: u64,
    epoch: u64,
    history: ChangeHistory,
    /// The operations of ours since the chain was last at rest.
    explained: u32,
    /// When the first of them was sent, or a little earlier.
    explained_from: Sent,
    /// A lease has been held since before the first of them was sent: nobody else is among them.
    covered: bool,
    /// Operations of ours under a lease have left it open what the attributes are now. The next ones are ours.
    ours: bool,
    presumed: Presumed,
    /// The index says that what it has is vouched for by the lease.
    vouched: bool,
    /// The index is to say so no more, at once.
    pub unvouched: bool,
    /// What vouches for it, if anything does.
    pub lease: Option<HeldLease>,
    /// Opens, here and at the origin.
    pub opens: Opens,
    /// Byte-range locks.
    pub locks: Locks,
    /// Its last name is gone.
    pub unlinked: bool,
    /// Where it was last seen.
    pub place: Option<Place>,
    /// When the origin was last told of a read, and how long it is not told again.
    pub touched: Option<(Instant, Duration)>,
    /// A lease on this directory was asked for in vain.
    pub undelegated: Option<Instant>,
    /// The epoch in which all names in it were asked for, because one was.
    pub listed: Option<u64>,
    /// To whom the origin allowed what.
    pub rights: Rights,
    /// Counts our own changes of mode and owner, before and after each: what was asked meanwhile is not stored.
    pub rights_generation: u64,
    /// When that was last, in the order of events.
    pub rights_touched: u64,
    /// File data.
    pub data: Data,
    /// It was made or emptied here, a file has been open here ever since, and nobody else's hand has been seen.
    pub fresh: bool,
    /// A name has been asked for in it that was not known.
    pub sought: bool,
    /// The epoch in which a name was asked for in vain.
    pub missed: Option<u64>,
    /// Writes that are delayed, if any are.
    pub writes: Option<Box<Writes>>,
    /// Where the file ended when the latest of them reached the origin, and when that was, in the order of events:
    /// attributes that were asked for before may not show it.
    pub landings: VecDeque<(u64, u64)>,
    /// Sequential readers.
    pub streams: Streams,
    /// The target of a symbolic link.
    pub link: Option<Bytes>,
    /// Counts our own changes of names in it, before and after each: what was asked meanwhile is not stored.
    pub names_generation: u64,
    names_touched: Touched,
    /// The last event that showed a change of it by another client: positive entries are confirmed by later calls.
    names_doubted: u64,
    /// A change of a name of ours has moved its ctime, and the state since then has not been seen.
    name_moved: bool,
    /// The last event after which a negative entry is confirmed by a later call.
    negative_from: u64,
    busy_names: Vec<BusyName>,
    tickets: u64,
    /// How much a lease on it is wanted, if it is a directory.
    pub delegation_backoff: DelegationBackoff,
    /// All names in it.
    pub listing: Option<KnownListing>,
    /// The beginning of all names in it.
    pub gathering: Option<Gathering>,
    /// Files to be removed from this disk.
    pub trash: Vec<Arc<ObjectFile>>,
    /// There is something to tell the index.
    pub changed: bool,
    /// Something cached was dropped because of a change that is not ours, or may not be.
    pub distrusted: bool,
}

/// What the index keeps of a state, but for the data.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The known state.
    pub attributes: Attributes,
    /// Its epoch.
    pub epoch: u64,
    /// Every later change of the object shows in its attributes.
    pub nonracy: bool,
    /// When the call was sent that last showed it, by this machine's clock.
    pub confirmed: Timestamp,
}

impl ObjectState {
    /// Nothing is known.
    pub fn new(policy: &Policy) -> ObjectState {
        ObjectState {
            known: None,
            distrusted_before: 0,
            epoch: policy.epoch(),
            history: ChangeHistory::default(),
            explained: 0,
            explained_from: policy.sending(),
            covered: false,
            ours: false,
            presumed: Presumed::default(),
            vouched: false,
            unvouched: false,
            lease: None,
            opens: Opens::default(),
            locks: Locks::default(),
            unlinked: false,
            place: None,
            touched: None,
            undelegated: None,
            listed: None,
            rights: Rights::default(),
            rights_generation: 0,
            rights_touched: 0,
            data: Data::default(),
            fresh: false,
            sought: false,
            missed: None,
            writes: None,
            landings: VecDeque::new(),
            streams: Streams::default(),
            link: None,
            names_generation: 0,
            names_touched: Touched::default(),
            names_doubted: 0,
            name_moved: false,
            negative_from: 0,
            busy_names: Vec::new(),
            tickets: 0,
            delegation_backoff: DelegationBackoff::default(),
            listing: None,
            gathering: None,
            trash: Vec::new(),
            changed: false,
            distrusted: false,
        }
    }

    /// What the index remembers: the known state, not believed to be current, unless it is vouched for by a lease that is
    /// held still.
    pub fn restore(policy: &Policy, kept: &Kept, vouched: bool) -> ObjectState {
        let mut state = ObjectState::new(policy);
        if kept.nonracy || vouched {
            state.epoch = kept.epoch;
        }
        state.vouched = vouched;
        // Any call of this process that shows it confirms it; until then it is not current.
        let sent = Sent { sequence: 0, wall: kept.confirmed, ..policy.sending() };
        state.distrusted_before = u64::from(!vouched);
        let (timeout, _) = policy.timeouts(kept.attributes.is_dir());
        let (received, seen, timeout_from) = (policy.event(), None, sent.at);
        state.known =
            Some(Known { attributes: kept.attributes, sent, received, seen, timeout, timeout_from });
        state
    }

    /// What the index is to remember, if anything.
    pub fn keep(&self, policy: &Policy) -> Option<Kept> {
        let known = self.known.as_ref()?;
        // A lease does not outlive the process, so that it settles nothing here.
        let nonracy = self.is_stamped(policy, &policy.sending());
        Some(Kept { attributes: known.attributes, epoch: self.epoch, nonracy, confirmed: known.sent.wall })
    }

    /// The known state.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.known.as_ref().map(|known| &known.attributes)
    }

    /// When the origin was last asked for what is known, by this machine's clock.
    pub fn confirmed(&self) -> Option<Timestamp> {
        self.known.as_ref().map(|known| known.sent.wall)
    }

    /// Is it empty, as far as is known?
    pub fn is_empty(&self) -> bool {
        self.attributes().is_some_and(|known| known.size == 0)
    }

    /// Is all of a regular file here?
    pub fn is_complete(&self) -> bool {
        let complete = |known: &Attributes| {
            known.file_type == vfs::FileType::Regular && self.data.valid().contains(&(0..known.size))
        };
        self.attributes().is_some_and(complete)
    }

    /// It was seen under this name.
    pub fn see_at(&mut self, directory: &vfs::Handle, name: &Name) {
        let same = |place: &Place| place.directory == *directory && place.name == *name;
        if !self.place.as_ref().is_some_and(same) {
            self.place = Some(Place { directory: *directory, name: name.clone() });
            self.changed = true;
        }
    }

    /// The number of the time since somebody else changed it.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Attributes that may be believed without asking (attribute timeouts).
    pub fn current(&self) -> Option<&Attributes> {
        self.current_within(None)
    }

    /// Attributes that may be believed, and are no older than this.
    pub fn current_within(&self, age_max: Option<Duration>) -> Option<&Attributes> {
        if let Some(attributes) = self.leased().or_else(|| Some(self.presumed()?.0)) {
            return Some(attributes);
        }
        let known = self.known.as_ref()?;
        let timeout = age_max.map_or(known.timeout, |max| max.min(known.timeout));
        let racy = known.sent.at.elapsed() < timeout;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.history.is_suspect();
        (racy && trusted).then_some(&known.attributes)
    }

    /// Until when they may be believed without asking, by attribute timeouts alone.
    pub fn current_until(&self) -> Option<Instant> {
        let known = self.known.as_ref()?;
        let trusted = known.sent.sequence >= self.distrusted_before && !self.history.is_suspect();
        let timed = trusted.then(|| known.sent.at + known.timeout);
        timed.or_else(|| Some(self.presumed()?.1))
    }

    /// Attributes that a lease vouches for: the origin would say the same now.
    pub fn leased(&self) -> Option<&Attributes> {
        let lease = self.lease.as_ref().filter(|lease| lease.is_valid())?;
        let known = self.known.as_ref()?;
        let from = lease.vouches_from.max(self.distrusted_before);
        (known.sent.sequence >= from && !self.history.is_suspect()).then_some(&known.attributes)
    }

    /// Attributes as fresh as the asker wants them, if `open` is that they be asked after the request came.
    pub fn believed(&self, open: bool) -> Option<&Attributes> {
        let known = if open { self.leased().or_else(|| Some(self.presumed()?.0)) } else { self.current() };
        known.or_else(|| self.told())
    }

    /// Under a lease, while changes of ours are under way and what they have told does not fit together yet: the latest
    /// state that they have told. Whatever is not in it has not been answered yet.
    fn told(&self) -> Option<&Attributes> {
        let known = self.known.as_ref()?;
        let lease = self.lease.as_ref().filter(|lease| lease.is_valid())?;
        let from = lease.vouches_from.max(self.distrusted_before);
        let ours = self.covered && self.history.is_under_way() && self.explained_from.sequence >= from;
        (ours && self.history.is_suspect()).then(|| self.history.latest(&known.attributes)).flatten()
    }

    /// Is it held for more than what is known of it?
    pub fn is_held(&self) -> bool {
        let used = self.lease.is_some() || !self.opens.is_empty() || !self.locks.is_empty();
        used || self.writes.is_some()
    }

    /// Were the known attributes asked for after this event?
    pub fn is_known_since(&self, event: u64) -> bool {
        let since =
            |known: &Known| known.sent.sequence > event && known.sent.sequence >= self.distrusted_before;
        !self.history.is_suspect() && self.known.as_ref().is_some_and(since)
    }

    /// Was it this very call that last showed the known state?
    pub fn is_shown_by(&self, sent: &Sent) -> bool {
        self.known.as_ref().is_some_and(|known| known.sent.sequence == sent.sequence)
    }

    /// Has the known state been seen by this process?
    pub fn is_seen(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.seen.is_some())
    }

    /// Has a state been seen that our own operations under way may or may not explain? Then nothing cached is used.
    pub fn is_suspect(&self) -> bool {
        self.history.is_suspect()
    }

    /// Could a change after `sent` carry the timestamps of the known state, without a lease that would announce it?
    pub fn is_racy(&self, policy: &Policy, sent: &Sent) -> bool {
        let announced = |lease: &HeldLease| lease.is_valid() && lease.since <= sent.sequence;
        !self.lease.as_ref().is_some_and(announced) && !self.is_stamped(policy, sent)
    }

    /// Does every change after `sent` show in the timestamps?
    fn is_stamped(&self, policy: &Policy, sent: &Sent) -> bool {
        let racy = |known: &Known| policy.origin.is_racy(&known.attributes.wcc(), known.seen, sent);
        self.known.as_ref().is_some_and(|known| !racy(known))
    }

    /// Attributes came with the reply to a call.
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
            return Seen::Known;
        };
        if same(&known.attributes, attributes) {
            confirm(known, policy, attributes, sent);
            self.presumed.shown(sent.sequence >= self.distrusted_before);
            return Seen::Known;
        }
        let overtaken = sent.sequence < known.received;
        if overtaken
            && (attributes.ctime < known.attributes.ctime || self.history.has_passed(&attributes.wcc()))
        {
            return Seen::Late;
        }
        if self.history.is_under_way() {
            self.history.observe(attributes);
            if self.history.is_suspect() && opening != Opening::No {
                self.doubt_writes();
            }
            return if self.history.is_suspect() { Seen::Unclear } else { Seen::Late };
        }
        if self.ours && !overtaken && sent.sequence >= self.distrusted_before {
            self.ours = false;
            self.data.clip(attributes.size);
            self.adopt(policy, attributes, sent);
            return Seen::Known;
        }
        self.doubt_writes();
        self.drop_all(policy);
        if !std::mem::take(&mut self.name_moved) {
            self.note_stranger(policy, Some(attributes.ctime));
        }
        self.adopt(policy, attributes, sent);
        if overtaken {
            // Which of the two came first, the time stamps do not tell.
            self.distrust(policy);
        }
        Seen::Known
    }

    /// The object is gone at the origin, or as good as.
    pub fn forget(&mut self, policy: &Policy) {
        self.drop_all(policy);
        self.known = None;
        self.distrust(policy);
    }

    /// The known attributes are not to be believed without asking.
    pub fn distrust(&mut self, policy: &Policy) {
        self.unvouch();
        self.distrusted_before = policy.event();
    }

    /// Its mode or owner is changed, or about to be.
    pub fn touch_rights(&mut self, policy: &Policy) {
        self.unvouch();
        self.rights_generation += 1;
        self.rights_touched = policy.event();
        self.changed |= self.rights.clear();
    }

    /// Drops the data alone, to make room.
    pub fn drop_data(&mut self) {
        if let Some(file) = self.data.discard() {
            self.trash.push(file);
            self.changed = true;
        }
    }

    /// Drops everything that belongs to the known state, which is not the state any more.
    fn drop_all(&mut self, policy: &Policy) {
        self.unvouch();
        self.fresh = false;
        self.distrusted |= self.data.file().is_some() || self.listing.is_some();
        self.ours = false;
        self.drop_data();
        self.rights.clear();
        self.link = None;
        self.listing = None;
        self.gathering = None;
        self.epoch = policy.epoch();
        self.changed = true;
    }

    /// It looks as if somebody else had changed it, or may have been. Or the origin has lost what we wrote: a COMMIT
    /// will tell.
    fn doubt_writes(&mut self) {
        if let Some(writes) = &mut self.writes {
            writes.doubt();
        }
    }

    /// An open: what is good until the next open only is good no more.
    fn open(&mut self) {
        self.changed |= self.data.distrust_racy();
        self.rights.forget_racy();
        if self.listing.as_ref().is_some_and(|listing| listing.racy) {
            self.listing = None;
            self.changed = true;
        }
        if self.gathering.as_ref().is_some_and(|gathering| gathering.racy) {
            self.gathering = None;
        }
    }

    /// Another client has changed it, as far as can be told.
    fn note_stranger(&mut self, policy: &Policy, ctime: Option<Timestamp>) {
        let event = policy.event();
        match ctime {
            Some(ctime) => policy.news.seen(ctime, event),
            None => policy.news.heard(event),
        }
        self.names_doubted = event;
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
        self.changed = true;
    }
}

/// The same state, as far as attributes tell? (Access times and the blocks in use may differ.)
fn same(a: &Attributes, b: &Attributes) -> bool {
    let identity = |a: &Attributes| (a.file_type, a.fileid, a.nlink, a.mode, a.uid, a.gid);
    a.wcc() == b.wcc() && identity(a) == identity(b)
}

/// The known state was seen again.
fn confirm(known: &mut Known, policy: &Policy, attributes: &Attributes, sent: &Sent) {
    if sent.sequence <= known.sent.sequence {
        return;
    }
    known.attributes = *attributes;
    known.sent = *sent;
    known.received = policy.event();
    known.seen.get_or_insert_with(Instant::now);
    // As Linux does: each time that the state outlived its timeout, the next one is twice as long.
    if known.timeout_from.elapsed() >= known.timeout {
        let (min, max) = policy.timeouts(attributes.is_dir());
        known.timeout = (known.timeout * 2).clamp(min, max);
        known.timeout_from = sent.at;
    }
}
