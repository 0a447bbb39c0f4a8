//! The stackable file system interface of Leasehold, after the VFS/vnode split of Sun's NFS (1985).
//!
//! One trait, [`FileSystem`], stands between every two layers of the stack. Back ends implement it (`local`,
//! `memory`, `client`), layers implement it over another one (`cache`, `arbiter`), fronts consume it
//! (`server`, `mount`). No front knows which back end it has, and no back end knows which front calls it.
//! Every operation takes a [`Caller`] downward. Results, [`Lease`]s and their recalls travel upward.
//!
//! The vocabulary is that of NFS: handles, attributes with weak-cache-consistency data, the error names of
//! RFC 1813 and RFC 8881, opens with owners and share reservations.

pub mod attributes;
pub mod caller;
mod civil;
pub mod data;
pub mod error;
pub mod extended;
pub mod filesystem;
pub mod grants;
pub mod handle;
mod lacks;
pub mod lease;
pub mod local_view;
pub mod locks;
pub mod name;
mod null;
pub mod open;
pub mod pass;
pub mod recovery;
pub mod replay;
pub mod results;
pub mod run_to_completion;
pub mod shares;
pub mod tally;
pub mod time;
pub mod turnover;

pub use attributes::{
    Attributes, ChangeInfo, Device, FileType, Fsid, SetAttributes, SetTime, Wcc, WccAttributes,
};
pub use caller::{AccessMask, Caller, Credential, Freshness, HolderId, Principal};
pub use civil::civil;
pub use data::{CompleteFile, Data, FileRange, Pinned};
pub use error::{Error, Result, Status};
pub use extended::{
    Ace, Acl, Copied, Extended, Extent, Features, ListedXattrs, Place, Sought, XattrHow, XattrName,
};
pub use filesystem::{FileSystem, UnansweredSince};
pub use handle::{Handle, SharedHandle};
pub use lease::{
    Adopted, AdoptedLease, AdoptedOpen, Callback, Callbacks, DelayedAttributes, Lease, LeaseId, LeaseKind,
    Leases, Query, Recall, Times, Want,
};
pub use local_view::LocalView;
pub use name::Name;
pub use null::NullFileSystem;
pub use open::{
    Lock, LockKind, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner, Share, StateidBasis,
};
pub use pass::Pass;
pub use recovery::Recovery;
pub use results::{
    Accessed, BringsDirectoryLease, Commit, CreateHow, Created, Delegated, DirectoryLease, Entry, FsLimits,
    FsStat, Listing, Looked, Node, Read, ReadDir, Renamed, Stability, Written,
};
pub use run_to_completion::{run_to_completion, run_to_completion_or};
pub use shares::{Combinations, Shares};
pub use tally::{Tally, Used};
pub use time::{Clock, SystemClock, Timestamp};
pub use turnover::Turnover;

// For `lacks!`.
#[doc(hidden)]
pub use {async_trait::async_trait, bytes::Bytes, tokio::time::Instant};

/// Eight opaque bytes that change when a server may have lost unstable writes (RFC 1813, section 3.3.7), or
/// that tell one listing of a directory from another (cookie verifier).
pub type Verifier = [u8; 8];
