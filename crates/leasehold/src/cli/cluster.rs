//! `leasehold cluster`: the members of a cluster of proxies.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The text below `leasehold cluster --help`.
pub(super) const CLUSTER_HELP: &str = "\
A member is `leasehold proxy --config FILE` with tables [cluster] and [[server]] in the file; see docs/guide/cluster.md. DIR is its cache directory.

Examples:
  leasehold cluster status /var/cache/leasehold/site
  leasehold cluster drain /var/cache/leasehold/site     # before an upgrade or a reboot

Exit codes: 0 success; 1 failure; 2 wrong command line.";

/// `leasehold cluster`
#[derive(Debug, Args)]
pub struct ClusterArguments {
    /// The command.
    #[command(subcommand)]
    pub command: ClusterCommand,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the members, and which of them runs which virtual server
    Status(Of),
    /// Give the virtual servers of a member to others, and take none until `resume`. Returns when they are
    /// given away
    Drain(Of),
    /// Take virtual servers again
    Resume(Of),
}

/// The member.
#[derive(Debug, Args)]
pub struct Of {
    /// The cache directory of the member
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
