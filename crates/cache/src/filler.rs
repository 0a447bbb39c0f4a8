//! The filler: stores bytes from the origin, and from our own writes, in the data files of the cache.
//!
//! Each fetch runs as a task of its own, so a waiter that gives up does not affect the others that share the
//! fetch. Waiting readers are answered from the bytes as they arrive. The bytes are stored afterwards.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use bytes::{Bytes, BytesMut};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use vfs::{AccessMask, Attributes, Caller, Extent, Features, Result, Share, StateidBasis, Status};

use crate::changes::OwnWrite;
use crate::core::{CHUNK_MAX_BYTES, Core};
use crate::data::Data;
use crate::fetch::{Fetch, Fetched};
use crate::holes::Holes;
use crate::object::{Before, Opening};
use crate::store::objects::{INLINE_BYTES, blocking};
use crate::table::Object;
use crate::upstream::read::{Answered, Reader};

/// A reply with fewer bytes than this, and with more to come, is scant.
const SCANT_BYTES: usize = 512;
/// The largest number of scant replies to one fetch. An origin that sent one byte with each READ would
/// otherwise cost a call for each byte.
const SCANT_MAX: usize = 16;

/// A fetch and the credential of its reader.
struct Errand {
    core: Arc<Core>,
    object: Arc<Object>,
    caller: Caller,
    fetch: Arc<Fetch>,
    /// No reader waits for it.
    background: bool,
}

/// The result of an errand.
struct Brought {
    /// The bytes from the start of the range.
    bytes: Bytes,
    /// How many of them came from the origin. The others belong to a hole.
    read_bytes: usize,
    /// The file ends with them.
    eof: bool,
    /// Attributes that the replies carried.
    states: Vec<Attributes>,
    /// The origin has decided on each of the READs for this reader.
    proves: bool,
}

/// A hole at the start of an errand's range.
struct Hole {
    range: Range<u64>,
    /// The size of the file.
    size: u64,
    /// Attributes that the reply carried.
    attributes: Option<Attributes>,
}

impl Core {
    /// Sends a planned fetch. `permit` is held while the fetch is in flight.
    pub fn start(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        fetch: Arc<Fetch>,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        self.send(caller, object, fetch, permit, false);
    }

    /// The same. The returned task ends when the bytes of the fetch are stored or will not be.
    pub fn send(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        fetch: Arc<Fetch>,
        permit: Option<OwnedSemaphorePermit>,
        background: bool,
    ) -> Option<JoinHandle<()>> {
        let Some(core) = self.share() else {
            fetch.finish(Err(Status::ServerFault.into()));
            return None;
        };
        let errand = Errand { core, object: object.clone(), caller: caller.clone(), fetch, background };
        Some(tokio::spawn(async move {
            errand.run().await;
            drop(permit);
        }))
    }

    /// Fetches the bytes that the reader of `range` will want next, under the reader's credential.
    pub fn read_ahead(&self, caller: &Caller, object: &Arc<Object>, range: &Range<u64>) {
        let bound = self.options.readahead_max_bytes;
        if bound == 0 || self.gate.is_paused() {
            return;
        }
        let chunk = self.chunk_bytes();
        // Less than a chunk is not worth a READ.
        let free = self.link.ahead_bytes() / chunk * chunk;
        let window_max = self.link.read_window_bytes().max(chunk * 4).min(bound);
        let fetches = self.with(object, |state| {
            let size = state.attributes()?.size;
            if !self.takes(state) {
                return None;
            }
            let free = free.min(state.data.ahead_left() as u64 * chunk);
            let ahead = state.streams.on_read(range, size, (window_max, free), chunk)?;
            let sent = self.policy.sending();
            let racy = state.is_racy(&self.policy, &sent);
            Some(state.data.plan_ahead(&ahead, size, chunk, racy, sent.sequence))
        });
        for fetch in fetches.unwrap_or_default() {
            if let Some(permit) = self.link.try_ahead(fetch.range.end - fetch.range.start) {
                self.start(caller, object, fetch, Some(permit));
            } else {
                fetch.finish(Err(Status::Delay.into()));
                self.with(object, |state| state.data.end_fetch(&fetch));
            }
        }
    }

    /// Stores the bytes of a write of ours that the origin has accepted.
    pub async fn keep_written(&self, own: OwnWrite, offset: u64, bytes: Bytes) {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || !self.may_store() {
            return;
        }
        let ticket = own.ticket();
        let wanted = move |data: &Data| data.wants_write(ticket);
        if bytes.len() <= INLINE_BYTES {
            self.store(own.object(), range, &bytes, false, wanted).await;
            return;
        }
        // The client does not wait for our disk, unless there are too many such writes.
        let Some(permit) = self.disk.permit_storing().await else { return };
        tokio::spawn(async move {
            own.core().store(own.object(), range, &bytes, false, wanted).await;
            drop(permit);
        });
    }

    /// The same, but returns only when the bytes are stored or will not be.
    pub async fn store_written(&self, own: &OwnWrite, offset: u64, bytes: &Bytes) {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let ticket = own.ticket();
        if !bytes.is_empty() && self.may_store() {
            self.store(own.object(), range, bytes, false, |data| data.wants_write(ticket)).await;
        }
    }

    /// Writes the missing bytes to the object's data file. Marks them valid if they are `wanted` both before
    /// and after the write.
    pub async fn store(
        &self,
        object: &Arc<Object>,
        range: Range<u64>,
        bytes: &Bytes,
        racy: bool,
        wanted: impl Fn(&Data) -> bool,
    ) {
        let claims = self.with(object, |state| {
            if !wanted(&state.data) || !self.takes(state) {
                return Vec::new();
            }
            let missing = state.data.valid().missing(&range);
            let fsid = state.attributes().map(|known| known.fsid).unwrap_or_default();
            let claim = |part: Range<u64>| {
                let (ticket, file) = state.data.claim(&part, || self.disk.objects().create(fsid))?;
                Some((ticket, file, part))
            };
            missing.into_iter().filter_map(claim).collect()
        });
        for (ticket, file, part) in claims {
            let piece = bytes.slice((part.start - range.start) as usize..(part.end - range.start) as usize);
            let crc = crc32c::crc32c(&piece);
            let result = file.write(part.start, piece).await;
            let stored = self.with(object, |state| {
                let good = result.is_ok() && wanted(&state.data);
                let stored = state.data.release(ticket, good, racy);
                if stored {
                    state.data.put_sum(part.clone(), crc);
                }
                state.index.changed |= stored;
                stored
            });
            match result {
                Ok(()) if stored => self.counters.stored_bytes.add(part.end - part.start),
                Ok(()) => {}
                Err(error) => self.disk_failed(object, &file, &error, true),
            }
        }
    }
}

impl Errand {
    async fn run(self) {
        let before = self.core.with(&self.object, |state| Before::of(state));
        let sent = self.core.policy.sending();
        match self.bring().await {
            Ok(Brought { bytes, read_bytes, eof, states, proves }) => {
                for attributes in &states {
                    self.core.observe(&self.object, Some(attributes), &sent, Opening::No);
                }
                if proves {
                    self.core.remember_success(&self.caller, &self.object, AccessMask::READ, &sent, &before);
                }
                self.core.measure(read_bytes as u64);
                let fetched = Fetched { bytes: bytes.clone(), eof, attributes: states.last().copied() };
                self.fetch.finish(Ok(fetched));
                let range = self.fetch.range.start..self.fetch.range.start + bytes.len() as u64;
                let wanted = |data: &Data| data.wants(&self.fetch);
                if self.core.may_store() {
                    self.core.store(&self.object, range, &bytes, self.fetch.racy, wanted).await;
                }
            }
            Err(error) => {
                self.core.note_error(&self.object, &error, &sent);
                self.fetch.finish(Err(error));
            }
        }
    }

    /// Reads the range, in as many READs as the origin wants. A hole at its start costs none. Stops early if
    /// the file changes between two READs.
    async fn bring(&self) -> Result<Brought> {
        let range = &self.fetch.range;
        let mut brought =
            Brought { bytes: Bytes::new(), read_bytes: 0, eof: false, states: Vec::new(), proves: false };
        if let Some(hole) = self.hole().await {
            brought.states.extend(hole.attributes);
            let end = hole.range.end.min(range.end);
            brought.bytes = zeros((end - range.start) as usize);
            brought.eof = end >= hole.size;
            if brought.eof || end == range.end {
                return Ok(brought);
            }
        }
        let first = self.read(range.start + brought.bytes.len() as u64..range.end).await?;
        brought.proves = first.proves;
        let mut read = first.read;
        brought.states.extend(read.attributes);
        let first = to_bytes(&read.data).await?;
        brought.read_bytes = first.len();
        let mut all = first.clone();
        if !brought.bytes.is_empty() || (!read.eof && is_short(&first, range)) {
            let mut more = BytesMut::from(&brought.bytes[..]);
            more.extend_from_slice(&first);
            let mut scant = 0;
            while !read.eof && is_short(&more, range) {
                let Answered { read: next, proves } =
                    self.read(range.start + more.len() as u64..range.end).await?;
                brought.proves &= proves;
                let changed = next.attributes.zip(read.attributes).is_some_and(|(a, b)| a.wcc() != b.wcc());
                let bytes = to_bytes(&next.data).await?;
                brought.states.extend(next.attributes);
                if changed || (bytes.is_empty() && !next.eof) {
                    break;
                }
                scant += usize::from(bytes.len() < SCANT_BYTES && !next.eof);
                if scant > SCANT_MAX {
                    return Err(Status::Io.into());
                }
                brought.read_bytes += bytes.len();
                more.extend_from_slice(&bytes);
                read = next;
            }
            all = more.freeze();
        }
        all.truncate((range.end - range.start) as usize);
        self.core.with(&self.object, |state| state.data.holes.read(&all));
        Ok(Brought { bytes: all, eof: read.eof, ..brought })
    }

    /// The hole at the start of the range. `None` if there is data, or if that is not known and not worth a
    /// call.
    async fn hole(&self) -> Option<Hole> {
        let (core, object, start) = (&self.core, &self.object, self.fetch.range.start);
        if !core.link.limits().is_some_and(|limits| limits.features.contains(Features::SEEK)) {
            return None;
        }
        let (known, stand) = core.with(object, |state| {
            let size = state.attributes().filter(|known| Holes::may_be_in(known)).map(|known| known.size)?;
            let stand = state.data.stand();
            // Without a READ, nothing tells whether this caller may read. A READ under an open of ours does
            // not tell either.
            let may = core.may(state, &self.caller.principal, AccessMask::READ) == Some(true);
            if !may && core.reads_by_ours(state) {
                return None;
            }
            let hole = state.data.holes.at(start, stand).filter(|_| may);
            let asks = state.data.holes.may_follow() && !state.data.is_being_written();
            let known = hole.map(|range| Hole { range, size, attributes: None });
            (known.is_some() || asks).then_some((known, stand))
        })?;
        if known.is_some() {
            return known;
        }
        let hole = self.ask_hole(start).await?;
        core.with(object, |state| {
            if !state.data.is_being_written() {
                state.data.holes.told(hole.range.clone(), stand);
            }
        });
        (!hole.range.is_empty()).then_some(hole)
    }

    /// Asks the origin for the next data. `None` if the origin does not say, or not for which state of the
    /// file.
    async fn ask_hole(&self, start: u64) -> Option<Hole> {
        let (core, handle) = (&self.core, &self.object.handle);
        let usage = core.use_open(&self.object, Share::READ);
        core.counters.extended.bump();
        let by = Core::stateid_basis(usage.as_ref());
        let (data, told) = match core.below.seek(&self.caller, handle, by, start, Extent::Data).await {
            Ok(sought) => (Some(sought.offset), sought.attributes),
            Err(error) if error.status == Status::Nxio => (None, error.attributes.map(|all| *all)),
            Err(_) => return None,
        };
        let attributes = match told {
            Some(attributes) => attributes,
            None => core.below.getattr(&self.caller, handle).await.ok()?,
        };
        let end = data.unwrap_or(attributes.size).min(attributes.size);
        let range = start..end.max(start);
        Some(Hole { range, size: attributes.size, attributes: Some(attributes) })
    }

    async fn read(&self, range: Range<u64>) -> Result<Answered> {
        let count = (range.end - range.start) as u32;
        if self.background {
            self.core.counters.filled_calls.bump();
        }
        let reader = Reader { caller: &self.caller, by: StateidBasis::Anonymous, told: None };
        self.core.read_below(reader, &self.object, range.start, count).await
    }
}

impl Drop for Errand {
    /// However the errand ends, every waiter gets a result. Only the first result counts.
    fn drop(&mut self) {
        self.fetch.finish(Err(Status::ServerFault.into()));
        self.core.with(&self.object, |state| state.data.end_fetch(&self.fetch));
    }
}

impl Core {
    /// Counts bytes that have arrived from the origin.
    pub fn measure(&self, bytes: u64) {
        self.counters.fetched_bytes.add(bytes);
        self.link.on_read(bytes);
    }
}

/// Are there fewer bytes than the range asks for, but not none?
fn is_short(bytes: &[u8], range: &Range<u64>) -> bool {
    (bytes.len() as u64) < range.end - range.start && !bytes.is_empty()
}

/// A buffer of zeros. Sizes up to the largest READ share one allocation.
fn zeros(count: usize) -> Bytes {
    static ZEROS: LazyLock<Bytes> = LazyLock::new(|| Bytes::from(vec![0; CHUNK_MAX_BYTES as usize]));
    if count <= ZEROS.len() { ZEROS.slice(..count) } else { Bytes::from(vec![0; count]) }
}

/// The bytes of a READ. Runs off the async worker if a disk has to be read.
pub async fn to_bytes(data: &vfs::Data) -> Result<Bytes> {
    match data {
        vfs::Data::Bytes(bytes) => Ok(bytes.clone()),
        vfs::Data::File(_) => {
            let data = data.clone();
            blocking(move || data.to_bytes()).await.map_err(|_| Status::Io.into())
        }
    }
}
