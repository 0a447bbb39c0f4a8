//! The records in the store, as JSON.
//!
//! ```text
//! /leasehold/CLUSTER/live/format            the version of this layout
//! /leasehold/CLUSTER/live/members/NAME      a member
//! /leasehold/CLUSTER/live/servers/ADDRESS   a virtual server
//! /leasehold/CLUSTER/kept/ADDRESS           the records of a virtual server's clients
//! /leasehold/CLUSTER/held/ADDRESS/ORIGIN/…  what a virtual server holds at an origin
//! /leasehold/CLUSTER/turn/ADDRESS/COPY      changes with each write of one of the two
//! ```
//!
//! A member reads everything below `live` with each beat, so that part is small.

use serde::{Deserialize, Serialize};

/// The version of the layout.
pub const FORMAT: &[u8] = b"leasehold 1";

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Tells apart two lives of a member.
    pub incarnation: String,
    /// Grows with each transaction of the member.
    pub beat: u64,
    /// The directory of the member and its machine. A member that finds itself here may replace its record at
    /// once: it has the lock of the directory, so the earlier process has ended.
    pub place: String,
    /// The version of the program.
    pub version: String,
    /// A digest of what all members must have in common: servers, origins, handle key.
    pub digest: String,
    /// It gives its servers away, and takes none.
    pub draining: bool,
}

/// A virtual server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServerRecord {
    /// Grows whenever a member takes the server.
    pub epoch: u64,
    /// The member that runs it. None if it was given up.
    pub holder: Option<Holder>,
}

/// The member that runs a virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Holder {
    /// Its name.
    pub member: String,
    /// Its incarnation.
    pub incarnation: String,
}

/// The keys of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    root: String,
}

impl Keys {
    /// The keys of the cluster with this name.
    pub fn new(cluster: &str) -> Keys {
        Keys { root: format!("/leasehold/{cluster}/") }
    }

    /// The prefix of what all members read.
    pub fn live(&self) -> String {
        format!("{}live/", self.root)
    }

    /// The version of the layout.
    pub fn format(&self) -> String {
        format!("{}live/format", self.root)
    }

    /// The record of a member.
    pub fn member(&self, name: &str) -> String {
        format!("{}live/members/{name}", self.root)
    }

    /// The record of a virtual server.
    pub fn server(&self, address: &str) -> String {
        format!("{}live/servers/{address}", self.root)
    }

    /// The records of a virtual server's clients.
    pub fn kept(&self, address: &str) -> String {
        format!("{}kept/{address}", self.root)
    }

    /// A key that each write of a copy changes, so that the writes keep their order.
    pub fn turn(&self, address: &str, copy: &str) -> String {
        format!("{}turn/{address}/{copy}", self.root)
    }

    /// The prefix of what a virtual server holds at an origin.
    pub fn held(&self, address: &str, origin: &str) -> String {
        format!("{}held/{address}/{origin}/", self.root)
    }

    /// The name of the member or server that a key is of.
    pub(crate) fn name_in<'k>(&self, kind: &str, key: &'k str) -> Option<&'k str> {
        key.strip_prefix(&self.root)?.strip_prefix("live/")?.strip_prefix(kind)?.strip_prefix('/')
    }
}
