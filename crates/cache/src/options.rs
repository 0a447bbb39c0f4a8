//! The options of a cache. They have the names of nfs(5), if it has one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Clock, SystemClock};

use crate::limits::Limits;

/// The promise of the cache to its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// At an open, the cache first asks the origin (Lever's close-to-open). A read returns the contents at
    /// the open or later.
    #[default]
    CloseToOpen,
    /// Attribute timeouts alone decide, as with the mount option `nocto`: for files that no other client
    /// writes.
    NoCto,
}

/// The mount option `lookupcache`: which remembered names are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookupCache {
    /// Positive and negative entries.
    #[default]
    All,
    /// Positive entries only.
    Positive,
    /// None: every LOOKUP goes to the origin.
    None,
}

/// How long attributes are believed without a call: the mount options `acregmin` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Minimum for anything but a directory.
    pub acregmin: Duration,
    /// Maximum for anything but a directory.
    pub acregmax: Duration,
    /// Minimum for a directory.
    pub acdirmin: Duration,
    /// Maximum for a directory.
    pub acdirmax: Duration,
}

impl Default for Timeouts {
    /// 3, 60, 30 and 60 seconds, as in nfs(5).
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

    /// The mount option `noac`: attributes are never believed without a call.
    pub fn noac() -> Timeouts {
        Timeouts::actimeo(Duration::ZERO)
    }

    /// The minimum and the maximum, for a directory or for anything else.
    pub(crate) fn bounds(&self, is_dir: bool) -> (Duration, Duration) {
        if is_dir {
            (self.acdirmin, self.acdirmax.max(self.acdirmin))
        } else {
            (self.acregmin, self.acregmax.max(self.acregmin))
        }
    }
}

/// Delayed writes: how much, how long, and how they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBehind {
    /// How long bytes may wait before the cache sends them on its own.
    pub age: Duration,
    /// The largest number of bytes of one file that are not durable at the origin. From half of it on, the
    /// cache sends them. Beyond it, a writer waits.
    pub file_max_bytes: u64,
    /// The same, for all files together.
    pub dirty_max_bytes: u64,
    /// The mount option `wsize`: the largest number of bytes in a WRITE, if the origin takes as many.
    pub wsize: u32,
    /// WRITEs in flight at a time, over all files. Those of one file are at most three quarters of them. At
    /// first it is 16 or less. It grows to this bound if the bandwidth and the delay of the link need that.
    pub in_flight_max: usize,
    /// How long the end of the process waits for an origin that takes none of the unsent bytes.
    pub unmount_max: Duration,
    /// Whether bytes that are delayed under a write lease are entered in a journal on the local disk. The
    /// next process then sends them.
    pub journal: bool,
    /// What answers an fsync, if the journal is on.
    pub fsync: Fsync,
    /// Several clients read and write here. They tell states of a file apart by its change attribute, and
    /// keep unstable bytes until a COMMIT returns the verifier of the WRITE.
    pub shared: bool,
}

/// Where bytes must be before an fsync is answered. An fsync of a file without a write lease always goes to
/// the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fsync {
    /// On stable storage at the origin.
    #[default]
    Origin,
    /// In the journal, on the local disk: they survive a restart of this machine, and are lost with its disk.
    Journal,
}

impl Default for WriteBehind {
    /// 30 s (as the kernel according to nfs(5), and as Badros' threshold), 128 MiB a file, and 256 MiB in
    /// all. WRITEs of 1 MiB, up to 512 of them at a time. At the end, 60 s in which nothing is taken.
    fn default() -> WriteBehind {
        WriteBehind {
            age: Duration::from_secs(30),
            file_max_bytes: 128 << 20,
            dirty_max_bytes: 256 << 20,
            wsize: 1 << 20,
            in_flight_max: 512,
            unmount_max: Duration::from_secs(60),
            journal: true,
            fsync: Fsync::default(),
            shared: false,
        }
    }
}

/// How files of which a part has been read are completed (Badros' nfsfillind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// For how long no other call to the origin must have been made.
    pub idle: Duration,
    /// The percentage of a file that must have been read for the rest to be worth fetching.
    pub percent_min: u8,
}

impl Default for Fill {
    /// One idle second, and a tenth of the file as in section 4 of Badros' paper.
    fn default() -> Fill {
        Fill { idle: Duration::from_secs(1), percent_min: 10 }
    }
}

/// The answers that are given while the origin does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offline {
    /// Only answers that need no call to the origin. Other operations wait, or fail if the mount is soft.
    #[default]
    Wait,
    /// Also reads of complete files, and answers about known names and attributes, from the last known state.
    Read,
}

/// The options of a cache.
#[derive(Clone)]
pub struct Options {
    /// The cache directory. Created if it does not exist, refused if it holds other files.
    pub directory: PathBuf,
    /// The origin, such as `nfs://host/export`. A cache directory belongs to one origin for ever.
    pub origin: String,
    /// The promise to the clients.
    pub consistency: Consistency,
    /// Attribute timeouts.
    pub timeouts: Timeouts,
    /// Which remembered names are used.
    pub lookup_cache: LookupCache,
    /// How much is cached, and which files.
    pub limits: Limits,
    /// Complete files of which a part has been read, while nothing else is asked of the origin. `None`: do
    /// not.
    pub fill: Option<Fill>,
    /// Tell the origin of reads that it has not seen (SETATTR of the access time), if its own access time is
    /// older than this. `None`, as with `noatime`: tell it of none.
    pub atime_after: Option<Duration>,
    /// The answers that are given while the origin does not answer.
    pub offline: Offline,
    /// How long calls to the origin must have gone unanswered before `offline` takes effect.
    pub offline_after: Duration,
    /// The largest number of bytes that are read ahead at a time, of one sequential reader and of all.
    pub readahead_max_bytes: u64,
    /// The largest number of bytes that are fetched ahead of readers who go through a tree, and that nobody
    /// has used yet. Zero: fetch nothing ahead of them.
    pub prefetch_max_bytes: u64,
    /// The smallest timestamp granularity that is assumed of the origin, whatever it reports. Kernels stamp
    /// files with a clock that moves with the timer tick, which takes up to ten milliseconds.
    pub granularity_min: Duration,
    /// How far the origin's clock may be from ours, until the cache has learnt how far it is.
    pub clock_skew: Duration,
    /// Objects whose state is kept in memory. The state of others is read from the index on demand.
    pub objects_in_memory_max: usize,
    /// Memory for the known states of further objects, in bytes. They are believed without a call for as long
    /// as those in memory.
    pub resting_max_bytes: usize,
    /// Objects in the index. Beyond it, the least recently used are forgotten.
    pub objects_max: u64,
    /// Leases that are held from the origin. Beyond it, the least recently used are returned.
    pub leases_max: usize,
    /// Opens at the origin that are kept for a lease alone. Beyond it, the least recently used are closed,
    /// and the leases stay. It should be less than a server gives one client (`serve`: 131,072).
    pub kept_opens_max: usize,
    /// How long an open at the origin outlives the last local open, or the last READ that it was made for.
    pub close_delay: Duration,
    /// How long new knowledge may wait before it is written to the index. A killed process loses it.
    pub flush_interval: Duration,
    /// While the origin is away, a request that needs it gets `Delay` and does not wait. For a server whose
    /// clients have other work. A change that was sent before is waited for: its outcome is not known.
    pub puts_off: bool,
    /// The layer above has clients who do not hear a recall any more when this process ends. Leases that they
    /// hold are left to the next process, to which they come back.
    pub leaves_given: bool,
    /// Another machine has used what is held at the origin since this index was written. So a lease that is
    /// taken over vouches for nothing in it.
    pub taken_over: bool,
    /// Whether and how writes are delayed.
    pub write_behind: Option<WriteBehind>,
    /// The clock for the time of day.
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
            limits: Limits::default(),
            fill: None,
            atime_after: None,
            offline: Offline::default(),
            offline_after: Duration::from_secs(5),
            readahead_max_bytes: 128 << 20,
            prefetch_max_bytes: 0,
            granularity_min: Duration::from_millis(10),
            clock_skew: Duration::from_secs(3),
            objects_in_memory_max: 1 << 15,
            resting_max_bytes: 256 << 20,
            objects_max: 16_000_000,
            leases_max: 50_000,
            kept_opens_max: 16_384,
            close_delay: Duration::from_secs(1),
            flush_interval: Duration::from_millis(150),
            puts_off: false,
            leaves_given: false,
            taken_over: false,
            write_behind: None,
            clock: Arc::new(SystemClock),
        }
    }
}
