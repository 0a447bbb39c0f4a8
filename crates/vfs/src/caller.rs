//! Who asks, with what rights, how fresh an answer must be, and until when it is wanted.

use std::net::IpAddr;
use std::sync::Arc;

use bitflags::bitflags;
use tokio::time::Instant;

/// The identity under which an operation is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// AUTH_SYS, after the export's squashing: user, group and supplementary groups.
    Unix(Arc<Credential>),
    /// The machine that Leasehold runs on, for work of its own (revalidation, filling, renewing).
    Machine,
}

/// A Unix credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups, as the client gave them (at most 16 in AUTH_SYS).
    pub groups: Vec<u32>,
}

/// How old an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// The request counts as an open: what it learns comes from a lease, or from a question that is put to the origin
    /// after the request arrived (Lever's close-to-open). So are GETATTR, ACCESS and LOOKUP of v2 and v3 clients.
    Open,
    /// Counts as an open of a directory, and as a `stat` of anything else. Version 4 has no OPEN for directories:
    /// opendir(3) and a cache that confirms names send GETATTR or ACCESS.
    Directory,
    /// A `stat` whose answer the client may take for a confirmation of names, because it asks for a directory along with
    /// another operation: it is no older than what a negative entry is believed by.
    Recent,
    /// A `stat`: attribute timeouts decide.
    Timeout,
}

/// A client that holds state: all that one client id of v4 opened, locked and was granted. Given out by the fronts,
/// unique among all of them, and never used for another client, in this process or a later one: a client that reclaims
/// what it held before a restart is the holder that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HolderId(pub u64);

impl HolderId {
    /// Those whose leases have terms, and who open and lock nothing (NQNFS), have this bit; no other holder has.
    pub const TERMED: u64 = 1 << 62;

    /// Do its leases end by themselves, so that after a restart what it writes may be what it wrote under one of before?
    pub fn is_termed(self) -> bool {
        self.0 & HolderId::TERMED != 0
    }
}

/// The asker of one operation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Identity and rights.
    pub principal: Principal,
    /// The client machine, where one is behind the request.
    pub client: Option<IpAddr>,
    /// In whose name it holds state, if its protocol has any. What a holder does never recalls its own lease.
    pub holder: Option<HolderId>,
    /// How old the answer may be.
    pub freshness: Freshness,
    /// True if the call is known to have been received before, by a process that died before it could answer: the
    /// operation may have taken effect. See [`crate::replay`].
    pub resent: bool,
    /// When the asker stops waiting, if ever.
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

    /// The same caller with a fresher or more lenient demand.
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
