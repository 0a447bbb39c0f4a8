//! Kinds of systems, and their names.

use std::fmt;
use std::str::FromStr;

use crate::workload::Workload;

/// A kind of system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A directory of this machine: the lower bound of the time of any network file system.
    Local,
    /// Clients that go directly to the origin.
    Direct,
    /// Clients that go directly to the origin and wait for each write. Linux 2.0, the baseline of one of the
    /// papers, did so.
    DirectSync,
    /// `leasehold proxy` on the clients' side.
    Proxy,
    /// `leasehold mount`, one on each client.
    Mount,
    /// nfs-ganesha as the origin, over the same directory.
    Ganesha,
    /// nfs-ganesha's proxy on the clients' side.
    GaneshaProxy,
    /// A directory that the user has mounted; its file system does not matter. Calls are not counted.
    Dir,
}

impl Kind {
    /// The kinds to compare. A directory of the user is measured alone.
    pub const ALL: [Kind; 7] = [
        Kind::Local,
        Kind::Direct,
        Kind::DirectSync,
        Kind::Proxy,
        Kind::Mount,
        Kind::Ganesha,
        Kind::GaneshaProxy,
    ];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "local",
            Kind::Direct => "direct",
            Kind::DirectSync => "direct-sync",
            Kind::Proxy => "proxy",
            Kind::Mount => "mount",
            Kind::Ganesha => "ganesha",
            Kind::GaneshaProxy => "ganesha-proxy",
            Kind::Dir => "dir",
        }
    }

    /// True if the system keeps a cache between two passes.
    pub fn caches(self) -> bool {
        matches!(self, Kind::Proxy | Kind::Mount | Kind::GaneshaProxy | Kind::Dir)
    }

    /// True if the workload is measured on this kind.
    pub fn takes(self, workload: &Workload) -> bool {
        self != Kind::DirectSync || workload.synchronous
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::name).join(", ");
            format!("`{text}` is no system: known are {known}")
        })
    }
}
