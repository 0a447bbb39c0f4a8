//! Which steps of delayed writes are entered in the journal ([`crate::journal`]).
//!
//! A file begins when bytes of it are delayed under a write lease. From then on every step is entered, until
//! nothing of the file is delayed. That includes steps after the lease is recalled: without them, the next
//! process would send older bytes over newer ones.
//!
//! An entry is written with the object's state locked, so entries have the order of the writes.
//!
//! If the disk refuses a write, all delayed bytes of the file become durable at the origin before the write
//! is answered. Until then the earlier entries stay: without the refused write, which nobody knows of, they
//! are still right. If the disk refuses a truncation, the file's entries no longer count, because they would
//! bring back the bytes that are cut off.
//!
//! A change that does not pass through here, such as DEALLOCATE or a SETATTR of the mode, must not be undone
//! by older entries. Before it is sent, the file is entered anew with what is not durable yet.

use std::sync::Arc;

use bytes::Bytes;
use vfs::{Caller, Handle, LeaseKind, Timestamp};

use super::{Delayed, Pending, Writes};
use crate::core::Core;
use crate::journal::{Begin, Entry, Journal, Journaled};
use crate::object::ObjectState;
use crate::options::{Fsync, WriteBehind};
use crate::store::{Directory, directory};
use crate::table::Object;

/// The first entry of a file whose bytes may be delayed after a close. `None` if it is entered already, under
/// the lease that is held now.
fn basis(journal: &Journal, handle: &Handle, state: &ObjectState) -> Option<Box<Begin>> {
    let lease = state.held.lease.as_ref();
    let lease = lease.filter(|lease| lease.kind == LeaseKind::Write && lease.is_free())?.id;
    let writes = state.delayed.writes.as_ref();
    // Entered anew, bytes of before the revocation would look as if they belonged to the lease of now.
    if writes.is_some_and(|writes| writes.suspended().is_some()) {
        return None;
    }
    let entered = writes.and_then(|writes| writes.journaled.as_ref());
    if !journal.is_on() || entered.is_some_and(|entered| entered.begin().lease == lease) {
        return None;
    }
    let change = state.attributes().map(|known| known.change);
    Some(Box::new(Begin { handle: *handle, lease, change, replaces: None, place: state.place.clone() }))
}

/// The file's change attribute, if the lease under which it was entered proves that all changes are ours.
fn own_change(state: &ObjectState) -> Option<u64> {
    let entered = state.delayed.writes.as_ref()?.journaled.as_ref()?;
    let lease = state.held.lease.as_ref().filter(|lease| lease.is_valid())?;
    (lease.id == entered.begin().lease).then(|| state.attributes().map(|known| known.change))?
}

impl Writes {
    /// Enters a step of a file that has begun. False if the disk refuses.
    fn enter(&mut self, journal: &Journal, entry: &Entry) -> bool {
        let number = self.number() + 1;
        let Some(journaled) = &mut self.journaled else { return true };
        let entered = journal.append(journaled, entry, number).inspect_err(refused).is_ok();
        if entered {
            journaled.learn(entry);
        }
        entered
    }

    /// Enters a write that is about to be taken in. If it must be sent before it is answered, returns its
    /// number.
    fn enter_write(&mut self, journal: &Journal, begin: Option<Box<Begin>>, write: &Entry) -> Option<u64> {
        let begun = begin.is_none_or(|begin| self.begin_journaled(journal, begin));
        let entered = begun && self.unentered.is_none() && self.enter(journal, write);
        if !entered {
            self.unentered = Some(self.number() + 1);
        }
        self.unentered
    }

    /// Enters everything that remains of a file, in place of its earlier entries. False if the disk refuses,
    /// and while a truncation is in flight: the earlier entries stay.
    fn begin_journaled(&mut self, journal: &Journal, mut begin: Box<Begin>) -> bool {
        begin.replaces = self.journaled.as_ref().map(Journaled::number);
        let mut journaled = journal.begin(begin);
        let entered = self.enter_remaining(journal, &mut journaled);
        if !entered {
            journal.end(journaled);
            return false;
        }
        if let Some(earlier) = self.journaled.take() {
            journal.replace(&mut journaled, earlier);
        }
        self.journaled = Some(journaled);
        true
    }

    fn enter_remaining(&self, journal: &Journal, journaled: &mut Journaled) -> bool {
        let Some(remaining) = self.remaining() else { return false };
        let modified = self.modified().unwrap_or_default();
        let remaining = remaining.into_iter().map(|(writer, offset, bytes)| {
            let writer = writer.clone();
            Entry::Write { writer, offset, modified, bytes }
        });
        let pending = self.pending().map(|pending| Entry::Attributes(pending.into()));
        let replaces = journaled.begin().replaces;
        let mut enter = |entry: &Entry| journal.append(journaled, entry, self.number()).inspect_err(refused);
        let mut count = 0;
        for entry in remaining.chain(pending) {
            if enter(&entry).is_err() {
                return false;
            }
            count += 1;
        }
        replaces.is_none() || enter(&Entry::Complete(count)).is_ok()
    }

    /// Is everything that is delayed entered?
    pub fn is_entered(&self) -> bool {
        self.is_clean() || (self.journaled.is_some() && self.unentered.is_none() && !self.is_cut())
    }

    /// Has the journal all that waits? A truncation in flight is among its entries.
    pub fn outlast_process(&self) -> bool {
        self.journaled.is_some() && self.unentered.is_none()
    }

    /// The entries of the file no longer count.
    fn end_journaled(&mut self, journal: &Journal) {
        self.journaled.take().into_iter().for_each(|journaled| journal.end(journaled));
    }
}

/// The journal of a cache directory.
pub fn journal_of(directory: &Directory, options: &WriteBehind) -> Journal {
    let durable = options.fsync == Fsync::Journal;
    let (place, boot) = (directory.writeback(), directory::boot_id());
    Journal::new(place, boot, options.dirty_max_bytes, options.journal, durable)
}

impl Delayed {
    /// The disk has refused an entry without which the earlier ones are wrong.
    fn end_refused(&self, writes: &mut Writes) {
        // Before they end, so that a kill in between finds neither.
        self.verifier.unentered();
        writes.end_journaled(&self.journal);
    }

    /// Drops the entries of a file that are durable at the origin: all if nothing is delayed any more.
    pub fn release_journaled(&self, writes: &mut Writes) {
        if writes.is_clean() {
            // Of an earlier process, refused writes are first kept elsewhere.
            if writes.restored.as_ref().is_none_or(|restored| restored.refused.is_none()) {
                writes.restored = None;
                writes.end_journaled(&self.journal);
            }
            writes.unentered = None;
        } else if writes.journaled.as_ref().is_some_and(Journaled::is_long)
            && let Some(oldest) = writes.oldest_number()
        {
            writes.journaled.iter_mut().for_each(|journaled| self.journal.release(journaled, oldest));
        }
    }
}

impl Core {
    /// Takes the bytes of a WRITE in, and enters them in the journal. Returns whether all of them merged into
    /// bytes that were waiting, and the number of the write if it must be sent before it is answered. None if
    /// the record of the file was dropped.
    pub fn take_in_entered(
        &self,
        delayed: &Delayed,
        caller: &Caller,
        object: &Arc<Object>,
        (offset, data): (u64, &Bytes),
        modified: Timestamp,
    ) -> Option<(bool, Option<u64>)> {
        let look = |state: &ObjectState| basis(&delayed.journal, &object.handle, state);
        self.writes_of(object, look, |writes, begin| {
            let (writer, bytes) = (caller.principal.clone(), data.clone());
            let write = Entry::Write { writer, offset, modified, bytes };
            let unentered = writes.enter_write(&delayed.journal, begin, &write);
            (writes.write(offset, data, caller, (tokio::time::Instant::now(), modified)), unentered)
        })
    }

    /// The write of this number could not be entered. By now it is durable at the origin, with all before it.
    pub fn end_unentered(&self, delayed: &Delayed, object: &Arc<Object>, number: u64) {
        self.writes(object, |writes| {
            if writes.unentered.take_if(|last| *last <= number).is_some() {
                writes.end_journaled(&delayed.journal);
            }
        });
    }

    /// A close is about to leave bytes unsent. False if they cannot be entered, and must be sent.
    pub fn enter_kept(&self, object: &Arc<Object>) -> bool {
        let Some(delayed) = &self.delayed else { return true };
        let look = |state: &ObjectState| basis(&delayed.journal, &object.handle, state);
        let entered = self.writes_of(object, look, |writes, begin| {
            let begin = begin.filter(|_| !writes.is_clean());
            let begun = begin.is_none_or(|begin| writes.begin_journaled(&delayed.journal, begin));
            begun && writes.unentered.is_none()
        });
        entered.unwrap_or(true)
    }

    /// Registers attributes that are set once all earlier writes are durable. None if nothing is delayed, or
    /// if they cannot be entered.
    pub fn register_pending(&self, object: &Arc<Object>, pending: Pending) -> Option<()> {
        let journal = &self.delayed.as_ref()?.journal;
        self.writes(object, |writes| {
            // The last entry of attributes holds all that wait.
            let all = pending.clone().after(writes.pending().cloned());
            let entry = Entry::Attributes((&all).into());
            writes.enter(journal, &entry).then(|| writes.set_pending(pending))
        })?
    }

    /// A SETATTR of the attributes that waited has ended.
    pub fn enter_attributes_end(&self, writes: &mut Writes) {
        let Some(delayed) = &self.delayed else { return };
        let matters = writes.pending().is_none() && !writes.is_clean();
        if matters && !writes.enter(&delayed.journal, &Entry::AttributesEnd) {
            delayed.end_refused(writes);
        }
    }

    /// A truncation is about to be sent, or has ended.
    pub fn enter_cut(&self, writes: &mut Writes, end: u64, done: Option<bool>) {
        let Some(delayed) = &self.delayed else { return };
        if !writes.enter(&delayed.journal, &done.map_or(Entry::Cut(end), Entry::CutEnd)) {
            delayed.end_refused(writes);
        }
    }

    /// A change of ours has ended, and the change attribute may have moved.
    pub fn enter_change(&self, object: &Arc<Object>) {
        let Some(delayed) = self.delayed.as_ref().filter(|delayed| !delayed.is_clean()) else { return };
        self.writes_of(object, own_change, |writes, change| {
            let before = writes.journaled.as_ref().map(|journaled| journaled.begin().change);
            // Bytes that are not entered may be the cause. Then older entries must not look valid.
            if let (Some(before), Some(now)) = (before, change)
                && before != Some(now)
                && writes.unentered.is_none()
                && !delayed.journal.has_failed()
            {
                // Without it, the next process may take our change for another client's.
                writes.enter(&delayed.journal, &Entry::Change(now));
            }
        });
        self.sync_journal_soon(delayed);
    }

    /// A change of ours is about to be sent that is not a delayed write: earlier entries must not undo it.
    pub fn enter_anew(&self, object: &Arc<Object>) {
        let Some(delayed) = self.delayed.as_ref().filter(|delayed| !delayed.is_clean()) else { return };
        self.writes(object, |writes| {
            let Some(begin) = writes.journaled.as_ref().map(|journaled| journaled.begin().clone()) else {
                return;
            };
            // A truncation has its own entries. Those of a clean file are about to be kept elsewhere.
            if writes.is_cut() || writes.is_clean() {
                return;
            }
            if !writes.begin_journaled(&delayed.journal, Box::new(begin)) {
                delayed.end_refused(writes);
            }
        });
    }
}

fn refused(error: &std::io::Error) {
    tracing::debug!("journal of delayed writes: {error}; the bytes are sent first");
}
