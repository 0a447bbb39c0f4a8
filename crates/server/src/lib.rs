//! The NFS fronts: the part of Leasehold that NFS clients talk to.
//!
//! A [`Front`] answers NFS v4, NFS v3, NFS v2, NQNFS, MOUNT, NLM and NSM, all on one port. It serves the
//! exports of an [`Exports`] table. Each export is a `vfs::FileSystem`, and the front does not know which
//! implementation it is. The front itself owns access control ([`exports`]), the mapping of credentials
//! ([`caller`]), the client's file handles ([`handles`]) and the wire.
//!
//! The modules import each other in one direction, top to bottom; `cargo xtask tidy` checks it:
//!
//! | modules | responsibility |
//! |---|---|
//! | `dispatch` | finds the version of a call |
//! | `portmapper` | a port mapper, where no rpcbind runs |
//! | `front` | owns everything below |
//! | `recalls` | passes the callbacks of file systems on to NLM, NQNFS or version 4 |
//! | `nfs2`, `nfs3`, `nfs4`, `nqnfs`, `mount`, `nlm` | the versions, and the protocols beside them; none uses another |
//! | `narrow`, `bulk` | what NFS v2 and NQNFS share; the data of a READ |
//! | `shared` | what all versions share, and one call as they see it |
//! | `callback` | the routes for callbacks to clients of version 4 |
//! | `state` | the clients that hold state, with their sessions and state ids, and grace |
//! | `caller`, `groups`, `names` | credentials, the groups of users, the names of owners |
//! | `handles`, `counts` | file handles, counters |
//! | `rpcbind` | registers the server with the port mapper of the machine |
//! | `uaddr` | universal addresses |
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
mod groups;
pub mod handles;
mod mount;
mod names;
mod narrow;
mod nfs2;
mod nfs3;
mod nfs4;
mod nlm;
mod nqnfs;
pub mod portmapper;
mod recalls;
pub mod rpcbind;
mod shared;
mod state;
mod uaddr;
mod usage;

pub use counts::Counts;
pub use exports::{
    ClientList, Export, ExportOptions, Exports, Flavor, HostDatabase, Location, Locations, Sec, Squash,
    XprtSec,
};
pub use front::{Front, LockManager};
pub use groups::{Groups, UserDatabase};
pub use handles::{HandleKey, Handles};
pub use names::{Kind as NameKind, NameDatabase};
pub use nlm::ListedHost;
pub use nqnfs::{Nqnfs, NqnfsOptions};
pub use state::{Bounds, Footprint, Held, KnownClients, ListedClient, ListedState, Replica, StateOptions};
pub use usage::Usage;
