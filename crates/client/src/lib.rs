//! A remote NFS server as a [`vfs::FileSystem`].
//!
//! [`Url`] says which server and export, with the option names of nfs(5); [`Nfs3::connect`] mounts it. What the server
//! answers is held against what it was asked before anybody above sees it: see [`nonsense`].
//!
//! NFS version 3 gives no leases: the layer above works with attribute timeouts, whose options [`Url`] hands on.

mod connect;
mod convert;
mod cookie;
pub mod counts;
mod nfs3;
pub mod nonsense;
mod portmapper;
mod transport;
pub mod url;

pub use connect::ConnectError;
pub use counts::{Counts, ProcedureCounts};
pub use nfs3::Nfs3;
pub use url::{CacheOptions, LookupCache, Options, Proto, Url, UrlError};
