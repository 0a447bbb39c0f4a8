//! `leasehold writeback`: the delayed writes of a mount.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The text below `leasehold writeback --help`.
pub(super) const WRITEBACK_HELP: &str = "\
DIR is the mount point or the cache directory. If a mount runs on it, the command asks that process. Otherwise it reads what a killed mount has left in its journal. Only `discard` changes the journal.
A kept conflict is a file in `conflicts` of the cache directory: delayed writes of a killed mount that could not be sent, because another client had changed the file, or the server refused them.

Examples:
  leasehold writeback ls /mnt
  leasehold writeback push --wait --timeout 60 /mnt
  leasehold writeback export /var/cache/leasehold/filer /root/rescued
  leasehold writeback discard /mnt --conflicts --yes

Exit codes: 0 success; 1 failure, or writes are left at the end of --timeout; 2 wrong command line.";

const EXPORT_HELP: &str = "\
Of each file there is NAME.leasehold-delayed-DATE with what was written, at its place, and holes elsewhere. NAME.leasehold-delayed-DATE.ranges lists the path, the time of the oldest write, the size of a truncation that was on its way, times and rights that were to be set, and offset and length of each range in bytes.
To apply a copy by hand: truncate the file to that size, if there is one, then copy each range:
  dd bs=1M iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc if=COPY of=FILE skip=OFFSET seek=OFFSET count=LENGTH
The journal stays. The next mount, or proxy with --async, still sends what it can; to prevent that, use `discard`.";

const DISCARD_HELP: &str = "\
This deletes data that may be nowhere else. Without --yes the command says what it would delete, and fails.
Of a mount that runs, only kept conflicts can be discarded.

Examples:
  leasehold writeback discard /mnt a.txt.leasehold-conflict-20261127T030000Z --yes
  leasehold writeback discard /var/cache/leasehold/filer /docs/a.txt --yes";

/// `leasehold writeback`
#[derive(Debug, Args)]
pub struct WritebackArguments {
    /// The command.
    #[command(subcommand)]
    pub command: WritebackCommand,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum WritebackCommand {
    /// List files with delayed writes, and kept conflicts
    Ls(Of),
    /// Begin to send what is delayed, and return at once
    Push(Push),
    /// Wait until nothing is delayed. Writes are sent when their time comes, or at once with `push`
    Wait(Wait),
    /// Copy what a killed mount has left, and kept conflicts, into a directory
    #[command(after_help = EXPORT_HELP)]
    Export(Export),
    /// Delete kept conflicts, or what a killed mount has left
    #[command(after_help = DISCARD_HELP)]
    Discard(Discard),
}

/// A mount.
#[derive(Debug, Args)]
pub struct Of {
    /// The mount point, or the cache directory
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// `leasehold writeback push`
#[derive(Debug, Args)]
pub struct Push {
    /// The mount.
    #[command(flatten)]
    pub of: Of,
    /// Then wait until nothing is delayed
    #[arg(long)]
    pub wait: bool,
    /// Wait at most this long
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    pub timeout: Option<u32>,
}

/// `leasehold writeback wait`
#[derive(Debug, Args)]
pub struct Wait {
    /// The mount.
    #[command(flatten)]
    pub of: Of,
    /// Wait at most this long
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u32>,
}

/// `leasehold writeback export`
#[derive(Debug, Args)]
pub struct Export {
    /// The mount.
    #[command(flatten)]
    pub of: Of,
    /// The directory to copy to. It is made if it does not exist
    #[arg(value_name = "TO")]
    pub to: PathBuf,
}

/// `leasehold writeback discard`
#[derive(Debug, Args)]
pub struct Discard {
    /// The mount.
    #[command(flatten)]
    pub of: Of,
    /// A kept conflict, or a file with delayed writes, as `ls` lists them
    #[arg(value_name = "PATH", required_unless_present_any = ["conflicts", "all"])]
    pub path: Option<std::ffi::OsString>,
    /// Delete all kept conflicts
    #[arg(long, conflicts_with_all = ["path", "all"])]
    pub conflicts: bool,
    /// Delete all kept conflicts, and the journal of a killed mount
    #[arg(long, conflicts_with = "path")]
    pub all: bool,
    /// Do it
    #[arg(long)]
    pub yes: bool,
}
