//! `leasehold cache …`, and the options that say what a cache keeps.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::parse_size;
use crate::cachectl::time::Moment;

/// What a cache keeps, for whom, and what it answers when the origin is away.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(next_help_heading = "Cache")]
pub struct Keeping {
    /// Keep at most so much file data: bytes, or with K, M, G, T
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub cache_size: u64,
    /// From so much on, take away what was used longest ago [default: nine tenths of --cache-size]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub cache_soft: Option<u64>,
    /// Keep at most so much of each file system of the origin
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub export_size: Option<u64>,
    /// Leave so much of the disk to others
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    pub min_free: u64,
    /// Do not keep files smaller than this
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub file_min: u64,
    /// Do not keep files larger than this
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub file_max: Option<u64>,
    /// Do not keep files that changed less than so many seconds ago
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub changed_min: u64,
    /// Do not fetch the rest of files of which a part was read, while the link is idle
    #[arg(long)]
    pub no_fill: bool,
    /// Tell the origin of reads that it has not seen: a SETATTR of the access time after a read, at most every 30 s for a
    /// file. It makes every other cache of the file ask anew
    #[arg(long)]
    pub atime: bool,
    /// What to answer while the origin does not: `wait`, or `read`: whole files as they were last known
    #[arg(long, value_enum, default_value_t)]
    pub offline: OfflineAnswer,
    /// How many seconds of silence count as the origin being away
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub offline_after: u64,
}

/// `--offline`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OfflineAnswer {
    /// Wait for the origin, or fail if the mount is soft
    #[default]
    Wait,
    /// Read whole files as they were last known
    Read,
}

impl Default for Keeping {
    /// As on the command line.
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
            atime: false,
            offline: OfflineAnswer::Wait,
            offline_after: 5,
        }
    }
}

impl Keeping {
    /// Badros' half minute.
    const ATIME_AFTER: Duration = Duration::from_secs(30);

    /// Sets what the cache is to keep.
    pub fn apply(&self, options: &mut cache::Options) {
        options.size_max_bytes = self.cache_size;
        options.size_soft_bytes = self.cache_soft;
        options.export_max_bytes = self.export_size;
        options.min_free_bytes = self.min_free;
        options.file_min_bytes = self.file_min;
        options.file_max_bytes = self.file_max.unwrap_or(u64::MAX);
        options.changed_min_age = Duration::from_secs(self.changed_min);
        options.fill = (!self.no_fill).then(cache::Fill::default);
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
    /// What to do.
    #[command(subcommand)]
    pub command: CacheCommand,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
}

/// What is said below `leasehold cache --help`.
pub const CACHE_HELP: &str = "\
CACHE-DIR is the --cache of a proxy, or the `cache=` of a mount or the directory that is mounted on. While that runs, it is asked; otherwise the cache is looked at directly, and what needs the origin (`warm`, `verify --origin`) says so.
PATH leads from the root of the export: /src/main.c. Bytes of names that are no UTF-8 are written \\xHH, and a backslash \\\\; lines of --from are taken as they are.

Examples:
  leasehold cache warm /var/cache/leasehold/filer /src /lib
  find /mnt -name '*.c' -printf '/%P\\n' | leasehold cache warm /var/cache/leasehold/filer --from -
  leasehold cache pin /var/cache/leasehold/filer /toolchain
  leasehold cache verify /var/cache/leasehold/filer

Exit codes: 0 done; 1 something failed, was not known, or was damaged, one line for each; 2 the command line was wrong.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List what is known below a path, and how much of each file is here
    Ls(Ls),
    /// Show all that is known of files: age, validity, completeness, pin, size, last use
    Stat(Paths),
    /// Sum up how much of the disk is used: of all, or below paths
    Du(MaybePaths),
    /// Keep: the cleaner never takes the data of these files, nor of what is or comes below these directories
    Pin(MaybePaths),
    /// Take pins away
    Unpin(Unpin),
    /// Fetch files, and everything below directories; what is whole already is skipped
    Warm(Warm),
    /// Take data off this disk, pinned or not; nothing happens at the origin
    Drop(Dropping),
    /// Check what is on this disk against the checksums of what was stored; drop what is damaged
    Verify(Verify),
}

/// Which cache.
#[derive(Debug, Args)]
pub struct Directory {
    /// The cache directory
    #[arg(value_name = "CACHE-DIR")]
    pub directory: PathBuf,
}

/// `leasehold cache ls`
#[derive(Debug, Args)]
pub struct Ls {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// What to list [default: /]
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
    /// Also what is below directories
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

/// A cache, and paths in it.
#[derive(Debug, Args)]
pub struct Paths {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files and directories
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<std::ffi::OsString>,
}

/// A cache, and perhaps paths in it.
#[derive(Debug, Args)]
pub struct MaybePaths {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files and directories; without any, all (`du`), or the list of pins (`pin`)
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
}

/// `leasehold cache unpin`
#[derive(Debug, Args)]
pub struct Unpin {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files and directories, as `leasehold cache pin CACHE-DIR` lists them
    #[arg(value_name = "PATH", required_unless_present = "all")]
    pub paths: Vec<std::ffi::OsString>,
    /// All pins
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
}

/// `leasehold cache drop`
#[derive(Debug, Args)]
pub struct Dropping {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files, and directories with all that is below them
    #[arg(value_name = "PATH", required_unless_present = "all")]
    pub paths: Vec<std::ffi::OsString>,
    /// All data of this cache
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
}

/// `leasehold cache warm`
#[derive(Debug, Args)]
pub struct Warm {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files, and directories with all that is below them [default: / with --newer]
    #[arg(value_name = "PATH", required_unless_present_any = ["from", "newer"])]
    pub paths: Vec<std::ffi::OsString>,
    /// Read more paths from this file, one a line; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Only files that changed since: `2026-01-31`, `2026-01-31T12:00:00` (UTC), `@SECONDS`, or how long ago: `90m`, `36h`, `7d`
    #[arg(long, value_name = "TIME")]
    pub newer: Option<Moment>,
    /// Pin the paths first, so that they stay
    #[arg(long)]
    pub pin: bool,
    /// Read as this user and group of the origin [default: 0:0, which the origin may squash]
    #[arg(long = "as", value_name = "UID:GID", value_parser = parse_user)]
    pub user: Option<(u32, u32)>,
}

/// `leasehold cache verify`
#[derive(Debug, Args)]
pub struct Verify {
    /// Which cache.
    #[command(flatten)]
    pub cache: Directory,
    /// Which files, and directories with all that is below them [default: all]
    #[arg(value_name = "PATH")]
    pub paths: Vec<std::ffi::OsString>,
    /// Compare with the bytes of the origin, too: reads everything there again
    #[arg(long)]
    pub origin: bool,
    /// Only tell: do not drop what is damaged
    #[arg(long)]
    pub keep: bool,
}

impl CacheCommand {
    /// Which cache it is about.
    pub fn directory(&self) -> &std::path::Path {
        let cache = match self {
            CacheCommand::Ls(ls) => &ls.cache,
            CacheCommand::Stat(paths) => &paths.cache,
            CacheCommand::Du(paths) | CacheCommand::Pin(paths) => &paths.cache,
            CacheCommand::Unpin(unpin) => &unpin.cache,
            CacheCommand::Warm(warm) => &warm.cache,
            CacheCommand::Drop(some) => &some.cache,
            CacheCommand::Verify(verify) => &verify.cache,
        };
        &cache.directory
    }
}

fn parse_user(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.ok_or_else(|| format!("`{text}` is no user and group: write two numbers, such as 1000:1000"))
}
