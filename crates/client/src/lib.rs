//! A remote NFS server as a [`vfs::FileSystem`].
//!
//! A [`Url`] names the server and the export, with the option names of nfs(5), and [`connect()`] mounts it.
//! Before the layer above sees an answer of the server, the client checks that the answer is consistent with
//! the request: see [`nonsense`].
//!
//! NFS version 3 gives no leases: the layer above works with attribute timeouts, and takes their options from
//! the [`Url`]. Versions 4.1 and 4.2 keep state at the server, and their delegations are the leases. NQNFS
//! has leases with terms.

mod callers;
mod connect;
mod convert;
mod cookie;
pub mod counts;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod groups;
mod journal;
mod kerberos;
mod links;
mod listing;
mod nfs3;
mod nfs4;
mod nlm;
pub mod nonsense;
mod nqnfs;
mod origin;
mod portmapper;
mod pulse;
pub mod replica;
mod transport;
pub mod url;

pub use connect::ConnectError;
pub use counts::{Counted, Counts, ProcedureCounts};
pub use nfs3::Nfs3;
pub use nfs4::{Identity, Incarnation, Nfs4, RETURN_ALL_MAX};
pub use nqnfs::Nqnfs;
pub use origin::{Follow, Holdings, Location, Origin, Referral, connect, connect_as};
pub use url::{CacheOptions, LookupCache, Options, Proto, Url, UrlError, Version};
