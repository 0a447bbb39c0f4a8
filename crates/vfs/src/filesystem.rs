//! The trait between every two layers: the operations that every version of NFS has.
//!
//! Every operation is one NFS operation with its arguments parsed. Its errors are those of RFC 1813 for the
//! procedure of the same name. If the back end does not know a handle, the operation fails with `BadHandle`
//! or `Stale`.
//!
//! Four more traits hold what not every layer has, and every layer implements all of them:
//!
//! | trait | operations |
//! |---|---|
//! | [`Opens`] | opens, share reservations, byte-range locks |
//! | [`Leases`] | leases, their recall, and state from before a restart |
//! | [`Extended`] | access control lists, extended attributes, holes, copies |
//! | [`LocalView`] | what this machine knows without asking the origin |
//!
//! None of them has default methods. A layer that lacks one of them says so with [`lacks!`](crate::lacks!).

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attributes::{Attributes, Device, FileType, SetAttributes, Wcc};
use crate::caller::{AccessMask, Caller};
use crate::error::Result;
use crate::extended::Extended;
use crate::handle::Handle;
use crate::lease::{Leases, Want};
use crate::local_view::LocalView;
use crate::name::Name;
use crate::open::{Opens, StateidBasis};
use crate::results::{
    Accessed, Commit, CreateHow, Created, FsLimits, FsStat, Listing, Looked, Node, Read, ReadDir, Renamed,
    Stability, Written,
};
use crate::time::Timestamp;

/// The time since when calls to the origin have had no answer although callers waited. `None` if the origin
/// answers, or if no caller waits.
pub type UnansweredSince = Option<Instant>;

/// A file system, as the layer above sees it. Object-safe. Callers may call every method concurrently.
#[async_trait]
pub trait FileSystem: Opens + Leases + Extended + LocalView + Send + Sync + 'static {
    /// The root of the export, with attributes.
    async fn root(&self, caller: &Caller) -> Result<Node>;

    /// Attributes of a file.
    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes>;

    /// Sets attributes. With a `guard`, only if ctime still equals it; otherwise the result is `NotSync`.
    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc>;

    /// Which of the `asked` rights the caller has. The answer comes from the authority, now or remembered; no
    /// layer computes it from mode bits.
    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed>;

    /// The target of a name in a directory.
    ///
    /// With `want` other than [`Want::None`], the caller would like a lease on the directory with the reply,
    /// if that costs no further call. The lease may come with an error too ([`Error::directory_lease`]).
    ///
    /// [`Error::directory_lease`]: crate::Error::directory_lease
    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, want: Want) -> Result<Looked>;

    /// The parent of a directory. The parent of the root is the root itself.
    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked>;

    /// The target of a symbolic link, at most 4,096 bytes.
    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)>;

    /// Reads at most `count` bytes at `offset`.
    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read>;

    /// Writes `data` at `offset`.
    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written>;

    /// Makes unstable writes of `count` bytes at `offset` durable. A `count` of zero means to the end of the
    /// file. A layer that delays writes reports their errors here or at `close`, once.
    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit>;

    /// Makes a regular file.
    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Makes a directory. With `want` other than [`Want::None`], the caller would like a lease on the new
    /// directory with the reply ([`Created::lease`]), if that costs no further call.
    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created>;

    /// Makes a symbolic link to `target`: 1 to 4,096 bytes without NUL.
    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Makes a device, socket or named pipe.
    async fn mknod(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        device: Device,
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Removes a name that is not a directory's.
    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc>;

    /// Removes an empty directory.
    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc>;

    /// Renames a file or directory, and replaces the target of the new name.
    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed>;

    /// Makes another name for a file. `node` of the result is the file.
    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created>;

    /// Reads part of a directory.
    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing>;

    /// Space and number of files.
    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat>;

    /// Limits and abilities of the file system.
    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits>;

    /// Since when the origin has not answered although callers wait. The layer that makes the calls reports
    /// it, and the layers above pass it on. `None` if the stack ends in this process.
    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>>;

    /// The layer above is about to shut down. From now on it makes no call that brings a lease, and
    /// [`shutdown`] may return the leases that it gives back all at once.
    ///
    /// [`shutdown`]: FileSystem::shutdown
    fn prepare_shutdown(&self);

    /// Stores what is only in memory and returns what is held below. The process calls it once, before it
    /// ends.
    async fn shutdown(&self);
}
