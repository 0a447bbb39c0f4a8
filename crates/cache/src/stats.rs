//! Counters: answers from the cache, calls to the origin, and stored bytes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Answers from the cache, and answers for which the origin was asked for more than a revalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitsMisses {
    /// From the cache.
    pub hits: u64,
    /// From the origin.
    pub misses: u64,
}

/// Calls sent to the origin, by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// GETATTR.
    pub getattr: u64,
    /// SETATTR.
    pub setattr: u64,
    /// ACCESS.
    pub access: u64,
    /// LOOKUP, with that of `..`.
    pub lookup: u64,
    /// READLINK.
    pub readlink: u64,
    /// READ.
    pub read: u64,
    /// WRITE.
    pub write: u64,
    /// COMMIT.
    pub commit: u64,
    /// CREATE, MKDIR, SYMLINK, MKNOD and LINK.
    pub create: u64,
    /// REMOVE and RMDIR.
    pub remove: u64,
    /// RENAME.
    pub rename: u64,
    /// READDIR and READDIRPLUS.
    pub readdir: u64,
    /// OPEN.
    pub open: u64,
    /// OPEN_DOWNGRADE.
    pub downgrade: u64,
    /// CLOSE.
    pub close: u64,
    /// LOCK, LOCKU and LOCKT.
    pub lock: u64,
    /// DELEGRETURN.
    pub returned: u64,
    /// SEEK, ALLOCATE, DEALLOCATE, COPY, CLONE, access control lists and extended attributes.
    pub extended: u64,
    /// FSSTAT, FSINFO and PATHCONF, and requests for the root.
    pub other: u64,
}

impl Calls {
    /// The sum of all operations.
    pub fn total(&self) -> u64 {
        let changes = self.setattr + self.write + self.commit + self.create + self.remove + self.rename;
        let reads = self.getattr + self.access + self.lookup + self.readlink + self.read + self.readdir;
        let state = self.open + self.downgrade + self.close + self.lock + self.returned;
        changes + reads + state + self.extended + self.other
    }
}

/// The counters at one moment. All but the gauges count from the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// GETATTR.
    pub attributes: HitsMisses,
    /// LOOKUP.
    pub names: HitsMisses,
    /// READ and READLINK.
    pub data: HitsMisses,
    /// ACCESS.
    pub access: HitsMisses,
    /// READDIR.
    pub listings: HitsMisses,
    /// Calls sent to the origin.
    pub upstream: Calls,
    /// Bytes of READs answered from the cache.
    pub read_hit_bytes: u64,
    /// Bytes that the origin's READs brought.
    pub fetched_bytes: u64,
    /// READs of the origin that were piggybacked on an OPEN, and are no calls of their own.
    pub piggybacked_reads: u64,
    /// Calls that were made ahead of readers who go through a tree. They are part of `upstream`.
    pub guesses: u64,
    /// Listings and files that such calls have brought, and that a reader has used.
    pub guesses_used: u64,
    /// Bytes of files that such calls have brought. They are part of `fetched_bytes`.
    pub guessed_bytes: u64,
    /// Bytes stored in the cache.
    pub stored_bytes: u64,
    /// Objects whose data was evicted to free capacity.
    pub evictions: u64,
    /// GETATTRs sent to find out whether something had changed.
    pub revalidations: u64,
    /// Objects whose data or names were dropped because another client changed them, or may have.
    pub distrusted: u64,
    /// Opens answered without an OPEN at the origin.
    pub opens_shared: u64,
    /// Leases that the origin recalled.
    pub recalls: u64,
    /// Leases that the origin revoked.
    pub revoked: u64,
    /// WRITEs of clients whose bytes were merged with others that waited to be sent.
    pub merged_writes: u64,
    /// Fsyncs that the journal answered.
    pub local_fsyncs: u64,
    /// Bytes of delayed writes that the origin has taken.
    pub flushed_bytes: u64,
    /// WRITEs of clients that had to wait because too much was delayed.
    pub writers_held: u64,
    /// Gauge: the cleaner is running.
    pub cleaning: bool,
    /// Gauge: the hard limit has been reached, and nothing is stored until the cleaner has freed capacity.
    pub paused: bool,
    /// Gauge: bytes of delayed writes that are not durable at the origin.
    pub dirty_bytes: u64,
    /// Gauge: files with delayed bytes or attributes that are not durable at the origin.
    pub dirty_files: u64,
    /// Gauge: how long the oldest of them has been waiting, approximately.
    pub dirty_age: Option<std::time::Duration>,
    /// Gauge: size of the journal of delayed writes, in bytes.
    pub journal_bytes: u64,
    /// Gauge: files with delayed writes of an earlier process that could not be sent, and are kept.
    pub conflicts: u64,
    /// Bytes fetched to complete files in the background.
    pub filled_bytes: u64,
    /// Files whose data was found damaged, and dropped.
    pub damaged: u64,
    /// Answers from the last known state, during an outage.
    pub offline: u64,
    /// Access times that the origin was told of.
    pub atimes: u64,
    /// Gauge: there is an outage, and answers come from the cache.
    pub is_away: bool,
    /// Gauge: the index on disk has failed, as on a full disk; nothing is cached there until it works again.
    pub index_broken: bool,
    /// Gauge: leases held for reading.
    pub leases_read: u64,
    /// Gauge: leases held for reading and writing.
    pub leases_write: u64,
    /// Gauge: bytes of disk in use by data.
    pub used_bytes: u64,
    /// The hard limit of these bytes.
    pub used_max_bytes: u64,
    /// Gauge: objects whose state is in memory.
    pub objects_in_memory: u64,
    /// Objects whose known state is at rest in memory.
    pub objects_at_rest: u64,
    /// Gauge: bytes of memory that these take, with their share of the tables.
    pub at_rest_bytes: u64,
    /// Gauge: bytes of memory that complete listings take.
    pub listings_bytes: u64,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn bump(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A pair of counters.
#[derive(Debug, Default)]
pub struct HitCounter {
    hits: Counter,
    misses: Counter,
}

impl HitCounter {
    /// Counts an answer from the cache.
    pub fn hit(&self) {
        self.hits.bump();
    }

    /// Counts an answer from the origin.
    pub fn miss(&self) {
        self.misses.bump();
    }

    /// Both.
    pub fn get(&self) -> HitsMisses {
        HitsMisses { hits: self.hits.get(), misses: self.misses.get() }
    }
}

/// The running counters.
#[derive(Debug, Default)]
pub struct Counters {
    pub attributes: HitCounter,
    pub names: HitCounter,
    pub data: HitCounter,
    pub access: HitCounter,
    pub listings: HitCounter,
    pub getattr: Counter,
    pub setattr: Counter,
    pub access_calls: Counter,
    pub lookup: Counter,
    pub readlink: Counter,
    pub read: Counter,
    pub write: Counter,
    pub commit: Counter,
    pub create: Counter,
    pub remove: Counter,
    pub rename: Counter,
    pub readdir: Counter,
    pub open: Counter,
    pub downgrade: Counter,
    pub close: Counter,
    pub lock: Counter,
    pub returned: Counter,
    pub extended: Counter,
    pub other: Counter,
    pub opens_shared: Counter,
    pub recalls: Counter,
    pub revoked: Counter,
    pub read_hit_bytes: Counter,
    pub fetched_bytes: Counter,
    pub piggybacked_reads: Counter,
    pub guesses: Counter,
    pub guesses_used: Counter,
    pub guessed_bytes: Counter,
    pub stored_bytes: Counter,
    pub evictions: Counter,
    pub revalidations: Counter,
    pub distrusted: Counter,
    pub merged_writes: Counter,
    pub local_fsyncs: Counter,
    pub flushed_bytes: Counter,
    pub writers_held: Counter,
    pub filled_bytes: Counter,
    pub filled_calls: Counter,
    pub damaged: Counter,
    pub offline: Counter,
    pub atimes: Counter,
}

impl Counters {
    /// All counters at this moment, without the gauges.
    pub fn snapshot(&self) -> Stats {
        let upstream = Calls {
            getattr: self.getattr.get(),
            setattr: self.setattr.get(),
            access: self.access_calls.get(),
            lookup: self.lookup.get(),
            readlink: self.readlink.get(),
            read: self.read.get(),
            write: self.write.get(),
            commit: self.commit.get(),
            create: self.create.get(),
            remove: self.remove.get(),
            rename: self.rename.get(),
            readdir: self.readdir.get(),
            open: self.open.get(),
            downgrade: self.downgrade.get(),
            close: self.close.get(),
            lock: self.lock.get(),
            returned: self.returned.get(),
            extended: self.extended.get(),
            other: self.other.get(),
        };
        Stats {
            attributes: self.attributes.get(),
            names: self.names.get(),
            data: self.data.get(),
            access: self.access.get(),
            listings: self.listings.get(),
            upstream,
            read_hit_bytes: self.read_hit_bytes.get(),
            fetched_bytes: self.fetched_bytes.get(),
            piggybacked_reads: self.piggybacked_reads.get(),
            guesses: self.guesses.get(),
            guesses_used: self.guesses_used.get(),
            guessed_bytes: self.guessed_bytes.get(),
            stored_bytes: self.stored_bytes.get(),
            evictions: self.evictions.get(),
            revalidations: self.revalidations.get(),
            distrusted: self.distrusted.get(),
            opens_shared: self.opens_shared.get(),
            recalls: self.recalls.get(),
            revoked: self.revoked.get(),
            merged_writes: self.merged_writes.get(),
            local_fsyncs: self.local_fsyncs.get(),
            flushed_bytes: self.flushed_bytes.get(),
            writers_held: self.writers_held.get(),
            dirty_bytes: 0,
            dirty_files: 0,
            dirty_age: None,
            journal_bytes: 0,
            conflicts: 0,
            cleaning: false,
            paused: false,
            filled_bytes: self.filled_bytes.get(),
            damaged: self.damaged.get(),
            offline: self.offline.get(),
            atimes: self.atimes.get(),
            is_away: false,
            index_broken: false,
            leases_read: 0,
            leases_write: 0,
            used_bytes: 0,
            used_max_bytes: 0,
            objects_in_memory: 0,
            objects_at_rest: 0,
            at_rest_bytes: 0,
            listings_bytes: 0,
        }
    }
}
