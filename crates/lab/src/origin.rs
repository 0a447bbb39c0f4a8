//! Foreign NFS servers as origins: nfs-ganesha on the host, and the Linux kernel's own server in a guest.

pub(crate) mod ganesha;
pub(crate) mod knfsd;

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The address of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The server.
    pub host: IpAddr,
    /// The TCP port of its NFS service.
    pub port: u16,
    /// The TCP port of its MOUNT service.
    pub mountport: u16,
    /// The path of the export.
    pub export: String,
}

impl Origin {
    /// The URL for `leasehold proxy`: `nfs://HOST:PORT/EXPORT?mountport=PORT`.
    pub fn url(&self) -> String {
        format!("nfs://{}:{}{}?mountport={}", self.host, self.port, self.export, self.mountport)
    }

    /// The URL for `libnfs` with version 3.
    pub fn libnfs_url(&self, path: &str) -> String {
        let Origin { host, port, mountport, export } = self;
        format!("nfs://{host}{export}/{path}?version=3&nfsport={port}&mountport={mountport}")
    }
}

/// Version 3 procedures in the order of RFC 1813.
const PROCEDURES: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

/// Number of calls of each version 3 procedure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallCounts(BTreeMap<&'static str, u64>);

impl CallCounts {
    /// Parses the `proc3` line of `/proc/net/rpc/nfs` or `/proc/net/rpc/nfsd`; without that line the kernel
    /// has made no calls.
    pub(crate) fn parse(statistics: &str) -> CallCounts {
        let line = statistics.lines().find_map(|line| line.strip_prefix("proc3 ")).unwrap_or("");
        let counts = line.split(' ').skip(1).map(|word| word.parse().unwrap_or(0));
        CallCounts(PROCEDURES.into_iter().zip(counts).collect())
    }

    /// Counts a call of the procedure with this number; numbers beyond those of the RFC are ignored.
    pub(crate) fn add(&mut self, procedure: u32) {
        if let Some(name) = PROCEDURES.get(procedure as usize) {
            *self.0.entry(name).or_default() += 1;
        }
    }

    /// Calls of one procedure; `procedure` is its name in the RFC.
    pub fn of(&self, procedure: &str) -> u64 {
        self.0.get(procedure).copied().unwrap_or(0)
    }

    /// Number of all calls.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The calls made after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &CallCounts) -> CallCounts {
        let difference =
            |(name, count): (&&'static str, &u64)| (*name, count.saturating_sub(earlier.of(name)));
        CallCounts(self.0.iter().map(difference).collect())
    }
}

impl std::fmt::Display for CallCounts {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counted = self.0.iter().filter(|(_, count)| **count > 0);
        let words: Vec<String> = counted.map(|(name, count)| format!("{name} {count}")).collect();
        to.write_str(if words.is_empty() { "nothing" } else { "" })?;
        to.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::CallCounts;

    #[test]
    fn counts_come_from_the_kernels_line() {
        let before = CallCounts::parse("net 0 0 0 0\nproc3 22 1 5 0 2 0 0 7 0 0 0 0 0 0 0 0 0 0 0 0 2 1 0\n");
        let after = CallCounts::parse("proc3 22 1 6 0 2 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 2 1 0\n");
        assert_eq!(after.since(&before).to_string(), "GETATTR 1, READ 10");
        assert_eq!(before.of("FSINFO"), 2);
        assert_eq!(CallCounts::parse("").to_string(), "nothing");
    }
}
