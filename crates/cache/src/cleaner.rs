//! The cleaner: keeps the data within its limits, least recently used first, and removes dropped files from
//! the disk.
//!
//! The cleaner starts at the soft limit. At the hard limit, nothing is stored until usage is below the soft
//! limit again. Data that is being read or written stays, and so does pinned data. A slow sweep removes files
//! that no record refers to, which a killed process may leave behind. It also corrects the count of bytes in
//! use. Nothing is scanned at the start.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::{Attributes, Fsid, Handle};

use crate::core::Core;
use crate::filesystem::directory::listing_id;
use crate::limits::{Pressure, Usage, after_cleaning};
use crate::names::{DEPTH_MAX, Leads, NameEntry, directory_of, directory_prefix};
use crate::store::index::FULL_BYTES;
use crate::store::objects::blocking;
use crate::store::{Batch, FileId, Record, Table, UseNote};
use crate::table::Object;

/// Records that are read between two pauses.
const PAGE: usize = 128;
/// How much data is dropped at a time so that a full disk can take an index.
const CLEANED_BYTES: u64 = 4 * FULL_BYTES;

/// The outcome of a cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// Usage is below the soft limits.
    Enough,
    /// Some data was evicted, but not enough. The rest is in use or pinned, or new data has taken the freed
    /// space.
    Some,
    /// Nothing could be evicted.
    Nothing,
}

impl Core {
    /// Removes dropped files from the disk.
    pub async fn empty_trash(&self) {
        let trash = self.disk.take_trash();
        if trash.is_empty() {
            return;
        }
        let _ = blocking(move || {
            trash.iter().for_each(|file| file.remove());
            Ok(())
        })
        .await;
    }

    /// Frees capacity if a limit demands it.
    pub async fn clean(self: &Arc<Core>) -> Cleaned {
        self.empty_trash().await;
        self.disk.look();
        if !self.needs_cleaning() {
            self.gate.set_over_limit(false);
            return Cleaned::Enough;
        }
        self.tell_uses().await;
        let evictions = self.counters.evictions.get();
        let mut from = Vec::new();
        while !self.has_space() {
            let page = self.disk.index().scan(Table::Uses, &[], &from, PAGE);
            let Some((last, _)) = page.last() else { break };
            from.clone_from(last);
            from.push(0);
            let surplus = self.surplus_records();
            let mut pressure = self.pressure();
            let mut forgotten = 0;
            for (key, note) in &page {
                let forget = forgotten < surplus;
                forgotten += u64::from(self.evict(key, UseNote::decode(note), forget, &mut pressure));
                if pressure.is_relieved() && forgotten >= surplus {
                    break;
                }
            }
            self.empty_trash().await;
            // Forgotten objects are counted when they leave the index.
            self.flush().await;
            self.disk.look();
        }
        let capacity = self.is_below_soft();
        // New data may have taken the freed space meanwhile. That does not mean that nothing can be evicted.
        let freed = self.counters.evictions.get() > evictions;
        self.gate.set_over_limit(!capacity && !freed);
        if capacity {
            self.gate.resume();
        }
        match (capacity, freed) {
            (true, _) => Cleaned::Enough,
            (false, true) => Cleaned::Some,
            (false, false) => Cleaned::Nothing,
        }
    }

    /// Has the cleaner freed enough?
    fn has_space(&self) -> bool {
        self.pressure().is_relieved() && self.surplus_records() == 0
    }

    /// How much data must be evicted.
    fn pressure(&self) -> Pressure {
        let usage = Usage {
            used_bytes: self.disk.objects().used_bytes(),
            shares: self.disk.objects().shares(),
            free_bytes: self.disk.free_bytes(),
        };
        Pressure::of(&self.limits(), &usage)
    }

    /// Is usage within the soft limits?
    pub fn is_below_soft(&self) -> bool {
        let objects = self.disk.objects();
        self.limits().is_within_soft(objects.used_bytes(), self.disk.free_bytes(), || objects.shares())
    }

    /// How many objects are in the index beyond nineteen twentieths of the limit.
    fn surplus_records(&self) -> u64 {
        let max = self.options.objects_max;
        self.flushing.indexed().saturating_sub(after_cleaning(max))
    }

    /// Drops an object's data, or everything known of it if `forget` is set. Spares an object that was used
    /// since the key was written, is in use, or is pinned. True if the object was forgotten.
    fn evict(&self, key: &[u8], note: UseNote, forget: bool, pressure: &mut Pressure) -> bool {
        let wanted = note.has_data && pressure.wants(note.fsid);
        if !forget && !wanted {
            return false;
        }
        let Some((used, handle)) = key.split_first_chunk::<8>() else { return false };
        let Some(handle) = Handle::new(handle) else { return false };
        let object = self.glance(&handle);
        if object.used.load(Ordering::Relaxed) > u64::from_be_bytes(*used) || self.is_kept(&object) {
            return false;
        }
        let outcome = self.with(&object, |state| {
            if state.data.is_in_use() {
                return None;
            }
            let evicted = state.data.file().map(|file| file.allocated_bytes());
            let is_dir = state.attributes().is_some_and(Attributes::is_dir);
            state.drop_data();
            if forget {
                state.forget(&self.policy);
            }
            Some((evicted, is_dir))
        });
        let Some((evicted, is_dir)) = outcome else { return false };
        if let Some(bytes) = evicted {
            self.counters.evictions.bump();
            pressure.relieve(note.fsid, bytes);
        }
        if forget && is_dir {
            self.forget_names(&handle);
        }
        forget
    }

    /// Data that was kept may now be evicted, or was dropped.
    pub fn ease(&self) {
        self.gate.ease();
        if self.needs_cleaning() {
            self.gate.wake();
        }
    }

    /// Is the object pinned, or below a pinned directory?
    pub fn is_kept(&self, object: &Arc<Object>) -> bool {
        self.pinned_by(object).is_some()
    }

    /// The pin that keeps the object: its own, or that of the nearest directory above the place where it was
    /// last seen.
    pub fn pinned_by(&self, object: &Arc<Object>) -> Option<Handle> {
        if self.disk.pins().is_empty() {
            return None;
        }
        let mut above = object.clone();
        for _ in 0..DEPTH_MAX {
            if self.disk.pins().has(&above.handle) {
                return Some(above.handle);
            }
            let directory = self.with(&above, |state| state.place.as_ref().map(|place| place.directory))?;
            above = self.glance(&directory);
        }
        None
    }

    /// Evicts data from a full disk while no index tells the order of uses: of the objects in memory, the
    /// least recently used first.
    pub async fn clean_without_index(self: &Arc<Core>) {
        let mut objects: Vec<_> = self.memory.table().all().collect();
        objects.sort_by_key(|object| object.used.load(Ordering::Relaxed));
        let mut freed = 0;
        for object in objects {
            if freed >= CLEANED_BYTES {
                break;
            }
            if self.is_kept(&object) {
                continue;
            }
            freed += self
                .with(&object, |state| {
                    let bytes = state.data.file().filter(|_| !state.data.is_in_use())?.allocated_bytes();
                    state.drop_data();
                    self.counters.evictions.bump();
                    Some(bytes)
                })
                .unwrap_or_default();
        }
        self.empty_trash().await;
        self.disk.look();
    }

    /// Removes all names, listings and groups of a directory from the index.
    fn forget_names(&self, directory: &Handle) {
        let prefix = directory_prefix(directory);
        for table in [Table::Names, Table::Listings, Table::Companions] {
            loop {
                let page = self.disk.index().scan(table, &prefix, &prefix, PAGE);
                let mut batch = Batch::default();
                page.iter().for_each(|(key, _)| batch.remove(table, key.clone()));
                self.disk.index().commit(batch);
                if page.len() < PAGE {
                    break;
                }
            }
        }
    }

    /// Removes files that no record refers to, and counts the bytes in use. Pauses for `breath` after each
    /// page. If the index is `lost`, the files of this process that only the index knew are removed too.
    pub async fn sweep(self: &Arc<Core>, breath: Duration, lost: bool) {
        let newer = Newer { from: self.policy.epoch() };
        if !lost {
            // So that the records of older entries are in the index.
            self.flush().await;
        }
        // Files that are made from now on stay, and so do files that memory or the index knows. Memory comes
        // first: an object is in the index before it leaves memory.
        let ours = Ours {
            nonce: self.disk.objects().nonce(),
            below: if lost { self.disk.objects().next_number() } else { 0 },
        };
        let mut known = HashSet::new();
        let mut shares: HashMap<Fsid, u64> = HashMap::new();
        let before_shares = self.disk.objects().shares();
        for object in self.memory.table().all() {
            let file = self.with(&object, |state| {
                let file = state.data.file()?;
                Some((file.id, file.allocated_bytes(), state.attributes().map(|known| known.fsid)))
            });
            let Some((id, allocated, fsid)) = file else { continue };
            known.insert(id);
            if let Some(fsid) = fsid {
                *shares.entry(fsid).or_default() += allocated;
            }
        }
        let mut from = Vec::new();
        loop {
            let page = self.disk.index().scan(Table::Objects, &[], &from, PAGE);
            let Some((last, _)) = page.last() else { break };
            from.clone_from(last);
            from.push(0);
            for record in page.iter().filter_map(|(_, record)| Record::decode(record)) {
                let Some(data) = record.data else { continue };
                if known.insert(data.file) {
                    *shares.entry(record.kept.attributes.fsid).or_default() += data.allocated_bytes;
                }
            }
            tokio::time::sleep(breath).await;
        }
        self.sweep_entries(Table::Names, breath, newer).await;
        self.sweep_entries(Table::Listings, breath, newer).await;
        self.sweep_entries(Table::Companions, breath, newer).await;
        let before = self.disk.objects().used_bytes();
        let mut used = 0;
        for shard in 0..=u8::MAX {
            let path = self.disk.objects().root().join(format!("{shard:02x}"));
            let set = known.clone();
            let swept = blocking(move || Ok(sweep_shard(&path, ours, &set))).await;
            used += swept.unwrap_or_default();
            tokio::time::sleep(breath).await;
        }
        let drift = used as i64 - before as i64;
        let moved = self.disk.objects().used_bytes() as i64 - before as i64;
        // Data that was stored during the count may be counted or not. Only a drift beyond that is corrected.
        if drift.unsigned_abs() > moved.unsigned_abs() + (1 << 20) {
            self.disk.objects().correct_used_bytes(drift);
            self.correct_shares(&before_shares, &shares);
        }
    }

    /// The same for each file system, by the records, if its own count has not moved meanwhile.
    fn correct_shares(&self, before: &[(Fsid, u64)], found: &HashMap<Fsid, u64>) {
        for (fsid, used) in before {
            let moved = self.disk.objects().share_bytes(*fsid).abs_diff(*used);
            let found = found.get(fsid).copied().unwrap_or_default();
            if moved == 0 && found.abs_diff(*used) > 1 << 20 {
                self.disk.objects().set_share(*fsid, found);
            }
        }
    }
}

impl Core {
    /// Removes names, listings and groups that nothing can use any more from the index. Entries that were
    /// made since the sweep began stay, because the record of their object may not be in the index yet.
    async fn sweep_entries(self: &Arc<Core>, table: Table, breath: Duration, newer: Newer) {
        let mut from = Vec::new();
        loop {
            let page = self.disk.index().scan(table, &[], &from, PAGE);
            let Some((last, _)) = page.last() else { break };
            from.clone_from(last);
            from.push(0);
            let mut batch = Batch::default();
            for (key, value) in &page {
                if !self.is_usable(table, key, value, newer) {
                    batch.remove(table, key.clone());
                }
            }
            self.disk.index().commit(batch);
            tokio::time::sleep(breath).await;
        }
    }

    fn is_usable(&self, table: Table, key: &[u8], value: &[u8], newer: Newer) -> bool {
        let Some(directory) = directory_of(key) else { return false };
        let record =
            |handle: &Handle| Record::decode(&self.disk.index().get(Table::Objects, handle.as_bytes())?);
        if table == Table::Companions {
            return record(&directory).is_some();
        }
        if table == Table::Listings {
            let Some(id) = listing_id(value) else { return false };
            let listing = record(&directory).and_then(|record| record.listing);
            return newer.has(id) || listing.is_some_and(|kept| kept.id == id);
        }
        let Some(entry) = NameEntry::decode(value) else { return false };
        if newer.has(entry.epoch) || entry.within.is_some_and(|epoch| newer.has(epoch)) {
            return true;
        }
        let is_in = |of: &Handle, epoch: u64| record(of).is_some_and(|record| record.kept.epoch == epoch);
        match entry.leads {
            Leads::To(child) => {
                is_in(&child, entry.epoch) || entry.within.is_some_and(|epoch| is_in(&directory, epoch))
            }
            Leads::Nowhere => is_in(&directory, entry.epoch),
        }
    }
}

/// The epochs and numbers that were given out since a sweep began. Those of other processes are far from
/// them.
#[derive(Clone, Copy)]
struct Newer {
    from: u64,
}

impl Newer {
    /// More are not given out while a sweep runs.
    const COUNT_MAX: u64 = 1 << 32;

    fn has(self, number: u64) -> bool {
        number.wrapping_sub(self.from) < Newer::COUNT_MAX
    }
}

/// Which files of this process are looked at.
#[derive(Clone, Copy)]
struct Ours {
    nonce: u64,
    /// Those with a lower number.
    below: u64,
}

/// Removes files that are not known. Returns the bytes of disk that the others use.
fn sweep_shard(path: &std::path::Path, ours: Ours, known: &HashSet<FileId>) -> u64 {
    let Ok(entries) = std::fs::read_dir(path) else { return 0 };
    let mut used = 0;
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(FileId::parse) else { continue };
        let spared = id.is_of(ours.nonce) && id.number() >= ours.below;
        if spared || known.contains(&id) {
            used += entry.metadata().map_or(0, |metadata| metadata.blocks() * 512);
        } else {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    used
}
