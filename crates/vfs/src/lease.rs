//! The lease: what NFSv4 delegations, NQNFS leases, attribute timeouts and Linux file leases have in common.
//!
//! A lease says what may be cached, until when, at which change of the file, and how it is taken back. A layer gets
//! leases from the layer below and gives leases to the layer above.

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::handle::Handle;

/// Names a lease between two layers. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// What the holder may cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseKind {
    /// Attributes (and what they vouch for) until the term ends; a change by somebody else is not announced.
    Timeout,
    /// Reads and opens for reading; a change by somebody else is announced first.
    Read,
    /// Reads, writes, opens and locks; any use by somebody else is announced first.
    Write,
}

/// What an opener would like to have along with the open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Want {
    /// Whatever the layer below finds useful.
    #[default]
    Any,
    /// No lease.
    None,
    /// A read lease.
    Read,
    /// A write lease.
    Write,
}

/// A promise about one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name between the two layers.
    pub id: LeaseId,
    /// What it allows.
    pub kind: LeaseKind,
    /// When it ends by itself; `None` if it lasts until recalled.
    pub until: Option<Instant>,
    /// The file's change attribute that it vouches for.
    pub change: u64,
}

/// A layer below asks for a lease back. The holder flushes, stops using it and calls `FileSystem::returned`.
///
/// A recall may arrive before the reply that grants: a holder that does not know the id waits for its grants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Which lease.
    pub id: LeaseId,
    /// Of which file.
    pub handle: Handle,
    /// What may be kept after it: `None` for nothing.
    pub keep: Option<LeaseKind>,
    /// When it will be revoked, if not returned.
    pub deadline: Instant,
}

/// The stream of recalls from a layer to the one above it.
pub type Recalls = mpsc::Receiver<Recall>;
