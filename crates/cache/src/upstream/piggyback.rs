//! The READ that rides on an OPEN: one round trip brings the open, the attributes, perhaps a lease, and the first bytes.
//!
//! It is asked for
//! - by a READ of a client without opens, of a file that is not open at the origin: what that would have fetched first;
//! - by an open for reading alone, of a file of which nothing is here: all of it if it is small, and as much of it if its
//!   size is not known. Who opens a file to read it reads it from the start, as a rule. If he does not, these bytes have
//!   been asked for in vain, but never a call.
//!
//! What came is worth what a fetch is that was sent with the OPEN, and more if that brought a lease: READ was carried out
//! behind the grant and behind the attributes (`FileSystem::open_and_read`), so that no stranger's change is hidden
//! between them. What may hide one of ours is not used: bytes that were read while a write of ours was under way, or that
//! belong to other attributes than the known ones. Which file a name will lead to is not known when the OPEN is sent, so
//! that this is judged when it is answered.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use vfs::{Data, FileType, Lease, OpenRequest, Read, Share};

use crate::core::Core;
use crate::data::BLOCK_BYTES;
use crate::fetch::{Fetch, Fetched};
use crate::names::{Leads, NameEntry};
use crate::object::{ObjectState, Seen};
use crate::table::Object;
use crate::trust::Sent;

/// A file is small up to this size. It is what Linux reads ahead at first, and less than the time of a round trip on any
/// link that is worth a cache.
const SMALL_BYTES: u64 = 64 << 10;

/// What came with an OPEN. Readers of the file share it until it is dropped.
pub struct Brought {
    core: Arc<Core>,
    object: Arc<Object>,
    fetch: Arc<Fetch>,
    bytes: Bytes,
}

impl Brought {
    /// Puts it on this disk, if it is wanted there still.
    pub async fn store(self) {
        let start = self.fetch.range.start;
        let range = start..start + self.bytes.len() as u64;
        let wanted = |data: &crate::data::Data| data.wants(&self.fetch);
        if self.core.may_store() {
            self.core.store(&self.object, range, &self.bytes, self.fetch.racy, wanted).await;
        }
    }

    /// The same, where nobody has asked for it yet: that it is here does not make the file one to be completed.
    pub async fn store_unasked(self) {
        self.core.with(&self.object, |state| {
            if state.data.valid().is_empty() {
                state.data.are_unasked(self.fetch.range.clone());
            }
        });
        self.store().await;
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        self.core.with(&self.object, |state| state.data.end_fetch(&self.fetch));
    }
}

/// The reply to an OPEN, as what came along with it is judged by.
pub struct Reply<'a> {
    /// What the file's attributes turned out to be.
    pub seen: Seen,
    /// The lease that came.
    pub lease: Option<&'a Lease>,
    /// The file may have been written by us meanwhile and does not know.
    pub forgotten: bool,
    /// When the OPEN was sent.
    pub sent: &'a Sent,
}

impl Core {
    /// What a READ of this range would fetch first, of a file that is not open at the origin.
    pub fn piggyback_on_read(&self, object: &Arc<Object>, range: &Range<u64>) -> Option<Range<u64>> {
        let chunk = self.chunk_bytes();
        if !self.may_store() {
            return None;
        }
        self.with(object, |state| {
            if !self.may_be_brought(state) {
                return None;
            }
            let known = state.attributes();
            let size = known.map_or(range.end, |known| known.size);
            let want = range.start.min(size)..range.end.min(size);
            let missing = state.data.valid().missing(&want).into_iter().next()?;
            let start = missing.start / BLOCK_BYTES * BLOCK_BYTES;
            let end = missing.end.checked_next_multiple_of(BLOCK_BYTES)?;
            let end = if known.is_some() { end.min(size.max(missing.end)) } else { end };
            Some(start..end.min((start / chunk + 1).checked_mul(chunk)?))
        })
    }

    /// What is read with an open for reading, before anybody asks for it.
    pub fn piggyback_on_open(&self, request: &OpenRequest) -> Option<Range<u64>> {
        let reads = request.access == Share::READ && request.create.is_none();
        if !reads || self.options.readahead_max_bytes < SMALL_BYTES || !self.may_store() {
            return None;
        }
        let object = match &request.name {
            None => Some(self.object(&request.handle)),
            Some(name) => match self.name_entry(&request.handle, name) {
                Some(NameEntry { leads: Leads::To(child), .. }) => Some(self.object(&child)),
                _ => None,
            },
        };
        let Some(object) = object else { return Some(0..SMALL_BYTES) };
        self.with(&object, |state| {
            // What is here and young is gone with the open.
            if !self.may_be_brought(state) || state.data.valid() != state.data.racy() {
                return None;
            }
            let Some(known) = state.attributes() else { return Some(0..SMALL_BYTES) };
            let size = known.size.checked_next_multiple_of(BLOCK_BYTES)?;
            (1..=SMALL_BYTES).contains(&size).then_some(0..size)
        })
    }

    /// May data of this come along with an OPEN, as far as is known?
    fn may_be_brought(&self, state: &ObjectState) -> bool {
        let regular = state.attributes().is_none_or(|known| known.file_type == FileType::Regular);
        let quiet = state.writes.is_none() && !state.data.is_being_written() && !state.data.is_refused();
        regular && quiet && self.takes(state)
    }

    /// What came along with an OPEN, if it is worth anything.
    pub fn take_piggybacked(
        &self,
        state: &mut ObjectState,
        start: u64,
        read: Read,
        reply: &Reply,
    ) -> Option<(Arc<Fetch>, Bytes)> {
        let Reply { seen, lease, forgotten, sent } = *reply;
        let Data::Bytes(bytes) = read.data else { return None };
        let known = *state.attributes()?;
        let alone = !state.data.is_written_since(sent.at) && !forgotten;
        let current = seen == Seen::Known && state.is_known_since(sent.sequence.saturating_sub(1));
        if !alone || !current || !self.may_be_brought(state) {
            return None;
        }
        // Of a file that has grown since, the attributes know no more than this; and of one that goes on, whole blocks.
        let left = known.size.saturating_sub(start);
        let kept = left.min(bytes.len() as u64);
        let kept = if kept < left { kept / BLOCK_BYTES * BLOCK_BYTES } else { kept };
        if kept == 0 {
            return None;
        }
        let bytes = bytes.slice(..kept as usize);
        // Under the very lease that came along, if it is held still.
        let held = state.lease.as_ref().filter(|held| held.is_valid()).map(|held| held.id);
        let leased = lease.is_some_and(|lease| held == Some(lease.id));
        let racy = !leased && state.is_racy(&self.policy, sent);
        let fetch = state.data.brought(start..start + kept, sent.sequence, racy);
        let eof = kept == left;
        fetch.finish(Ok(Fetched { bytes: bytes.clone(), eof, attributes: Some(known) }));
        Some((fetch, bytes))
    }

    /// The same, as something that can be stored.
    pub fn brought(&self, object: &Arc<Object>, came: Option<(Arc<Fetch>, Bytes)>) -> Option<Brought> {
        let (fetch, bytes) = came?;
        let Some(core) = self.share() else {
            self.with(object, |state| state.data.end_fetch(&fetch));
            return None;
        };
        Some(Brought { core, object: object.clone(), fetch, bytes })
    }
}
