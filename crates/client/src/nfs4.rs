//! NFS versions 4.1 and 4.2 as a file system. Each operation is one compound, which also returns everything
//! that the caller needs to know afterwards.
//!
//! The state held at the origin (opens, locks, delegations) is in [`state`], and sessions and slots are in
//! [`session`]. After a restart of the origin, [`recovery`] reclaims the state, invisibly to the layer above.
//! After a restart of this process, [`durable`] and [`resume`] do that. Delegations are the leases of the
//! layer above, and [`callback`] handles their recalls.
//!
//! This module assumes AUTH_SYS, and one server behind one address. It tells of referrals and does
//! not follow them by itself: see [`moved`].

mod attributes;
mod callback;
mod channel;
mod connect;
mod convert;
mod delegating;
mod directory;
pub(crate) mod durable;
mod establish;
mod execute;
mod extended;
mod idmap;
mod io;
mod keeper;
mod leases;
mod locks;
mod making;
mod moved;
mod names;
mod new_directory;
mod opening;
mod opens;
mod origin;
mod recovery;
mod resume;
mod return_all;
mod session;
mod space;
mod state;
mod system;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use callback::slots::fuzzing;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nfs4::{Bitmap, Operation};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Acl, Adopted, Attributes, Callbacks, Caller, Commit, Copied, CreateHow, Created,
    Delegated, Device, Extended, Extent, FileSystem, FileType, FsLimits, FsStat, Handle, Lease, LeaseId,
    LeaseKind, Leases, ListedXattrs, Listing, Lock, LockRequest, Locked, Looked, Name, Node, OpenId,
    OpenRequest, Opened, Opens, Owner, Place, Read, ReadDir, Renamed, Result, SetAttributes, Share, Sought,
    Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want, Wcc, Written, XattrHow, XattrName,
};

use crate::connect::ConnectError;
use crate::counts::Counts;
use crate::nonsense::{Fsids, Types};
use crate::url::Url;
use callback::Back;
use channel::Channel;
use delegating::DelegationBackoff;
pub use durable::Incarnation;
use durable::RecordedState;
use establish::Client;
pub use establish::Identity;
use idmap::Idmap;
use moved::Following;
pub use return_all::RETURN_ALL_MAX;
use session::Session;

/// A remote server's export, over version 4.1 or 4.2. See [`Nfs4::connect`].
#[derive(Debug)]
pub struct Nfs4 {
    inner: Arc<Nfs4Client>,
    tasks: Vec<JoinHandle<()>>,
}

/// The state that the tasks share.
#[derive(Debug)]
struct Nfs4Client {
    url: Url,
    server: SocketAddr,
    minor: u32,
    identity: Identity,
    channel: Channel,
    client: Mutex<Client>,
    phase: watch::Sender<Phase>,
    state: RecordedState,
    back: Arc<Back>,
    /// When the latest request was sent whose SEQUENCE the server accepted.
    renewed: Mutex<Instant>,
    /// The latest `SEQ4_STATUS_*` flags.
    flags: AtomicU32,
    /// Wakes the keeper.
    upkeep: Notify,
    /// What mounting learned. No operation runs before that.
    export: std::sync::OnceLock<Export>,
    types: Types,
    fsids: Fsids,
    ids: Idmap,
    /// `Features` that the origin turned out not to have.
    missing: AtomicU16,
    /// Does the origin delegate directories?
    backoff: DelegationBackoff,
    /// The origin may have granted state that this client does not know. An earlier incarnation held some, or
    /// an answer was lost.
    strays: AtomicBool,
    /// The origin supports the current state id, so a READ may piggyback on an OPEN.
    piggybacked_reads: AtomicBool,
    /// Shutting down gives everything back, even if it is recorded.
    leaves_nothing: AtomicBool,
    /// The layers above hold state for their own clients, and can free capacity.
    holds_for_others: AtomicBool,
    /// When a renewal of the lease was last recorded.
    told_renewed: Mutex<Option<Instant>>,
    /// When a moved object was last logged.
    told_moved: Mutex<Option<Instant>>,
    /// Takes referrals, if they are followed.
    follow: OnceLock<Following>,
    /// A handle that names nothing.
    nowhere: Handle,
    weak: std::sync::Weak<Nfs4Client>,
}

/// Properties of an export that do not change.
#[derive(Clone, Copy, Debug)]
struct Export {
    root: Handle,
    lease_time: Duration,
    /// Supported attributes. Some servers fail a GETATTR that asks for an unknown one.
    supported: Bitmap,
    /// Attributes that an exclusive create can set.
    exclusive: Bitmap,
    read_max: u32,
    write_max: u32,
}

/// The phase of the session.
#[derive(Clone, Debug)]
enum Phase {
    Ready(Arc<Session>),
    Recovering,
    Ended,
}

impl Drop for Nfs4 {
    fn drop(&mut self) {
        self.inner.phase.send_replace(Phase::Ended);
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Nfs4 {
    /// The minor version in use.
    pub fn minor(&self) -> u32 {
        self.inner.minor
    }

    /// Compounds sent so far, by their main operation.
    pub fn counts(&self) -> Counts<Operation> {
        self.inner.channel.compounds.snapshot()
    }

    /// Operations sent so far, within compounds. Only the calls are counted.
    pub fn operation_counts(&self) -> Counts<Operation> {
        self.inner.channel.operations.snapshot()
    }

    /// Mounts the export of a URL. Needs a Tokio runtime, on which the connections live.
    ///
    /// # Errors
    /// One line for the user: what failed, and what to do.
    pub async fn connect(url: &Url) -> Result<Nfs4, ConnectError> {
        Nfs4::connect_as(url, Incarnation::volatile(url)).await
    }

    /// Mounts as this client, and takes over what its last incarnation held, as far as that is recorded: see
    /// [`Leases::adopted`]. The origin drops the rest.
    pub async fn connect_as(url: &Url, incarnation: Incarnation) -> Result<Nfs4, ConnectError> {
        connect::connect(url, incarnation).await
    }
}

impl Nfs4Client {
    /// What mounting learned. Only the mount itself asks before that.
    fn export(&self) -> Export {
        self.export.get().copied().unwrap_or(Export {
            root: self.nowhere,
            lease_time: Duration::from_secs(90),
            supported: Bitmap::EMPTY,
            exclusive: Bitmap::EMPTY,
            read_max: 4096,
            write_max: 4096,
        })
    }

    /// A reference to this client, for a task.
    fn myself(&self) -> Option<Arc<Nfs4Client>> {
        self.weak.upgrade()
    }
}

#[async_trait]
impl FileSystem for Nfs4 {
    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        Some(self.inner.channel.pulse.watch())
    }

    async fn root(&self, caller: &Caller) -> Result<Node> {
        let handle = self.inner.export().root;
        let attributes = self.inner.get_attributes(caller, &handle).await?;
        Ok(Node { handle, attributes: Some(attributes) })
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.inner.get_attributes(caller, handle).await
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.change_attributes(caller, handle, set, guard).await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.inner.ask_access(caller, handle, asked).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, want: Want) -> Result<Looked> {
        if want == Want::None {
            return self.inner.look_up(caller, directory, Some(name)).await;
        }
        let (inner, requester, above, below) = (self.inner.clone(), caller.clone(), *directory, name.clone());
        let work = async move { inner.look_up_delegated(&requester, &above, &below).await };
        self.with_piggyback(caller, Box::pin(work)).await.into_result()
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.inner.look_up_parent(caller, directory).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.inner.read_link(caller, handle).await
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.inner.read_data(caller, handle, by, offset, count).await
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        self.inner.write_data(caller, (handle, by), offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        self.inner.commit_data(caller, handle, offset, count).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.make_file(caller, directory, name, how, set).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created> {
        self.make_directory(caller, directory, name, set, want).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        self.make_symlink(caller, directory, name, target, set).await
    }

    async fn mknod(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        device: Device,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.make_node(caller, directory, name, (file_type, device), set).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, false).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, true).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.rename_name(caller, (from, from_name), (to, to_name)).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.make_link(caller, file, directory, name).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        if !part.want_directory_lease {
            return self.inner.read_directory(caller, directory, part).await;
        }
        let (inner, requester, above) = (self.inner.clone(), caller.clone(), *directory);
        let work = async move { inner.read_directory_delegated(&requester, &above, part).await };
        self.with_piggyback(caller, Box::pin(work)).await.into_result()
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.inner.ask_space(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.inner.ask_limits(caller, handle).await
    }

    async fn shutdown(&self) {
        self.give_everything_back().await;
    }

    fn prepare_shutdown(&self) {}
}

#[async_trait]
impl Opens for Nfs4 {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let opened = self.open_file_with_piggyback(caller, request).await;
        self.inner.channel.replicated().await;
        opened
    }

    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.downgrade_open(caller, open, access, deny).await
    }

    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.close_open(caller, open).await
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        let locked = self.take_lock(caller, open, request).await;
        self.inner.channel.replicated().await;
        locked
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.give_up_lock(caller, open, owner, range).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.inner.test_lock(caller, handle, lock).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.inner.has_locks(open, owner)
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl Leases for Nfs4 {
    fn callbacks(&self) -> Option<Callbacks> {
        self.inner.back.take_callbacks()
    }

    async fn returned(&self, caller: &Caller, lease: LeaseId) -> Result<()> {
        self.return_lease(caller, lease).await
    }

    fn adopted(&self) -> Adopted {
        self.inner.adopted()
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.delegate_directory(caller, directory, asked).await
    }

    async fn end_reclaim(&self) {}

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}

#[async_trait]
impl Extended for Nfs4 {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        self.inner.get_acl(caller, handle).await
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        self.inner.put_acl(caller, handle, acl).await
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        self.inner.get_xattr(caller, handle, name).await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        self.inner.set_xattr(caller, handle, name, value, how).await
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        self.inner.list_xattrs(caller, handle, cookie, bytes).await
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        self.inner.remove_xattr(caller, handle, name).await
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        self.inner.seek_extent(caller, Place { handle: *handle, by, offset }, what).await
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.inner.allocate_range(caller, at, length).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.inner.deallocate_range(caller, at, length).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        self.inner.copy_range(caller, from, to, count).await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        self.inner.share_range(caller, from, to, count).await
    }
}

vfs::lacks!(Nfs4: LocalView);
