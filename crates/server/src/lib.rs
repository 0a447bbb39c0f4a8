//! The NFS fronts: the part of Leasehold that NFS clients talk to.
//!
//! A [`Front`] answers NFS v4, NFS v3, NFS v2, NQNFS and MOUNT, all on one port, over the exports of an
//! [`Exports`] table. Each export is a `vfs::FileSystem`, and the front does not know which implementation
//! it is. The front itself owns access control ([`exports`]), the mapping of credentials ([`caller`]), the
//! client's file handles ([`handles`]) and the wire.
//!
//! The modules import each other in one direction, top to bottom; `cargo xtask tidy` checks it:
//!
//! | modules | responsibility |
//! |---|---|
//! | `dispatch` | finds the version of a call |
//! | `front` | owns everything below |
//! | `recalls` | passes the callbacks of file systems on to NQNFS or to version 4 |
//! | `nfs2`, `nfs3`, `nfs4`, `nqnfs`, `mount` | the versions; none uses another |
//! | `narrow`, `bulk` | what NFS v2 and NQNFS share; the data of a READ |
//! | `shared` | what all versions share, and one call as they see it |
//! | `callback` | the routes for callbacks to clients of version 4 |
//! | `state` | the clients that hold state, with their sessions and state ids, and grace |
//! | `caller`, `handles`, `counts` | credentials, file handles, counters |
//! | `exports` | the table of exports |
//!
//! From v2 and v3 clients GETATTR, ACCESS and LOOKUP count as opens (law 1 of the design). These procedures
//! therefore demand `Freshness::Open`.

mod bulk;
mod callback;
pub mod caller;
mod counts;
mod dispatch;
pub mod exports;
pub mod front;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod handles;
mod mount;
mod narrow;
mod nfs2;
mod nfs3;
mod nfs4;
mod nqnfs;
mod recalls;
pub mod rpcbind;
mod shared;
mod state;
mod usage;

pub use counts::Counts;
pub use exports::{ClientList, Export, ExportOptions, Exports, Locations, Squash};
pub use front::Front;
pub use handles::{HandleKey, Handles};
pub use nqnfs::{Nqnfs, NqnfsOptions};
pub use state::{Bounds, Held, KnownClients, ListedClient, ListedState, StateOptions};
pub use usage::Usage;
