//! Delayed writes, as the operations see them: WRITE, COMMIT and CLOSE with `write_behind`, READ over
//! delayed bytes, and the flushes that must come before a name changes. See [`crate::writes`].

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

/// The largest file offset on this machine.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The delayed bytes of a range that is read.
struct Waiting {
    /// Oldest first. Where pieces overlap, the later one counts.
    pieces: Vec<(u64, Bytes)>,
    /// Set if the pieces cover all bytes of the file in the range. It holds the file's size, or `u64::MAX`
    /// if that is not known.
    complete: Option<u64>,
    /// A lower bound for the file's size.
    end: u64,
}

impl Core {
    /// WRITE: takes the bytes into memory and sends them later. If they must not be delayed, sends them at
    /// once.
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
        let verifier = delayed.verifier.get();
        self.know_limits(caller, handle).await;
        let end = offset.saturating_add(data.len() as u64);
        if end > OFFSET_MAX || !self.may_delay(caller, &object, by).await? {
            let (core, caller) = (self.share().ok_or(Status::ServerFault)?, caller.clone());
            // A change at the origin is not given up half-way.
            return vfs::run_to_completion(async move {
                let written = core.write_now(&caller, &object, offset, data).await?;
                Ok(Written { verifier, ..written })
            })
            .await;
        }
        let count = data.len() as u32;
        let mut unentered = None;
        if count > 0 {
            let capacity = self.capacity(delayed, &object, u64::from(count)).await;
            unentered = self.take_in(delayed, caller, &object, offset, &data);
            drop(capacity);
            self.kick(&object);
            self.press_if_much(delayed, &object);
        }
        if stability > Stability::Unstable || unentered.is_some() {
            let flushed = self.fsync(caller, &object).await;
            if let Some(number) = unentered {
                self.end_unentered(delayed, &object, number);
                // The marks must not be lost: older entries are over.
                self.sync_journal().await;
            }
            flushed?;
            // These bytes may be lost, and nothing else would tell this client: it sends the WRITE again.
            if delayed.options.shared && delayed.verifier.get() != verifier {
                return Err(Status::Delay.into());
            }
        }
        let wcc = self.written_wcc(&object);
        Ok(Written { count, stability, verifier, wcc })
    }

    /// May this writer's bytes be delayed? An open for writing is enough. For a writer without an open, the
    /// cache asks ACCESS if the right is not known.
    async fn may_delay(&self, caller: &Caller, object: &Arc<Object>, by: StateidBasis) -> Result<bool> {
        let may = match by {
            StateidBasis::Open(id) => {
                let shares =
                    self.with(object, |state| state.held.opens.shares(id)).ok_or(Status::BadStateId)?;
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
        let strict = self.with(object, |state| state.delayed.writes.as_ref().is_some_and(|w| w.is_strict()));
        Ok(may && !strict)
    }

    /// Writes through. All delayed bytes become durable first, so that they never reach the origin after
    /// these.
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

    /// Takes the bytes in. Returns the number of the write if it must be sent before it is answered.
    fn take_in(
        &self,
        delayed: &Delayed,
        caller: &Caller,
        object: &Arc<Object>,
        offset: u64,
        data: &Bytes,
    ) -> Option<u64> {
        let stamp = self.policy.origin_wall();
        loop {
            self.with(object, |state| {
                let fresh = || delayed.new_record(self.write_chunk_bytes());
                state.delayed.writes.get_or_insert_with(fresh);
            });
            // A task that found the record idle may have dropped it meanwhile.
            let Some((merged, unentered)) =
                self.take_in_entered(delayed, caller, object, (offset, data), stamp)
            else {
                continue;
            };
            if merged {
                self.counters.merged_writes.bump();
            }
            return unentered;
        }
    }

    /// Attributes after a delayed write. Several clients would believe them, so a lease must vouch for them.
    fn written_wcc(&self, object: &Arc<Object>) -> Wcc {
        let shared = self.delayed.as_ref().is_some_and(|delayed| delayed.options.shared);
        let after = self.with(object, |state| {
            let known = if shared { state.leased() } else { state.attributes() };
            known.map(|known| overlay(state, *known, u64::MAX))
        });
        Wcc::seen(after)
    }

    /// COMMIT: flushes the entire file, whatever the range.
    pub async fn commit_delayed(
        &self,
        delayed: &Delayed,
        caller: &Caller,
        handle: &Handle,
    ) -> Result<Commit> {
        let object = self.object(handle);
        self.fsync(caller, &object).await?;
        if delayed.options.shared {
            // A client of version 3 has no CLOSE that could tell.
            self.keep_mtime(caller, &object);
        }
        Ok(Commit { verifier: delayed.verifier.get(), wcc: self.written_wcc(&object) })
    }

    /// Makes all bytes of the file durable: in the journal if that may answer, or at the origin.
    async fn fsync(&self, caller: &Caller, object: &Arc<Object>) -> Result<()> {
        match self.fsync_here(caller, object).await {
            Some(done) => done,
            None => self.flush_and_tell(object, Level::Stable).await,
        }
    }

    /// An open is about to end, or to give up writing. Under a write lease nothing needs to be sent while
    /// the origin has space for the bytes. Nothing is sent for a file that has lost its last link either.
    pub async fn flush_at_close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        let Some(delayed) = &self.delayed else { return Ok(()) };
        let Ok(object) = self.opened_object(open) else { return Ok(()) };
        if delayed.options.shared {
            self.leave_at_close(caller, &object);
            return Ok(());
        }
        let (writer, leased) = self.with(&object, |state| {
            let writes =
                state.held.opens.shares(open).is_some_and(|shares| shares.access.contains(Share::WRITE));
            (writes, keeps_writes(state))
        });
        if !writer || self.is_gone(caller, &object).await {
            return Ok(());
        }
        if leased
            && self.may_keep(caller, &object).await
            && self.enter_kept(&object)
            && self.keep_mtime(caller, &object)
        {
            return self.writes(&object, Writes::take_error).flatten().map_or(Ok(()), |s| Err(s.into()));
        }
        self.flush_and_tell(&object, Level::Stable).await
    }

    /// One of several clients ends an open. Before, it has committed all that must be at the origin. The
    /// client or the journal has the rest.
    fn leave_at_close(&self, caller: &Caller, object: &Arc<Object>) {
        if self.is_clean(object) {
            return;
        }
        let leased = self.with(object, |state| keeps_writes(state));
        if !(leased && self.enter_kept(object) && self.keep_mtime(caller, object)) {
            self.press(object);
        }
    }

    /// Flushes at the end of an open. While another local open writes the file, errors stay for that
    /// writer. If the file has lost its last link and no other open, its delayed bytes are dropped.
    pub async fn flush_at_end(&self, caller: &Caller, open: OpenId) -> Result<()> {
        if self.delayed.as_ref().is_some_and(|delayed| !delayed.options.shared)
            && let Ok(object) = self.opened_object(open)
        {
            if self.is_gone(caller, &object).await {
                if !self.with(&object, |state| state.held.opens.is_open_besides(open)) {
                    self.writes(&object, Writes::discard);
                    object.written.notify_waiters();
                }
                return Ok(());
            }
            if self.with(&object, |state| state.held.opens.is_written_besides(open)) {
                if !self.with(&object, |state| keeps_writes(state)) || !self.enter_kept(&object) {
                    self.flush_writes(&object, Level::Stable).await;
                }
                return Ok(());
            }
        }
        self.flush_at_close(caller, open).await
    }

    /// Has a file with delayed bytes lost its last link? We removed a name, but it may not have been the
    /// last one, whatever was known of the link count. So ask the origin.
    async fn is_gone(&self, caller: &Caller, object: &Arc<Object>) -> bool {
        let perhaps = |state: &ObjectState| {
            state.unlinked && state.delayed.writes.as_ref().is_some_and(|w| !w.is_clean())
        };
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

    /// Registers the mtime that programs see now, because the origin will stamp the file with a later one.
    /// False if that is not possible, and the file must be flushed.
    fn keep_mtime(&self, caller: &Caller, object: &Arc<Object>) -> bool {
        let mtime = self.with(object, |state| {
            let unset = |writes: &&Writes| writes.pending().is_none_or(|pending| pending.mtime.is_none());
            let modified = state.delayed.writes.as_deref().filter(unset)?.modified()?;
            let known = state.attributes().filter(|known| owns(caller, known))?;
            Some(modified.max(known.mtime))
        });
        mtime.is_none()
            || self.register_pending(object, Pending { mtime, ..Pending::of(caller) }).is_some()
            || self.is_clean(object)
    }

    /// Is nothing of the file delayed?
    pub fn is_clean(&self, object: &Arc<Object>) -> bool {
        self.with(object, |state| state.delayed.writes.as_ref().is_none_or(|writes| writes.is_clean()))
    }

    /// SETATTR by the owner of a file with bytes delayed under a write lease. If it may wait for those
    /// bytes, registers it and returns the answer.
    pub fn delay_setattr(&self, caller: &Caller, object: &Arc<Object>, set: &SetAttributes) -> Option<Wcc> {
        if self.is_all_clean() {
            return None;
        }
        let now = self.policy.origin_wall();
        let pending = self.with(object, |state| {
            let delayed =
                state.delayed.writes.as_ref().is_some_and(|w| w.modified().is_some() && !w.is_strict());
            let known = state.attributes().filter(|known| delayed && owns(caller, known))?;
            let shown = overlay(state, *known, u64::MAX);
            Pending::asked(caller, set, now, &shown).filter(|_| keeps_writes(state))
        })?;
        self.register_pending(object, pending)?;
        Some(self.written_wcc(object))
    }

    /// READ over delayed bytes.
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
        // This READ itself may have shown a change.
        if self.settle_doubt(&object).await {
            return Box::pin(self.read_over_once(reader, &object, &range)).await;
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
        // Take these before reading. Bytes that land meanwhile are in what the READ returns.
        let waiting = self.with(object, |state| {
            let writes = state.delayed.writes.as_ref()?;
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

    /// May the caller read delayed bytes? An open for reading is enough: the right was checked then, or the
    /// caller made the file.
    async fn may_read(&self, caller: &Caller, object: &Arc<Object>, by: StateidBasis) -> Result<bool> {
        let opened = |id: OpenId| self.with(object, |state| state.held.opens.shares(id));
        if let StateidBasis::Open(id) = by
            && opened(id).is_some_and(|shares| shares.access.contains(Share::READ))
        {
            return Ok(true);
        }
        let may =
            |core: &Core| core.with(object, |state| core.may(state, &caller.principal, AccessMask::READ));
        if may(self).is_none() {
            Box::pin(self.ask_right(caller, object, AccessMask::READ)).await?;
        }
        Ok(may(self) == Some(true))
    }

    /// An open or create by name is about to truncate a file. Puts its delayed bytes behind `size` aside.
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

    /// A name is about to be removed. If its file will certainly be gone then, holds the file; otherwise
    /// sends its delayed bytes.
    pub async fn before_unlink(&self, directory: &Handle, name: &Name) -> Option<Hold> {
        let (object, certain) = self.delayed_child(directory, name)?;
        let last = self.with(&object, |state| {
            let single = state.leased().is_some_and(|known| known.nlink <= 1);
            if state.held.opens.is_local() { None } else { Some(single && certain) }
        });
        match last {
            Some(true) => Hold::begin(self, &object),
            Some(false) => {
                self.flush_writes(&object, Level::Sent).await;
                None
            }
            // The local open that holds the file will send the bytes.
            None => None,
        }
    }

    /// A name is about to be renamed. Flushes its file, even if it is open. If this process is killed
    /// later, the file under the new name is then not empty. The exception is the name that a client gives
    /// to a removed file until it is closed.
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
            // A change of ours removed the entry from the index.
            _ => match self.lookup(caller, directory, name).await {
                Ok(found) => found.node.handle,
                Err(_) => return Ok(()),
            },
        };
        self.flush_before_name(&self.object(&child)).await
    }

    /// A file is about to get another name: flushes it as before a rename.
    pub async fn before_link(&self, file: &Handle, name: &Name) -> Result<()> {
        if self.is_all_clean() || is_silly(name) {
            return Ok(());
        }
        self.flush_before_name(&self.object(file)).await
    }

    /// Flushes a file before it gets a name. If the origin refuses bytes, the operation fails: the new name
    /// may belong to a complete file now. A writer that has the file open receives the error too.
    async fn flush_before_name(&self, object: &Arc<Object>) -> Result<()> {
        self.flush_writes(object, Level::Stable).await;
        let written = self.with(object, |state| state.held.opens.is_written());
        let told = self.writes(object, |writes| if written { writes.untold() } else { writes.take_error() });
        told.flatten().map_or(Ok(()), |status| Err(status.into()))
    }

    /// The file that a name leads to, if any of it is delayed, and whether that is certain.
    fn delayed_child(&self, directory: &Handle, name: &Name) -> Option<(Arc<Object>, bool)> {
        if self.is_all_clean() {
            return None;
        }
        let Some(NameEntry { leads: Leads::To(child), epoch, racy, .. }) = self.name_entry(directory, name)
        else {
            return None;
        };
        let object = self.memory.table().peek(&child)?;
        let certain = self.with(&object, |state| {
            state.delayed.writes.as_ref()?;
            Some(state.leased().is_some() && state.epoch() == epoch && !racy && !state.is_suspect())
        })?;
        Some((object, certain))
    }
}

/// Is it the name that a client gives to a removed file until it is closed?
fn is_silly(name: &Name) -> bool {
    name.as_bytes().starts_with(b".nfs")
}

/// May delayed bytes stay here until another client wants the file?
fn keeps_writes(state: &ObjectState) -> bool {
    state.held.lease.as_ref().is_some_and(|lease| lease.kind == LeaseKind::Write && lease.is_free())
}

/// Does the caller own the file? Then the origin lets it set any times and mode.
fn owns(caller: &Caller, known: &Attributes) -> bool {
    matches!(&caller.principal, Principal::Unix(credential) if credential.uid == known.uid)
}

fn range_of((at, bytes): &(u64, Bytes)) -> Range<u64> {
    *at..*at + bytes.len() as u64
}

/// Composes the bytes of `range` up to `end`: `base`, which begins at the start of the range, then the
/// pieces over it, and zeros elsewhere.
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
