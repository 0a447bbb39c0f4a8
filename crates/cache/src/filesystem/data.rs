//! READ, READLINK, WRITE and COMMIT.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use vfs::{
    AccessMask, Attributes, Caller, Commit, Data, FileRange, FileType, Handle, Read, Result, Share,
    Stability, StateidBasis, Status, Wcc, Written,
};

use crate::changes::{Change, OwnWrite};
use crate::core::Core;
use crate::data::{Plan, all_covered};
use crate::fetch::{Fetch, Fetched};
use crate::object::{Before, Opening};
use crate::store::Pin;
use crate::table::Object;
use crate::upstream::read::{Answered, Reader};

/// From this size on, a hit is returned as a range of a file and not as a copy.
const FILE_RANGE_MIN_BYTES: u64 = 64 << 10;

/// The largest file offset on this machine.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// One READ request.
struct Request<'a> {
    caller: &'a Caller,
    object: &'a Arc<Object>,
    range: Range<u64>,
    /// When the request arrived, as an event number.
    arrived: u64,
    /// The open that the request names.
    by: StateidBasis,
    /// The rights that ACCESS has returned for this request.
    told: Option<AccessMask>,
}

/// How to answer a READ.
enum Answer {
    Hit {
        pin: Pin,
        eof: bool,
        /// The file was a guess, and this is its first use.
        guessed: bool,
    },
    /// The range lies behind the end of the file.
    Nothing {
        eof: bool,
    },
    Fill(Fill),
    AskAccess,
    Bypass,
}

/// The parts of a READ that this disk does not have in full.
struct Fill {
    stand: (u64, u64),
    present: Vec<Pin>,
    fetches: Vec<Arc<Fetch>>,
    send: Vec<Arc<Fetch>>,
    /// The part of the requested range within the file, and whether it reaches the file's end.
    want: Range<u64>,
    eof: bool,
}

impl Core {
    /// READ: from this disk if the bytes are there and believed, and the caller has the right.
    ///
    /// What only a miss needs is in boxes. Otherwise the future of each hit would have the size of all of it
    /// (9 KiB), and the layer above allocates and moves it.
    pub async fn read(
        &self,
        (caller, by): (&Caller, StateidBasis),
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let arrived = self.policy.event();
        let object = self.object(handle);
        self.know_limits(caller, handle).await;
        let range = offset..offset.saturating_add(u64::from(count));
        let mut request = Request { caller, object: &object, range, arrived, by, told: None };
        if self.wants_open(&request) {
            Box::pin(self.open_for_reading(caller, &object, &request.range)).await;
        }
        let fresh = self.believable(&request).await?;
        match self.plan(&request) {
            Answer::AskAccess => {
                let accessed = Box::pin(self.ask_right(caller, &object, AccessMask::READ)).await?;
                request.told = Some(accessed.granted);
                let answer = self.plan(&request);
                let bypass = matches!(answer, Answer::AskAccess);
                let answer = if bypass { Answer::Bypass } else { answer };
                self.answer(&request, answer, accessed.attributes.or(fresh)).await
            }
            answer => self.answer(&request, answer, fresh).await,
        }
    }

    /// Should the file be opened at the origin first? Over an origin with state, an open may bring a lease.
    /// In any case it brings attributes, and the first bytes by piggyback.
    fn wants_open(&self, request: &Request) -> bool {
        if self.has_state() != Some(true) {
            return false;
        }
        self.with(request.object, |state| {
            let Some(size) = state.current().map(|known| known.size) else {
                return !state.held.opens.covers(Share::READ.into()) && !state.held.opens.is_refused();
            };
            let want = request.range.start.min(size)..request.range.end.min(size);
            !state.data.valid().contains(&want)
                && !state.held.opens.covers(Share::READ.into())
                && !state.held.opens.is_refused()
        })
    }

    /// Revalidates the attributes if their timeout has passed: a file that is open for days must not be
    /// read as it was at the open. Returns the new ones.
    async fn believable(&self, request: &Request<'_>) -> Result<Option<Attributes>> {
        let stale = self.with(request.object, |state| {
            state.attributes().is_some() && state.current().is_none() && !state.is_suspect()
        });
        if stale {
            Box::pin(self.revalidate(request.caller, request.object, request.arrived)).await.map(Some)
        } else {
            Ok(None)
        }
    }

    /// Decides how to answer a READ, given what is known now.
    fn plan(&self, request: &Request) -> Answer {
        let may_store = self.may_store();
        let sent = self.policy.sending();
        let chunk = self.chunk_bytes();
        self.with(request.object, |state| {
            let current = state.current().is_some() || state.is_known_since(request.arrived);
            let Some(known) = state.attributes().filter(|_| current) else { return Answer::Bypass };
            let size = known.size;
            // Only a regular file has data. For any other, the origin chooses the error.
            if known.file_type != FileType::Regular || size > OFFSET_MAX {
                return Answer::Bypass;
            }
            let want = request.range.start.min(size)..request.range.end.min(size);
            let may = self.may(state, &request.caller.principal, AccessMask::READ);
            let here =
                want.is_empty() || state.data.valid().intersects(&want) || state.data.is_under_way(&want);
            match may {
                Some(false) => return Answer::Bypass,
                None if here || self.reads_by_ours(state) => return Answer::AskAccess,
                _ => {}
            }
            if want.is_empty() {
                return Answer::Nothing { eof: request.range.end >= size };
            }
            let stored = may_store && !state.data.is_refused() && self.takes(state);
            if !stored && !state.data.valid().contains(&want) {
                return Answer::Bypass;
            }
            let eof = want.end == size;
            let racy = state.is_racy(&self.policy, &sent);
            match state.data.plan(&want, size, chunk, racy, sent.sequence) {
                Plan::Hit(file) => {
                    let guessed = std::mem::take(&mut state.guessed);
                    Answer::Hit { pin: file.pin(want), eof, guessed }
                }
                Plan::Fill { file, present, join, send } => {
                    let pin = |part: Range<u64>| file.as_ref().map(|file| file.pin(part));
                    let present = present.into_iter().filter_map(pin).collect();
                    let fetches = join.into_iter().chain(send.iter().cloned()).collect();
                    let stand = state.data.stand();
                    Answer::Fill(Fill { stand, present, fetches, send, want, eof })
                }
                Plan::Bypass => Answer::Bypass,
            }
        })
    }

    async fn answer(&self, request: &Request<'_>, answer: Answer, fresh: Option<Attributes>) -> Result<Read> {
        match answer {
            Answer::Hit { pin, eof, guessed } => {
                if guessed {
                    self.used_file(request.caller, request.object);
                }
                self.hit(request, pin, eof, fresh).await
            }
            Answer::Nothing { eof } => {
                self.counters.data.hit();
                Ok(Read { data: Data::default(), eof, attributes: fresh })
            }
            Answer::Fill(fill) => {
                self.counters.data.miss();
                if request.range.start == 0 && request.by == StateidBasis::Anonymous {
                    self.step_at(request.caller, request.object, true);
                }
                Box::pin(self.fill(request, fill, fresh)).await
            }
            Answer::AskAccess | Answer::Bypass => {
                self.counters.data.miss();
                Box::pin(self.read_origin(request)).await
            }
        }
    }

    async fn hit(
        &self,
        request: &Request<'_>,
        pin: Pin,
        eof: bool,
        fresh: Option<Attributes>,
    ) -> Result<Read> {
        let range = pin.range();
        let length = range.end - range.start;
        let from = pin.file().clone();
        self.read_ahead(request.caller, request.object, &range);
        match to_data(pin).await {
            Ok(data) => {
                self.counters.data.hit();
                self.counters.read_hit_bytes.add(length);
                self.touch(request.caller, request.object);
                Ok(Read { data, eof, attributes: fresh })
            }
            Err(error) => {
                self.counters.data.miss();
                self.disk_failed(request.object, &from, &error, false);
                Box::pin(self.read_origin(request)).await
            }
        }
    }

    /// A hit while the origin does not answer. If this disk fails too, the READ fails.
    pub async fn hit_offline(&self, object: &Arc<Object>, pin: Pin, eof: bool) -> Result<Read> {
        let (range, from) = (pin.range(), pin.file().clone());
        match to_data(pin).await {
            Ok(data) => {
                self.counters.data.hit();
                self.counters.read_hit_bytes.add(range.end - range.start);
                Ok(Read { data, eof, attributes: None })
            }
            Err(error) => {
                self.disk_failed(object, &from, &error, false);
                Err(Status::Io.into())
            }
        }
    }

    /// Answers from this disk and from fetches. If the parts do not belong together, asks the origin for
    /// just this range: one reply never has bytes of two states of a file.
    async fn fill(&self, request: &Request<'_>, fill: Fill, fresh: Option<Attributes>) -> Result<Read> {
        for fetch in &fill.send {
            self.start(request.caller, request.object, fetch.clone(), None);
        }
        self.read_ahead(request.caller, request.object, &fill.want);
        let mut parts = Vec::with_capacity(fill.fetches.len());
        let mut shared = false;
        for fetch in &fill.fetches {
            let mine = fill.send.iter().any(|sent| Arc::ptr_eq(sent, fetch));
            match fetch.wait().await {
                Ok(fetched) => {
                    shared |= !mine;
                    parts.push((fetch.clone(), fetched));
                }
                Err(error) if mine && fill.fetches.len() == 1 => return Err(error),
                // The failure of another caller's fetch may concern that caller alone.
                Err(_) => return self.read_origin(request).await,
            }
        }
        // The bytes of another caller's fetch may be newer than the proof of this caller's right.
        if shared && !self.may_share(request) {
            return self.read_origin(request).await;
        }
        let complete = complete_from_one(&fill, &parts, request.arrived);
        // A short reply is right only at the end of the file. Otherwise the file has grown.
        let asked = (request.range.end - request.range.start) as usize;
        if let Some(read) = complete.filter(|read| read.eof || read.data.len() == asked) {
            return Ok(read);
        }
        let unchanged =
            self.with(request.object, |state| state.data.stand() == fill.stand && !state.is_suspect());
        let complete = if unchanged { assemble(&fill, &parts).await } else { Ok(None) };
        match complete {
            Ok(Some(bytes)) => Ok(Read { data: Data::Bytes(bytes), eof: fill.eof, attributes: fresh }),
            Ok(None) => self.read_origin(request).await,
            Err(error) => {
                if let Some(pin) = fill.present.first() {
                    self.disk_failed(request.object, pin.file(), &error, false);
                }
                self.read_origin(request).await
            }
        }
    }

    /// May the caller have bytes that were fetched for another one?
    fn may_share(&self, request: &Request) -> bool {
        self.with(request.object, |state| {
            let may = self.may(state, &request.caller.principal, AccessMask::READ);
            may == Some(true) && (!state.is_suspect() || state.leased().is_some())
        })
    }

    /// Reads just this range at the origin, and keeps nothing.
    async fn read_origin(&self, request: &Request<'_>) -> Result<Read> {
        let object = request.object;
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        let count = (request.range.end - request.range.start) as u32;
        let reader = Reader { caller: request.caller, by: request.by, told: request.told };
        match self.read_below(reader, object, request.range.start, count).await {
            Ok(Answered { mut read, proves }) => {
                clip(&mut read.data, count);
                self.counters.fetched_bytes.add(read.data.len() as u64);
                self.observe(object, read.attributes.as_ref(), &sent, Opening::No);
                if proves {
                    self.remember_success(request.caller, object, AccessMask::READ, &sent, &before);
                }
                Ok(read)
            }
            Err(error) => {
                self.note_error(object, &error, &sent);
                Err(error)
            }
        }
    }

    /// READLINK: a link target is cached like data.
    pub async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let arrived = self.policy.event();
        let object = self.object(handle);
        if self.with(&object, |state| state.link.is_some()) {
            let attributes = self.fresh_link(caller, &object, arrived).await?;
            let target = self.with(&object, |state| {
                let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
                let current = state.current().is_some() || state.is_known_since(arrived);
                state.link.clone().filter(|_| may && current)
            });
            if let Some(target) = target {
                self.counters.data.hit();
                return Ok((target, attributes));
            }
        }
        self.counters.data.miss();
        let before = self.with(&object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.readlink.bump();
        let result = self.below.readlink(caller, handle).await;
        match &result {
            Ok((target, attributes)) => {
                let seen = self.observe(&object, attributes.as_ref(), &sent, Opening::No);
                self.remember_success(caller, &object, AccessMask::READ, &sent, &before);
                self.with(&object, |state| {
                    // The target never changes while the object is the same one. The epoch tells that it
                    // is.
                    if state.is_of(seen, &before) && state.epoch() == before.epoch {
                        state.link = Some(target.clone());
                        state.index.changed = true;
                    }
                });
            }
            Err(error) => self.note_error(&object, error, &sent),
        }
        result
    }

    async fn fresh_link(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        arrived: u64,
    ) -> Result<Option<Attributes>> {
        if self.with(object, |state| state.current().is_some()) {
            return Ok(None);
        }
        self.revalidate(caller, object, arrived).await.map(Some)
    }

    /// WRITE: sends the bytes to the origin, then stores them in the cache.
    pub async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let object = self.object(handle);
        let range = offset..offset.saturating_add(data.len() as u64);
        let own = OwnWrite::begin(self, &object, range)?;
        let change = Change::begin_synced(self, &object).await;
        let result = self.write_below(caller, &object, offset, data.clone(), stability).await;
        change.ended(result.as_ref().map(|written| &written.wcc));
        if let Ok(written) = &result {
            let kept = data.slice(..data.len().min(written.count as usize));
            self.keep_written(own, offset, kept).await;
        }
        result
    }

    /// COMMIT: it changes nothing in the cache.
    pub async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        let object = self.object(handle);
        let sent = self.policy.sending();
        self.counters.commit.bump();
        let result = self.below.commit(caller, handle, offset, count).await;
        match &result {
            Ok(Commit { wcc: Wcc { after, .. }, .. }) => {
                self.observe(&object, after.as_ref(), &sent, Opening::No);
            }
            Err(error) => self.note_error(&object, error, &sent),
        }
        result
    }
}

/// The bytes of a hit: a copy if there are few, otherwise a range of the file.
async fn to_data(pin: Pin) -> std::io::Result<Data> {
    let range = pin.range();
    let length = range.end - range.start;
    if length < FILE_RANGE_MIN_BYTES {
        return pin.read().await.map(|bytes| Data::Bytes(bytes.into()));
    }
    let file = pin.open()?;
    let pin: Option<Arc<dyn std::any::Any + Send + Sync>> = Some(Arc::new(pin));
    let range = FileRange { file, offset: range.start, length: length as u32, pin };
    range.fault_in().await;
    Ok(Data::File(range))
}

/// Cuts a reply to the requested length: an origin must not send more.
fn clip(data: &mut Data, count: u32) {
    match data {
        Data::Bytes(bytes) => bytes.truncate(count as usize),
        Data::File(range) => range.length = range.length.min(count),
    }
}

/// The reply, if a single fetch brought all of it.
fn complete_from_one(fill: &Fill, parts: &[(Arc<Fetch>, Fetched)], arrived: u64) -> Option<Read> {
    let [(fetch, fetched)] = parts else { return None };
    if !fill.present.is_empty() || fetch.range.start > fill.want.start {
        return None;
    }
    let start = (fill.want.start - fetch.range.start) as usize;
    let end = (fill.want.end - fetch.range.start) as usize;
    let there = fetched.bytes.len();
    if there < end && !fetched.eof {
        return None;
    }
    let data = Data::Bytes(fetched.bytes.slice(start.min(there)..end.min(there)));
    // Attributes count as new only if they were requested after this READ arrived.
    let attributes = fetched.attributes.filter(|_| fetch.sequence > arrived);
    let known_end = fill.eof && fetched.attributes.is_none_or(|now| now.size == fill.want.end);
    Some(Read { data, eof: (fetched.eof && end >= there) || known_end, attributes })
}

/// Assembles a reply from several parts, if they cover the range.
async fn assemble(fill: &Fill, parts: &[(Arc<Fetch>, Fetched)]) -> std::io::Result<Option<Bytes>> {
    let brought = |(fetch, fetched): &(Arc<Fetch>, Fetched)| {
        fetch.range.start..fetch.range.start + fetched.bytes.len() as u64
    };
    let ranges: Vec<Range<u64>> =
        fill.present.iter().map(Pin::range).chain(parts.iter().map(brought)).collect();
    if !all_covered(&fill.want, ranges.into_iter()) {
        return Ok(None);
    }
    let mut complete = vec![0; (fill.want.end - fill.want.start) as usize];
    for pin in &fill.present {
        copy_part(&mut complete, &fill.want, &pin.range(), &pin.read().await?);
    }
    for part in parts {
        copy_part(&mut complete, &fill.want, &brought(part), &part.1.bytes);
    }
    Ok(Some(complete.into()))
}

/// Copies the bytes that `range` and `want` have in common into the buffer for `want`. `bytes` are those of
/// `range`.
fn copy_part(complete: &mut [u8], want: &Range<u64>, range: &Range<u64>, bytes: &[u8]) {
    let (start, end) = (want.start.max(range.start), want.end.min(range.end));
    if start >= end {
        return;
    }
    let from = (start - range.start) as usize..(end - range.start) as usize;
    let to = (start - want.start) as usize..(end - want.start) as usize;
    if let (Some(to), Some(from)) = (complete.get_mut(to), bytes.get(from)) {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vfs::{Caller, Handle, StateidBasis};

    use crate::{Cache, Options};
    use vfs::NullFileSystem;

    /// The future of a READ is allocated and moved once for each call. The states of a miss do not belong
    /// in it.
    #[tokio::test]
    async fn the_future_of_a_read_is_small() {
        const MOST_BYTES: usize = 2560;
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(directory.path().join("cache"), "nfs://origin/export");
        let cache = Cache::open(Arc::new(NullFileSystem), options).await.unwrap();
        let (caller, handle) = (Caller::machine(), Handle::new(b"file").unwrap());
        let reader = (&caller, StateidBasis::Anonymous);
        let plain = size_of_val(&cache.core.read_or_offline(reader, &handle, 0, 4096));
        let delayed = size_of_val(&cache.core.read_over(reader, &handle, 0, 4096));
        assert!(plain.max(delayed) <= MOST_BYTES, "{plain} bytes, {delayed} where writes are delayed");
    }
}
