//! A READ piggybacked on an OPEN: one round trip brings the open, the attributes, perhaps a lease, and the
//! first bytes.
//!
//! Two requests ask for it:
//! - A READ by a client without opens, of a file that is not open at the origin. It asks for the range that
//!   it would have fetched first.
//! - An open for reading alone, of a file without usable cached data. It asks for the entire file if that
//!   is small, and for as much as that if the size is not known. A program that opens a file to read it
//!   usually reads it from the start. If it does not, the bytes were requested in vain, but they cost no
//!   call.
//!
//! The bytes are worth as much as a fetch that was sent with the OPEN, and more if the OPEN brought a
//! lease. The origin carried out the READ after the grant and after the attributes
//! (`OpenRequest::read_first`), so no change by another client is hidden between them. Bytes that may hide
//! a change of ours are not used. These are bytes read while a write of ours was in flight, and bytes that
//! belong to other attributes than the known ones. When the OPEN is sent, the file that a name leads to may
//! not be known, so this is judged when the reply comes.

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

/// A file up to this size is small. Linux reads ahead as much at first, and it takes less than a round trip
/// on any link that is worth a cache.
const SMALL_BYTES: u64 = 64 << 10;

/// The bytes that came with an OPEN. Readers of the file share them until this is dropped.
pub struct Brought {
    core: Arc<Core>,
    object: Arc<Object>,
    fetch: Arc<Fetch>,
    bytes: Bytes,
}

impl Brought {
    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Stores the bytes on this disk, if they are still wanted.
    pub async fn store(self) {
        let start = self.fetch.range.start;
        let range = start..start + self.bytes.len() as u64;
        let wanted = |data: &crate::data::Data| data.wants(&self.fetch);
        if self.core.may_store() {
            self.core.store(&self.object, range, &self.bytes, self.fetch.racy, wanted).await;
        }
    }

    /// The same, before any client has asked for the bytes: they do not make the file a candidate for
    /// completion.
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

/// The reply to an OPEN, by which its bytes are judged.
pub struct Reply<'a> {
    /// The outcome of observing the file's attributes.
    pub seen: Seen,
    /// The lease that the reply brought.
    pub lease: Option<&'a Lease>,
    /// We may have written the file meanwhile, and its state may have left memory since.
    pub forgotten: bool,
    /// When the OPEN was sent.
    pub sent: &'a Sent,
}

impl Core {
    /// The range that a READ would fetch first, if the file is not open at the origin.
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

    /// The range to read with an open for reading, before any client asks for it.
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
            // The open drops cached bytes that are racy.
            if !self.may_be_brought(state) || state.data.valid() != state.data.racy() {
                return None;
            }
            let Some(known) = state.attributes() else { return Some(0..SMALL_BYTES) };
            let size = known.size.checked_next_multiple_of(BLOCK_BYTES)?;
            (1..=SMALL_BYTES).contains(&size).then_some(0..size)
        })
    }

    /// May an OPEN bring data of this file, as far as known?
    fn may_be_brought(&self, state: &ObjectState) -> bool {
        let regular = state.attributes().is_none_or(|known| known.file_type == FileType::Regular);
        let quiet =
            state.delayed.writes.is_none() && !state.data.is_being_written() && !state.data.is_refused();
        regular && quiet && self.takes(state)
    }

    /// Takes the bytes that came with an OPEN, if they may be used.
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
        let current =
            matches!(seen, Seen::Known { .. }) && state.is_known_since(sent.sequence.saturating_sub(1));
        if !alone || !current || !self.may_be_brought(state) {
            return None;
        }
        // The bytes are under a lease only if the lease of this reply is still held.
        let held = state.held.lease.as_ref().filter(|held| held.is_valid()).map(|held| held.id);
        let leased = lease.is_some_and(|lease| held == Some(lease.id));
        // Without a lease, another client may have written between the attributes and the READ. Until the
        // next call shows that, the bytes must not stand beside older ones.
        if !leased && !state.data.is_blank() {
            return None;
        }
        // If the READ found another end of the file, the attributes are not those of its bytes.
        let (left, came) = (known.size.saturating_sub(start), bytes.len() as u64);
        if came > left || (came < left && read.eof) {
            return None;
        }
        // If the file goes on behind these bytes, keep entire blocks.
        let kept = if came < left { came / BLOCK_BYTES * BLOCK_BYTES } else { came };
        if kept == 0 {
            return None;
        }
        let bytes = bytes.slice(..kept as usize);
        let racy = !leased && state.is_racy(&self.policy, sent);
        let fetch = state.data.brought(start..start + kept, sent.sequence, racy);
        let eof = kept == left;
        fetch.finish(Ok(Fetched { bytes: bytes.clone(), eof, attributes: Some(known) }));
        Some((fetch, bytes))
    }

    /// Makes a [`Brought`] of them, which can be stored.
    pub fn brought(&self, object: &Arc<Object>, came: Option<(Arc<Fetch>, Bytes)>) -> Option<Brought> {
        let (fetch, bytes) = came?;
        let Some(core) = self.share() else {
            self.with(object, |state| state.data.end_fetch(&fetch));
            return None;
        };
        Some(Brought { core, object: object.clone(), fetch, bytes })
    }
}
