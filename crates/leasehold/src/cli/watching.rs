//! The commands that watch a running process, and what its clients hold: `status`, `top`, `clients`, `opens`,
//! `locks`, `leases` and `revoke`.

use std::path::PathBuf;

use clap::Args;

pub(super) const TOP_HELP: &str = "\
Keys: q ends; Tab and 1 to 4 choose the table; left and right choose the column to sort by, r reverses the order; up and
down scroll; / takes a filter; p pauses; h shows the keys.

Examples:
  leasehold top /var/cache/leasehold/filer
  leasehold top --once --json /mnt | jq '.files[0]'";

pub(super) const REVOKE_HELP: &str = "\
Use this for a client that is gone for good and is in the way of others: they wait for its leases and locks
only until its lease expires, but its deny modes and locks count as long as it renews. A client that still
runs makes itself known again at its next request; what it had not written is refused, and its locks are lost.

Example:
  leasehold clients /var/lib/leasehold/serve-srv
  leasehold revoke /var/lib/leasehold/serve-srv 10.0.0.5";

/// `leasehold status`
#[derive(Debug, Args)]
pub struct Status {
    /// The cache directory of a proxy or mount, the mount point, or the state directory of a serve
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Print all counters instead of a summary
    #[arg(long)]
    pub all: bool,
    /// Print all counters as JSON
    #[arg(long, conflicts_with = "all")]
    pub json: bool,
}

/// `leasehold top`
#[derive(Debug, Args)]
pub struct Top {
    /// The cache directory of a proxy or mount, the mount point, or the state directory of a serve
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,
    /// Print what happened within one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Print JSON, a line for each interval
    #[arg(long)]
    pub json: bool,
}

/// `leasehold clients`
#[derive(Debug, Args)]
pub struct Holding {
    /// The state directory of a serve, or the cache directory of a proxy
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Print each entry as a line of JSON
    #[arg(long)]
    pub json: bool,
}

/// `leasehold opens`, `locks` and `leases`
#[derive(Debug, Args)]
pub struct HoldingOf {
    /// The server.
    #[command(flatten)]
    pub of: Holding,
    /// Only this file, or what is below this directory. It starts at the root of the export
    #[arg(value_name = "PATH")]
    pub path: Option<std::ffi::OsString>,
}

/// `leasehold revoke`
#[derive(Debug, Args)]
pub struct Revoke {
    /// The server.
    #[command(flatten)]
    pub of: Holding,
    /// The client: its id, its name, or its address, as `leasehold clients` shows them
    #[arg(value_name = "CLIENT")]
    pub client: String,
}
