//! `leasehold cache …`, and the cache options of `proxy` and `mount`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::parse_size;
use crate::cachectl::time::Moment;
use crate::cachectl::{GROUPS_MAX, User};

/// What a cache keeps, and what it answers while the origin is away.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(next_help_heading = "Cache")]
pub struct Keeping {
    /// Keep at most this much file data: bytes, or a number with K, M, G or T
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub cache_size: u64,
    /// Evict the least recently used data above this size [default: nine tenths of --cache-size]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_soft: Option<u64>,
    /// Keep at most this much data of each file system of the origin
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub export_size: Option<u64>,
    /// Leave this much space free on the disk
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub min_free: u64,
    /// Do not keep files smaller than this
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub file_min: u64,
    /// Do not keep files larger than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_max: Option<u64>,
    /// Do not keep files that changed less than this many seconds ago
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub changed_min: u64,
    /// Do not fetch the rest of partly read files while the link is idle
    #[arg(long)]
    pub no_fill: bool,
    /// Fetch at most this much ahead of readers who go through a tree, as `find`, `grep -r` and `git status`
    /// do: listings, leases and small files. 0: nothing
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub prefetch: u64,
    /// Keep the known attributes of unused files in this much memory, 4,096 files in each MiB; a sixteenth
    /// of the memory, up to 512M
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Send access times of cached reads to the origin: a SETATTR after a read, at most every 30 s for each
    /// file. Then every other cache of the file must revalidate it
    #[arg(long)]
    pub atime: bool,
    /// What to do while the origin is away: `wait`, or `read` complete files as last known
    #[arg(long, value_enum, default_value_t)]
    pub offline: OfflineAnswer,
    /// Seconds without an answer after which the origin counts as away
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub offline_after: u64,
}

/// `--offline`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OfflineAnswer {
    /// Wait for the origin, or fail if the mount is soft
    #[default]
    Wait,
    /// Read complete files as last known
    Read,
}

impl Default for Keeping {
    /// The defaults of the command line.
    fn default() -> Keeping {
        Keeping {
            cache_size: 10 << 30,
            cache_soft: None,
            export_size: None,
            min_free: 1 << 30,
            file_min: 0,
            file_max: None,
            changed_min: 0,
            no_fill: false,
            prefetch: 64 << 20,
            memory: None,
            atime: false,
            offline: OfflineAnswer::Wait,
            offline_after: 5,
        }
    }
}

impl Keeping {
    /// Badros' interval of half a minute.
    const ATIME_AFTER: Duration = Duration::from_secs(30);
    /// The most that is read ahead: a link of 600 MB/s over 400 ms holds it twice.
    const READAHEAD_MAX_BYTES: usize = 512 << 20;
    /// The default of `--memory` is never larger: 2,097,152 files.
    const MEMORY_MAX_BYTES: usize = 512 << 20;

    /// One lease of the origin is held for so much of `--memory`, within the limits below.
    const LEASE_SHARE_BYTES: usize = 512;
    /// As many leases are held at least.
    const LEASES_MIN: usize = 10_000;
    /// As many leases are held at most.
    const LEASES_MAX: usize = 1_000_000;

    /// The limits and thresholds.
    pub fn limits(&self) -> cache::Limits {
        cache::Limits {
            size_max_bytes: self.cache_size,
            size_soft_bytes: self.cache_soft,
            export_max_bytes: self.export_size,
            min_free_bytes: self.min_free,
            file_min_bytes: self.file_min,
            file_max_bytes: self.file_max.unwrap_or(u64::MAX),
            changed_min_age: Duration::from_secs(self.changed_min),
        }
    }

    /// The options of one origin among so many of a proxy, which share the memory. The size stays that of
    /// all.
    pub fn of_one_among(&self, origins: usize, offline: Option<OfflineAnswer>) -> Keeping {
        let memory = self
            .memory
            .unwrap_or_else(|| rpc::memory::default_in_flight().min(Keeping::MEMORY_MAX_BYTES) as u64);
        Keeping {
            memory: Some(memory / origins.max(1) as u64),
            offline: offline.unwrap_or(self.offline),
            ..self.clone()
        }
    }

    /// Sets these options of a cache.
    pub fn apply(&self, options: &mut cache::Options) {
        options.limits = self.limits();
        options.fill = (!self.no_fill).then(cache::Fill::default);
        options.prefetch_max_bytes = self.prefetch;
        options.resting_max_bytes = match self.memory {
            Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            None => rpc::memory::default_in_flight().min(Keeping::MEMORY_MAX_BYTES),
        };
        options.leases_max = (options.resting_max_bytes / Keeping::LEASE_SHARE_BYTES)
            .clamp(Keeping::LEASES_MIN, Keeping::LEASES_MAX);
        options.readahead_max_bytes =
            rpc::memory::default_in_flight().min(Keeping::READAHEAD_MAX_BYTES) as u64;
        options.atime_after = self.atime.then_some(Keeping::ATIME_AFTER);
        options.offline = match self.offline {
            OfflineAnswer::Wait => cache::Offline::Wait,
            OfflineAnswer::Read => cache::Offline::Read,
        };
        options.offline_after = Duration::from_secs(self.offline_after);
    }
}

/// `leasehold cache`
#[derive(Debug, Args)]
pub struct CacheArguments {
    /// The command.
    #[command(subcommand)]
    pub command: CacheCommand,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
}

/// The text below `leasehold cache --help`.
pub const CACHE_HELP: &str = "\
CACHE-DIR is the --cache of a proxy, the `cache=` of a mount, or a mount point. If a proxy or mount runs on it, the command asks that process; otherwise it reads the cache itself. `warm`, `record` and `verify --origin` fail unless a proxy or mount runs.
PATH starts at the root of the export: /src/main.c. Bytes that are not UTF-8 are written \\xHH, and a backslash \\\\. Lines of --from are taken as they are.

Examples:
  leasehold cache warm /var/cache/leasehold/filer /src /lib
  find /mnt -name '*.c' -printf '/%P\\n' | leasehold cache warm /var/cache/leasehold/filer --from -
  leasehold cache record /mnt -o build.profile -- make -C /mnt/src
  leasehold cache warm /mnt --profile build.profile
  leasehold cache pin /var/cache/leasehold/filer /toolchain
  leasehold cache verify /var/cache/leasehold/filer

Exit codes: 0 success; 1 something failed, was not known or was damaged, with one line for each; 2 wrong command line. `record` ends with the exit code of its command.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List known names, and how much of each file is cached
    Ls(Ls),
    /// Show everything known about files: age, validity, completeness, pin, size, last use
    Stat(Paths),
    /// Show disk usage, in total or below paths
    Du(MaybePaths),
    /// Pin files and directories: the cleaner never evicts their data, nor that of new files below them
    Pin(MaybePaths),
    /// Remove pins
    Unpin(Unpin),
    /// Fetch files, and everything below directories; complete files are skipped
    Warm(Warm),
    /// Run a command, and record what it uses of the tree: `warm --profile` brings that before the next run
    #[command(after_help = RECORD_HELP)]
    Record(Record),
    /// Drop data from this disk, pinned or not; the origin does not change
    Drop(Dropping),
    /// Compare the data on this disk with its checksums, and drop what is damaged
    Verify(Verify),
}

/// A cache.
#[derive(Debug, Args)]
pub struct Directory {
    /// The cache directory, or a mount point
    #[arg(value_name = "CACHE-DIR")]
    pub directory: PathBuf,
}

/// `leasehold cache ls`
#[derive(Debug, Args)]
pub struct Ls {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// The paths to list [default: /]
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
    /// Descend into directories
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// A cache and paths in it.
#[derive(Debug, Args)]
pub struct Paths {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<std::ffi::OsString>,
}

/// A cache, and optional paths in it.
#[derive(Debug, Args)]
pub struct MaybePaths {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files and directories; without any, the whole cache (`du`) or the list of pins (`pin`)
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
}

/// `leasehold cache unpin`
#[derive(Debug, Args)]
pub struct Unpin {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files and directories, as `leasehold cache pin CACHE-DIR` lists them
    #[arg(value_name = "PATH", required_unless_present = "all")]
    pub paths: Vec<std::ffi::OsString>,
    /// Remove all pins
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
}

/// `leasehold cache drop`
#[derive(Debug, Args)]
pub struct Dropping {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files, and directories with everything below them
    #[arg(value_name = "PATH", required_unless_present = "all")]
    pub paths: Vec<std::ffi::OsString>,
    /// Drop all data of this cache
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
}

/// `leasehold cache warm`
#[derive(Debug, Args)]
pub struct Warm {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files, and directories with everything below them [default: / with --newer]
    #[arg(value_name = "PATH", required_unless_present_any = ["from", "newer", "profile"])]
    pub paths: Vec<std::ffi::OsString>,
    /// Bring what this profile names, in its order: listings and leases, and the bytes that were read. Paths
    /// that are gone, and files that the user may not read, are counted
    #[arg(long, value_name = "FILE", conflicts_with_all = ["paths", "from", "newer", "pin"])]
    pub profile: Option<PathBuf>,
    /// Read more paths from this file, one per line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Only files that changed since: `2026-01-31`, `2026-01-31T12:00:00` (UTC), `@SECONDS`, or an age:
    /// `90m`, `36h`, `7d`
    #[arg(long, value_name = "TIME")]
    pub newer: Option<Moment>,
    /// Pin the paths first, so that the cleaner keeps them
    #[arg(long)]
    pub pin: bool,
    /// Read as this user of the origin, with these groups [default: 0:0, which the origin may squash; with
    /// --profile the user of this command]
    #[arg(long = "as", value_name = "UID:GID[,GID…]", value_parser = parse_user)]
    pub user: Option<User>,
}

/// The text below `leasehold cache record --help`.
const RECORD_HELP: &str = "\
A profile is text: one line for each file and directory that was used, with the parts of files that were read. It may be edited and joined with others, and used with any cache of the same tree.
The uses of all clients and programs in that time are recorded. A mount makes the kernel drop what it has first, so that the kernel asks for everything once more. The kernel of a client of a proxy goes on answering by itself: mount it anew before you record. A file that the kernel reads from the cache by itself counts as read completely.

Examples:
  leasehold cache record /mnt -o build.profile -- make -C /mnt/src
  leasehold cache warm /mnt --profile build.profile";

/// `leasehold cache record`
#[derive(Debug, Args)]
pub struct Record {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Write the profile to this file
    #[arg(short, long, value_name = "FILE", default_value = "leasehold.profile")]
    pub output: PathBuf,
    /// The command, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<std::ffi::OsString>,
}

/// `leasehold cache verify`
#[derive(Debug, Args)]
pub struct Verify {
    /// The cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Files, and directories with everything below them [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
    /// Compare with the origin's bytes, too: this reads every file there again
    #[arg(long)]
    pub origin: bool,
    /// Report what is damaged, but do not drop it
    #[arg(long)]
    pub keep: bool,
}

impl CacheCommand {
    /// The cache directory of the command.
    pub fn directory(&self) -> &std::path::Path {
        let cache = match self {
            CacheCommand::Ls(ls) => &ls.cache,
            CacheCommand::Stat(paths) => &paths.cache,
            CacheCommand::Du(paths) | CacheCommand::Pin(paths) => &paths.cache,
            CacheCommand::Unpin(unpin) => &unpin.cache,
            CacheCommand::Warm(warm) => &warm.cache,
            CacheCommand::Record(record) => &record.cache,
            CacheCommand::Drop(some) => &some.cache,
            CacheCommand::Verify(verify) => &verify.cache,
        };
        &cache.directory
    }
}

fn parse_user(text: &str) -> Result<User, String> {
    let ids = || {
        let (uid, groups) = text.split_once(':')?;
        let mut groups = groups.split(',').map(str::parse);
        let (uid, gid) = (uid.parse().ok()?, groups.next()?.ok()?);
        Some(User { uid, gid, groups: groups.collect::<Result<_, _>>().ok()? })
    };
    ids().filter(|user| user.groups.len() <= GROUPS_MAX).ok_or_else(|| {
        format!("`{text}` is not a user and group: write numbers, such as 1000:1000 or 1000:1000,27,100")
    })
}
