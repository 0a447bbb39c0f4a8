//! The caller of an operation: its identity and rights, the freshness that it needs, and its deadline.

use std::net::IpAddr;
use std::sync::Arc;

use bitflags::bitflags;
use tokio::time::Instant;

/// The identity under which an operation runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// AUTH_SYS, after the export's squashing: user, group and supplementary groups.
    Unix(Arc<Credential>),
    /// The machine of Leasehold itself, for its own work (revalidation, filling, renewal).
    Machine,
}

/// A Unix credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups. Clients send at most 16 in AUTH_SYS; a process and a user database have more.
    pub groups: Vec<u32>,
}

/// How old an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// The request counts as an open. Its answer comes from a lease, or from a call that was sent to the
    /// origin after the request arrived (Lever's close-to-open). GETATTR, ACCESS and LOOKUP of v2 and v3
    /// clients are such requests.
    Open,
    /// The request counts as an open of a directory, and as a `stat` of any other object. Version 4 has no
    /// OPEN for directories: opendir(3), and a cache that confirms names, send GETATTR or ACCESS.
    Directory,
    /// A `stat` that confirms names, so the answer is no older than the lifetime of a negative entry. One is
    /// the GETATTR of a directory in the compound of another operation. The other is the LOOKUP of a file by
    /// a mount: the kernel may be about to create the name, but an OPEN would check the name again.
    Recent,
    /// A `stat`: attribute timeouts decide how old the answer may be.
    Timeout,
}

/// A client that holds state: the opens, locks and leases of one v4 client id.
///
/// Fronts assign it. It is unique among all fronts, and no other client gets it, in this process or a later
/// one. A client that reclaims its state after a restart is the same holder as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub u64);

impl HolderId {
    /// The bit of holders whose leases have terms and who open and lock nothing (NQNFS). No other holder has
    /// it.
    pub const TERMED: u64 = 1 << 62;

    /// Whether the holder's leases end by themselves. After a restart, such a holder may still send writes
    /// that it made under an earlier lease.
    pub fn is_termed(self) -> bool {
        self.0 & HolderId::TERMED != 0
    }
}

/// The caller of one operation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Identity and rights.
    pub principal: Principal,
    /// The address of the client, if the request came from one.
    pub client: Option<IpAddr>,
    /// The holder of its state, if its protocol has state. An operation never recalls a lease of its own
    /// holder.
    pub holder: Option<HolderId>,
    /// How old the answer may be.
    pub freshness: Freshness,
    /// True if an earlier process received this call and died before it answered. The operation may have
    /// taken effect ([`crate::replay`]).
    pub resent: bool,
    /// When the requester stops waiting; `None` if it waits without limit.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// Leasehold itself.
    pub fn machine() -> Caller {
        Caller {
            principal: Principal::Machine,
            client: None,
            holder: None,
            freshness: Freshness::Timeout,
            resent: false,
            deadline: None,
        }
    }

    /// A user of this machine or of a client.
    pub fn unix(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        let credential = Arc::new(Credential { uid, gid, groups: groups.to_vec() });
        Caller { principal: Principal::Unix(credential), ..Caller::machine() }
    }

    /// The same caller with another demand for freshness.
    #[must_use]
    pub fn with_freshness(mut self, freshness: Freshness) -> Caller {
        self.freshness = freshness;
        self
    }
}

bitflags! {
    /// The bits of ACCESS (RFC 1813, section 3.3.4).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessMask: u32 {
        /// Read data of a file, or list a directory.
        const READ = 0x01;
        /// Look up a name in a directory.
        const LOOKUP = 0x02;
        /// Rewrite existing data or entries.
        const MODIFY = 0x04;
        /// Write new data or add entries.
        const EXTEND = 0x08;
        /// Remove an entry.
        const DELETE = 0x10;
        /// Execute a file.
        const EXECUTE = 0x20;
    }
}
