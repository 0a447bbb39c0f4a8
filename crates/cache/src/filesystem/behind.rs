//! Delayed writes, as the operations see them: WRITE, COMMIT and CLOSE under `write_behind`, READ over what waits, and
//! what has to be done about it before names change. See [`crate::writes`].

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use vfs::{
    AccessMask, Attributes, Caller, Commit, Data, FileType, Handle, LeaseKind, Name, OpenId, Principal, Read,
    Result, SetAttributes, Share, Stability, StateidBasis, Status, Wcc, Written,
};

use super::overlay::overlay;
use crate::core::Core;
use crate::data::all_covered;
use crate::filler::to_bytes;
use crate::names::{Leads, NameEntry};
use crate::object::ObjectState;
use crate::table::Object;
use crate::writes::{Cut, Delayed, Hold, Level, Pending, Writes};

/// Where files of this machine end.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// What is delayed of a range that is read.
struct Waiting {
    /// Older ones first.
    pieces: Vec<(u64, Bytes)>,
    /// They are all of the range that the file has; it ends here, or elsewhere if that is not known.
    complete: Option<u64>,
    /// The file ends here at least.
    end: u64,
}

impl Core {
    /// WRITE: into memory, and to the origin later; through, if nothing may be delayed.
    pub async fn write_delayed(
        &self,
        delayed: &Delayed,
        (caller, by): (&Caller, StateidBasis),
        handle: &Handle,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let object = self.object(handle);
        self.know_limits(caller, handle).await;
        let end = offset.saturating_add(data.len() as u64);
        if end > OFFSET_MAX || !self.may_delay(caller, &object, by).await? {
            return self.write_now(caller, &object, offset, data).await;
        }
        let count = data.len() as u32;
        if count > 0 {
            let capacity = self.capacity(delayed, &object, u64::from(count)).await;
            self.take_in(delayed, caller, &object, offset, &data);
            drop(capacity);
            self.kick(&object);
            self.press_if_much(delayed, &object);
        }
        if stability > Stability::Unstable {
            self.flush_and_tell(&object, Level::Stable).await?;
        }
        let wcc = self.written_wcc(&object);
        Ok(Written { count, stability, verifier: delayed.verifier, wcc })
    }

    /// May this writer's bytes wait? Who has opened the file for writing may write it; anybody else is asked for.
    async fn may_delay(&self, caller: &Caller, object: &Arc<Object>, by: StateidBasis) -> Result<bool> {
        let may = match by {
            StateidBasis::Open(id) => {
                let shares = self.with(object, |state| state.opens.shares(id)).ok_or(Status::BadStateId)?;
                if !shares.access.contains(Share::WRITE) {
                    return Err(Status::OpenMode.into());
                }
                true
            }
            StateidBasis::Anonymous => {
                let may = |core: &Core, state: &mut ObjectState| {
                    core.may(state, &caller.principal, AccessMask::MODIFY)
                };
                if self.with(object, |state| may(self, state)).is_none() {
                    self.ask_right(caller, object, AccessMask::MODIFY).await?;
                }
                let regular = |known: &Attributes| known.file_type == FileType::Regular;
                self.with(object, |state| {
                    may(self, state) == Some(true) && state.attributes().is_some_and(regular)
                })
            }
        };
        let strict = self.with(object, |state| state.writes.as_ref().is_some_and(|w| w.is_strict()));
        Ok(may && !strict)
    }

    /// Writes through, after what is delayed: all of that is durable first, so that it never comes after these bytes.
    async fn write_now(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        offset: u64,
        data: Bytes,
    ) -> Result<Written> {
        self.flush_writes(object, Level::Stable).await;
        let written = self.write(caller, &object.handle, offset, data, Stability::FileSync).await;
        match &written {
            Ok(_) => {
                self.note_taken(object);
                self.writes(object, Writes::relent);
            }
            Err(error) => self.note_full(object, error.status),
        }
        written
    }

    fn take_in(&self, delayed: &Delayed, caller: &Caller, object: &Arc<Object>, offset: u64, data: &[u8]) {
        let time = (tokio::time::Instant::now(), self.policy.origin_wall());
        loop {
            self.with(object, |state| {
                let fresh = || Box::new(Writes::new(self.write_chunk_bytes(), delayed.first_number()));
                state.writes.get_or_insert_with(fresh);
            });
            // Whoever found it idle may have taken it away meanwhile.
            let Some(merged) = self.writes(object, |writes| writes.write(offset, data, caller, time)) else {
                continue;
            };
            if merged {
                self.counters.merged_writes.bump();
            }
            return;
        }
    }

    fn written_wcc(&self, object: &Arc<Object>) -> Wcc {
        let after =
            self.with(object, |state| state.attributes().map(|known| overlay(state, *known, u64::MAX)));
        Wcc::seen(after)
    }

    /// COMMIT: everything of the file, whatever the range.
    pub async fn commit_delayed(&self, delayed: &Delayed, handle: &Handle) -> Result<Commit> {
        let object = self.object(handle);
        self.flush_and_tell(&object, Level::Stable).await?;
        Ok(Commit { verifier: delayed.verifier, wcc: self.written_wcc(&object) })
    }

    /// An open is about to end, or to give up writing. Under a write lease nothing needs to be sent while the origin has
    /// space for it, and of a file that is gone nothing either.
    pub async fn flush_at_close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        if self.delayed.is_none() {
            return Ok(());
        }
        let Ok(object) = self.opened_object(open) else { return Ok(()) };
        let (writer, leased) = self.with(&object, |state| {
            let writes = state.opens.shares(open).is_some_and(|shares| shares.access.contains(Share::WRITE));
            (writes, keeps_writes(state))
        });
        if !writer || self.is_gone(caller, &object).await {
            return Ok(());
        }
        if leased && self.may_keep(caller, &object).await {
            self.keep_mtime(caller, &object);
            return self.writes(&object, Writes::take_error).flatten().map_or(Ok(()), |s| Err(s.into()));
        }
        self.flush_and_tell(&object, Level::Stable).await
    }

    /// The same, of an open that ends. While somebody else here writes the file, its errors are theirs to hear. What
    /// nobody can read any more is dropped.
    pub async fn flush_at_end(&self, caller: &Caller, open: OpenId) -> Result<()> {
        if self.delayed.is_some()
            && let Ok(object) = self.opened_object(open)
        {
            if self.is_gone(caller, &object).await {
                if !self.with(&object, |state| state.opens.is_open_besides(open)) {
                    self.writes(&object, Writes::discard);
                    object.written.notify_waiters();
                }
                return Ok(());
            }
            if self.with(&object, |state| state.opens.is_written_besides(open)) {
                if !self.with(&object, |state| keeps_writes(state)) {
                    self.flush_writes(&object, Level::Stable).await;
                }
                return Ok(());
            }
        }
        self.flush_at_close(caller, open).await
    }

    /// Has a file of which something is delayed lost its last link? A name of it that we removed may not have been the
    /// last one, whatever was known of it: the origin is asked.
    async fn is_gone(&self, caller: &Caller, object: &Arc<Object>) -> bool {
        let perhaps =
            |state: &ObjectState| state.unlinked && state.writes.as_ref().is_some_and(|w| !w.is_clean());
        if !self.with(object, |state| perhaps(state)) {
            return false;
        }
        self.counters.getattr.bump();
        let caller = Caller { deadline: None, ..caller.clone() };
        match self.below.getattr(&caller, &object.handle).await {
            Ok(known) if known.nlink > 0 => {
                self.with(object, |state| state.unlinked = false);
                false
            }
            Ok(_) => true,
            Err(error) => matches!(error.status, Status::Stale | Status::BadHandle | Status::NoEnt),
        }
    }

    /// The time of modification that programs see now stays what it is, although the origin will stamp another one.
    fn keep_mtime(&self, caller: &Caller, object: &Arc<Object>) {
        let mtime = self.with(object, |state| {
            let unset = |writes: &&Writes| writes.pending().is_none_or(|pending| pending.mtime.is_none());
            let modified = state.writes.as_deref().filter(unset)?.modified()?;
            let known = state.attributes().filter(|known| owns(caller, known))?;
            Some(modified.max(known.mtime))
        });
        if mtime.is_some() {
            self.writes(object, |writes| writes.set_pending(Pending { mtime, ..Pending::of(caller) }));
        }
    }

    /// SETATTR, by the owner, of a file of which something is delayed under a write lease: it waits with that, if it
    /// may.
    pub fn delay_setattr(&self, caller: &Caller, object: &Arc<Object>, set: &SetAttributes) -> Option<Wcc> {
        if self.is_all_clean() {
            return None;
        }
        let now = self.policy.origin_wall();
        let pending = self.with(object, |state| {
            let delayed = state.writes.as_ref().is_some_and(|w| w.modified().is_some() && !w.is_strict());
            let known = state.attributes().filter(|known| delayed && owns(caller, known))?;
            let shown = overlay(state, *known, u64::MAX);
            Pending::asked(caller, set, now, &shown).filter(|_| keeps_writes(state))
        })?;
        self.writes(object, |writes| writes.set_pending(pending))?;
        Some(self.written_wcc(object))
    }

    /// READ over what is delayed.
    pub async fn read_over(
        &self,
        reader: (&Caller, StateidBasis),
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let object = self.object(handle);
        let range = offset..offset.saturating_add(u64::from(count));
        self.settle_doubt(&object).await;
        let read = self.read_over_once(reader, &object, &range).await;
        // What was read just now may have told of a change.
        if self.settle_doubt(&object).await {
            return self.read_over_once(reader, &object, &range).await;
        }
        read
    }

    async fn read_over_once(
        &self,
        (caller, by): (&Caller, StateidBasis),
        object: &Arc<Object>,
        range: &Range<u64>,
    ) -> Result<Read> {
        let count = (range.end - range.start) as u32;
        // Taken before anything is read: what lands meanwhile is in what is read then.
        let waiting = self.with(object, |state| {
            let writes = state.writes.as_ref()?;
            let end = writes.end()?;
            let pieces = writes.overlay(range);
            let known = state.current().map(|known| known.size);
            let asked = range.start..range.end.min(known.unwrap_or(u64::MAX)).max(range.start);
            let covered = all_covered(&asked, pieces.iter().map(range_of));
            let complete = covered.then(|| known.map_or(u64::MAX, |size| size.max(end)));
            Some(Waiting { pieces, complete, end })
        });
        let Some(waiting) = waiting else {
            return self.read_or_offline((caller, by), &object.handle, range.start, count).await;
        };
        if let Some(size) = waiting.complete
            && self.may_read(caller, object, by).await?
        {
            let end = range.end.min(size).max(range.start);
            self.counters.data.hit();
            self.counters.read_hit_bytes.add(end - range.start);
            let data = Data::Bytes(compose(range, &Bytes::new(), &waiting.pieces, end));
            return Ok(Read { data, eof: range.end >= size, attributes: None });
        }
        let base = self.read_or_offline((caller, by), &object.handle, range.start, count).await?;
        let base_end = range.start + base.data.len() as u64;
        let end = if base.eof { base_end.max(waiting.end.min(range.end)) } else { base_end };
        let eof = base.eof && end >= waiting.end;
        if end == base_end && waiting.pieces.is_empty() {
            return Ok(Read { eof, ..base });
        }
        let bytes = to_bytes(&base.data).await?;
        Ok(Read { data: Data::Bytes(compose(range, &bytes, &waiting.pieces, end)), eof, attributes: None })
    }

    /// May it read what is delayed? Who has opened the file for reading was let in then: who has just made it, too.
    async fn may_read(&self, caller: &Caller, object: &Arc<Object>, by: StateidBasis) -> Result<bool> {
        let opened = |id: OpenId| self.with(object, |state| state.opens.shares(id));
        if let StateidBasis::Open(id) = by
            && opened(id).is_some_and(|shares| shares.access.contains(Share::READ))
        {
            return Ok(true);
        }
        let may =
            |core: &Core| core.with(object, |state| core.may(state, &caller.principal, AccessMask::READ));
        if may(self).is_none() {
            self.ask_right(caller, object, AccessMask::READ).await?;
        }
        Ok(may(self) == Some(true))
    }

    /// A name is about to be opened or made so that its file is cut. What is delayed of that is put aside.
    pub async fn cut_named(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        size: Option<u64>,
    ) -> Option<Cut> {
        let size = size.filter(|_| !self.is_all_clean())?;
        let child = match self.name_entry(directory, name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => child,
            _ => self.lookup(caller, directory, name).await.ok()?.node.handle,
        };
        Cut::begin(self, &self.object(&child), size).await
    }

    /// A name is about to be removed. What is delayed of its file is held back if it will certainly be gone then, and
    /// sent otherwise.
    pub async fn before_unlink(&self, directory: &Handle, name: &Name) -> Option<Hold> {
        let (object, certain) = self.delayed_child(directory, name)?;
        let last = self.with(&object, |state| {
            let single = state.leased().is_some_and(|known| known.nlink <= 1);
            if state.opens.is_local() { None } else { Some(single && certain) }
        });
        match last {
            Some(true) => Hold::begin(self, &object),
            Some(false) => {
                self.flush_writes(&object, Level::Sent).await;
                None
            }
            // Whoever has it open will send it.
            None => None,
        }
    }

    /// A name is about to be changed. What is delayed of its file is sent, whoever has it open, so that whoever finds it
    /// under the new name after we were killed does not find it empty: but for the name that a removed file has until it
    /// is closed.
    pub async fn before_rename(
        &self,
        caller: &Caller,
        (directory, name): (&Handle, &Name),
        to: &Name,
    ) -> Result<()> {
        if self.is_all_clean() || is_silly(to) {
            return Ok(());
        }
        let child = match self.name_entry(directory, name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => child,
            // A change of ours has put it out of mind.
            _ => match self.lookup(caller, directory, name).await {
                Ok(found) => found.node.handle,
                Err(_) => return Ok(()),
            },
        };
        self.flush_before_name(&self.object(&child)).await
    }

    /// A file is about to get another name: as with a rename.
    pub async fn before_link(&self, file: &Handle, name: &Name) -> Result<()> {
        if self.is_all_clean() || is_silly(name) {
            return Ok(());
        }
        self.flush_before_name(&self.object(file)).await
    }

    /// What the origin does not take must not get a name under which something else was complete. A writer who still has
    /// the file open is told as well.
    async fn flush_before_name(&self, object: &Arc<Object>) -> Result<()> {
        self.flush_writes(object, Level::Stable).await;
        let written = self.with(object, |state| state.opens.is_written());
        let told = self.writes(object, |writes| if written { writes.untold() } else { writes.take_error() });
        told.flatten().map_or(Ok(()), |status| Err(status.into()))
    }

    /// What a name leads to, if something of it is delayed; and whether that is certain.
    fn delayed_child(&self, directory: &Handle, name: &Name) -> Option<(Arc<Object>, bool)> {
        if self.is_all_clean() {
            return None;
        }
        let Some(NameEntry { leads: Leads::To(child), epoch, racy, .. }) = self.name_entry(directory, name)
        else {
            return None;
        };
        let object = self.table.peek(&child)?;
        let certain = self.with(&object, |state| {
            state.writes.as_ref()?;
            Some(state.leased().is_some() && state.epoch() == epoch && !racy && !state.is_suspect())
        })?;
        Some((object, certain))
    }
}

/// Is it the name that a removed file has until it is closed?
fn is_silly(name: &Name) -> bool {
    name.as_bytes().starts_with(b".nfs")
}

/// Need what is delayed not be sent before somebody else wants the file?
fn keeps_writes(state: &ObjectState) -> bool {
    state.lease.as_ref().is_some_and(|lease| lease.kind == LeaseKind::Write && lease.is_free())
}

/// Will the origin let the caller set any times, and give rights?
fn owns(caller: &Caller, known: &Attributes) -> bool {
    matches!(&caller.principal, Principal::Unix(credential) if credential.uid == known.uid)
}

fn range_of((at, bytes): &(u64, Bytes)) -> Range<u64> {
    *at..*at + bytes.len() as u64
}

/// The bytes of `range` up to `end`: those of `base`, which begin where it does, under the pieces; zeros elsewhere.
fn compose(range: &Range<u64>, base: &Bytes, pieces: &[(u64, Bytes)], end: u64) -> Bytes {
    if let [(at, bytes)] = pieces
        && *at == range.start
        && *at + bytes.len() as u64 == end
    {
        return bytes.clone();
    }
    let mut complete = BytesMut::zeroed((end - range.start) as usize);
    let common = base.len().min(complete.len());
    if let (Some(to), Some(from)) = (complete.get_mut(..common), base.get(..common)) {
        to.copy_from_slice(from);
    }
    for (at, bytes) in pieces {
        let from = (at - range.start) as usize;
        let to = (from + bytes.len()).min(complete.len());
        if let (Some(there), Some(bytes)) = (complete.get_mut(from..to), bytes.get(..to.saturating_sub(from)))
        {
            there.copy_from_slice(bytes);
        }
    }
    complete.freeze()
}
