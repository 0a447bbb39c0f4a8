//! How a cache is set up. The names are those of nfs(5) where it has one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Clock, SystemClock};

/// What the cache promises its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Whatever a client opens is asked of the origin first (Lever's close-to-open): a read returns what was there at
    /// the open or later.
    #[default]
    CloseToOpen,
    /// Attribute timeouts alone decide, as with the mount option `nocto`: for files that nobody else writes.
    NoCto,
}

/// The mount option `lookupcache`: which remembered names are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupCache {
    /// Names that lead somewhere, and names known not to.
    #[default]
    All,
    /// Only names that lead somewhere.
    Positive,
    /// None: every LOOKUP goes to the origin.
    None,
}

/// How long attributes are believed without asking: the mount options `acregmin` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Of anything but a directory, at least.
    pub acregmin: Duration,
    /// Of anything but a directory, at most.
    pub acregmax: Duration,
    /// Of a directory, at least.
    pub acdirmin: Duration,
    /// Of a directory, at most.
    pub acdirmax: Duration,
}

impl Default for Timeouts {
    /// 3, 60, 30 and 60 seconds, as nfs(5) has them.
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts { acregmin: seconds(3), acregmax: seconds(60), acdirmin: seconds(30), acdirmax: seconds(60) }
    }
}

impl Timeouts {
    /// The mount option `actimeo`: all four alike.
    pub fn actimeo(timeout: Duration) -> Timeouts {
        Timeouts { acregmin: timeout, acregmax: timeout, acdirmin: timeout, acdirmax: timeout }
    }

    /// The mount option `noac`: attributes are never believed without asking.
    pub fn noac() -> Timeouts {
        Timeouts::actimeo(Duration::ZERO)
    }

    /// The bounds for a directory or for anything else.
    pub(crate) fn bounds(&self, is_dir: bool) -> (Duration, Duration) {
        if is_dir {
            (self.acdirmin, self.acdirmax.max(self.acdirmin))
        } else {
            (self.acregmin, self.acregmax.max(self.acregmin))
        }
    }
}

/// Delayed writes: how much, how long, and how they are sent. Off where clients delay their writes themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBehind {
    /// How long bytes may wait before they are sent unasked.
    pub age: Duration,
    /// Bytes of one file that are not durable at the origin. A writer waits beyond it; from half of it on, they are
    /// sent.
    pub file_max_bytes: u64,
    /// The same, of all files together.
    pub dirty_max_bytes: u64,
    /// The mount option `wsize`: most bytes in a WRITE, if the origin takes as many.
    pub wsize: u32,
    /// WRITEs that are under way at a time, over all files; those of one file are three quarters of them at most.
    pub in_flight_max: usize,
    /// How long the end of the process waits for an origin that takes nothing of what has not been sent.
    pub unmount_max: Duration,
}

impl Default for WriteBehind {
    /// 30 s (nfs(5)'s kernel and Badros' threshold alike), 128 MiB a file, 256 MiB in all, WRITEs of 1 MiB, 16 of them
    /// at a time, and 60 s at the end in which nothing is taken.
    fn default() -> WriteBehind {
        WriteBehind {
            age: Duration::from_secs(30),
            file_max_bytes: 128 << 20,
            dirty_max_bytes: 256 << 20,
            wsize: 1 << 20,
            in_flight_max: 16,
            unmount_max: Duration::from_secs(60),
        }
    }
}

/// How files are completed of which a part has been read (Badros' nfsfillind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// How long nothing else must have been asked of the origin.
    pub idle: Duration,
    /// Of how many per cent of a file something must have been read for the rest to be worth fetching.
    pub percent_min: u8,
}

impl Default for Fill {
    /// A second of silence; a tenth of the file, as in section 4 of his paper.
    fn default() -> Fill {
        Fill { idle: Duration::from_secs(1), percent_min: 10 }
    }
}

/// What is answered while the origin does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offline {
    /// What needs no question to the origin; the rest waits, or fails if the mount is soft.
    #[default]
    Wait,
    /// Reads of whole files, and what is known of names and attributes, from what was last known.
    Read,
}

/// How a cache is set up.
#[derive(Clone)]
pub struct Options {
    /// Where it keeps its files. Made if it is not there; refused if it holds something else.
    pub directory: PathBuf,
    /// Whose files they are, such as `nfs://host/export`: a directory belongs to one origin for ever.
    pub origin: String,
    /// What it promises.
    pub consistency: Consistency,
    /// Attribute timeouts.
    pub timeouts: Timeouts,
    /// Which remembered names are used.
    pub lookup_cache: LookupCache,
    /// Most bytes of file data on disk: at so many caching pauses (the hard limit).
    pub size_max_bytes: u64,
    /// From so many on the cleaner runs (the soft limit); nine tenths of the hard one, if not given.
    pub size_soft_bytes: Option<u64>,
    /// Most bytes of data of each file system of the origin; its soft limit is in the same proportion.
    pub export_max_bytes: Option<u64>,
    /// Smaller files are not cached.
    pub file_min_bytes: u64,
    /// Larger files are not cached.
    pub file_max_bytes: u64,
    /// Files that changed more recently are not cached. The granule rule keeps what is cached of them right; this keeps
    /// the disk from being filled with what will be gone in a moment.
    pub changed_min_age: Duration,
    /// Files of which a part has been read are completed while nothing else is asked of the origin. `None`: they are not.
    pub fill: Option<Fill>,
    /// The origin is told of reads that it has not seen (SETATTR of the access time) if the last time that it knows of is
    /// older than this. `None`, as with `noatime`: it is told of none.
    pub atime_after: Option<Duration>,
    /// What is answered while the origin does not answer.
    pub offline: Offline,
    /// How long the origin must have been silent, with calls waiting, for that.
    pub offline_after: Duration,
    /// Bytes of the disk that are left to others: below it caching pauses, and the cleaner runs a tenth before.
    pub min_free_bytes: u64,
    /// Most bytes that are read ahead of one sequential reader.
    pub readahead_max_bytes: u64,
    /// The least granule of time stamps that is assumed of the origin, whatever it says: kernels stamp files with a
    /// clock that moves with the timer tick, up to ten milliseconds.
    pub granularity_min: Duration,
    /// How far the origin's clock may be from ours, until we learn how far it is.
    pub clock_skew: Duration,
    /// Files whose state is kept in memory; that of others is read from the index when it is needed.
    pub objects_in_memory_max: usize,
    /// Files that the index knows. Beyond it the least recently used are forgotten.
    pub objects_max: u64,
    /// Leases that are held of the origin. Beyond it the least recently used are returned.
    pub leases_max: usize,
    /// How long an open at the origin outlives the last local one, or the last READ that it was made for.
    pub close_delay: Duration,
    /// How long new knowledge may wait before it goes to the index: what a killed process loses.
    pub flush_interval: Duration,
    /// Whether and how writes are delayed.
    pub write_behind: Option<WriteBehind>,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// The defaults, for a directory and an origin.
    pub fn new(directory: impl Into<PathBuf>, origin: impl Into<String>) -> Options {
        Options {
            directory: directory.into(),
            origin: origin.into(),
            consistency: Consistency::default(),
            timeouts: Timeouts::default(),
            lookup_cache: LookupCache::default(),
            size_max_bytes: 10 << 30,
            size_soft_bytes: None,
            export_max_bytes: None,
            file_min_bytes: 0,
            file_max_bytes: u64::MAX,
            changed_min_age: Duration::ZERO,
            fill: None,
            atime_after: None,
            offline: Offline::default(),
            offline_after: Duration::from_secs(5),
            min_free_bytes: 1 << 30,
            readahead_max_bytes: 16 << 20,
            granularity_min: Duration::from_millis(10),
            clock_skew: Duration::from_secs(3),
            objects_in_memory_max: 1 << 16,
            objects_max: 4_000_000,
            leases_max: 50_000,
            close_delay: Duration::from_secs(1),
            flush_interval: Duration::from_millis(150),
            write_behind: None,
            clock: Arc::new(SystemClock),
        }
    }
}
