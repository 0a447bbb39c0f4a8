//! The kinds of load.

use std::fmt;
use std::str::FromStr;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
    /// NULL: the base cost of a call.
    Null,
    /// GETATTR of the small files, at random.
    Getattr,
    /// LOOKUP of the small files, at random.
    Lookup,
    /// ACCESS, all bits, of the small files, at random.
    Access,
    /// READ of 4 KiB of the large file, at random.
    Read4k,
    /// READ of 64 KiB of the large file, at random.
    Read64k,
    /// READ of 1 MiB of the large file, sequentially on each connection.
    Read1m,
    /// WRITE of 64 KiB, UNSTABLE, sequentially to one file per connection, with a COMMIT after each 4 MiB.
    Write64k,
    /// CREATE of a file, then REMOVE of it.
    CreateRemove,
    /// READDIRPLUS of the directory of the small files, from its start, up to 64 KiB.
    Readdirplus,
}

impl Workload {
    /// All workloads.
    pub const ALL: &'static [Workload] = &[
        Workload::Null,
        Workload::Getattr,
        Workload::Lookup,
        Workload::Access,
        Workload::Read4k,
        Workload::Read64k,
        Workload::Read1m,
        Workload::Write64k,
        Workload::CreateRemove,
        Workload::Readdirplus,
    ];

    /// Its name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Null => "null",
            Workload::Getattr => "getattr",
            Workload::Lookup => "lookup",
            Workload::Access => "access",
            Workload::Read4k => "read-4k",
            Workload::Read64k => "read-64k",
            Workload::Read1m => "read-1m",
            Workload::Write64k => "write-64k",
            Workload::CreateRemove => "create-remove",
            Workload::Readdirplus => "readdirplus",
        }
    }

    /// Bytes of file data in each call.
    pub fn transfer_bytes(self) -> u32 {
        match self {
            Workload::Read4k => 4 << 10,
            Workload::Read64k | Workload::Write64k => 64 << 10,
            Workload::Read1m => 1 << 20,
            _ => 0,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;
    fn from_str(name: &str) -> Result<Workload, String> {
        Workload::ALL.iter().copied().find(|workload| workload.name() == name).ok_or_else(|| {
            let names: Vec<_> = Workload::ALL.iter().map(|workload| workload.name()).collect();
            format!("no workload `{name}`: there are {}", names.join(", "))
        })
    }
}
