//! The NFS fronts: what clients see of Leasehold.
//!
//! A [`Front`] answers NFS v4, NFS v3, NFS v2, NQNFS and MOUNT, all on one port, over the exports of an [`Exports`] table. Each export
//! is a `vfs::FileSystem`, and the front does not know which. It owns what is the front's alone: who may ask
//! ([`exports`]), under which identity ([`caller`]), by which handles ([`handles`]), and the wire.
//!
//! From v2 and v3 clients GETATTR, ACCESS and LOOKUP count as opens (law 1 of the design): their callers demand
//! `Freshness::Open`.

pub mod caller;
pub mod exports;
pub mod front;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod handles;
mod mount;
mod nfs2;
mod nfs3;
mod nfs4;
mod nqnfs;
pub mod rpcbind;

pub use exports::{ClientList, Export, ExportOptions, Exports, Locations, Squash};
pub use front::{Counts, Front};
pub use handles::{HandleKey, Handles};
pub use nfs4::{Bounds, KnownClients, StateOptions};
pub use nqnfs::{Nqnfs, NqnfsOptions};
