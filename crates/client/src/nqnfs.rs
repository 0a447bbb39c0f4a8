//! NQNFS as a file system: the procedures of version 2 with 64-bit sizes, and leases with terms (Macklem
//! 1994).
//!
//! [`leases`], a state machine without I/O, tracks what the client may rely on and until when. This module is
//! its shell. A lease is asked for with an open of the layer above and renewed here. So to the layer above, a
//! lease lasts until it is recalled: by an EVICTED, or because it could not be renewed in time. Without a
//! layer above that listens for callbacks, there are no leases.
//!
//! The protocol has no opens, locks or commits. An open is a LOOKUP, and an ACCESS that asks for the lease.
//! The layers above enforce share reservations and locks among themselves, and every WRITE is stable.

mod calls;
mod convert;
pub(crate) mod leases;
mod making;
mod mounting;
mod opens;
mod origin;
mod seen;
#[cfg(test)]
mod simulation;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nqnfs::{self, LeaseRequest, Leased, call};
use rpc::Link;
use std::time::Duration;
use tokio::sync::watch;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use vfs::{
    AccessMask, Accessed, Adopted, Attributes, Callback, Callbacks, Caller, Commit, CreateHow, Created, Data,
    Delegated, Device, FileSystem, FileType, FsLimits, FsStat, Handle, Lease, LeaseId, LeaseKind, Listing,
    Lock, LockRequest, Locked, Looked, Name, Node, OpenId, OpenRequest, Opened, Opens, Owner, Read, ReadDir,
    Renamed, Result, SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want,
    Wcc, Written,
};
use xdr::{Bulk, Opaque};

use crate::connect::ConnectError;
use crate::counts::{Counting, Counts};
use crate::nonsense::Nonsense;
use crate::pulse::Pulse;
use crate::url::Url;
use leases::Leases;
use seen::Seen;

/// A mounted export of a remote server. See [`Nqnfs::connect`].
#[derive(Debug)]
pub struct Nqnfs {
    url: Url,
    inner: Arc<NqnfsClient>,
    callbacks: Mutex<Option<Callbacks>>,
    /// Renews leases and reports those that end. Dropping this mount ends the task.
    keeper: JoinHandle<()>,
}

/// The state that calls, callbacks and the keeper share.
#[derive(Debug)]
struct NqnfsClient {
    server: SocketAddr,
    root: Handle,
    link: Link,
    machine: Opaque<255>,
    /// `soft`: how long a call may take.
    soft: Option<std::time::Duration>,
    /// The most bytes in a READ or WRITE.
    transfer_max: u32,
    counting: Counting<nqnfs::Procedure>,
    nonsense: Nonsense,
    /// Whether the server answers.
    pulse: Pulse,
    leases: Mutex<Leases>,
    seen: Mutex<Seen>,
    up: mpsc::Sender<Callback>,
    /// The layer above listens for callbacks.
    listening: AtomicBool,
    next_open: AtomicU64,
    /// Wakes the keeper when an earlier alarm is set.
    changed: Notify,
    /// Notifies waiters that a VACATED was answered.
    vacated: Notify,
}

impl Drop for Nqnfs {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Nqnfs {
    /// Mounts the export of a URL. Needs a Tokio runtime, on which the connection lives.
    ///
    /// # Errors
    /// One line for the user: what failed, and what to do.
    pub async fn connect(url: &Url) -> std::result::Result<Nqnfs, ConnectError> {
        mounting::connect(url).await
    }

    /// The calls made so far.
    pub fn counts(&self) -> Counts<nqnfs::Procedure> {
        self.inner.counting.snapshot()
    }
}

/// Arguments without a request for a lease.
fn plain<T>(args: T) -> Leased<T> {
    Leased { lease: LeaseRequest::None, args }
}

#[async_trait]
impl FileSystem for Nqnfs {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        let attributes = self.getattr(caller, &self.inner.root).await?;
        Ok(Node { handle: self.inner.root, attributes: Some(attributes) })
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let args = plain(convert::to_wire(handle)?);
        let fattr = self.inner.call_of::<call::Getattr, _, _>(caller, handle, &args).await?.results;
        Ok(self.inner.learn(handle, &fattr))
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        if guard.is_some() && guard != Some(self.getattr(caller, handle).await?.ctime) {
            return Err(Status::NotSync.into());
        }
        let args = nqnfs::SattrArgs { file: convert::to_wire(handle)?, attributes: convert::sattr(set) };
        let fattr = self.inner.call_of::<call::Setattr, _, _>(caller, handle, &plain(args)).await?.results;
        Ok(Wcc::seen(Some(self.inner.learn(handle, &fattr))))
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.inner.ask_access(caller, handle, asked).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _want: Want) -> Result<Looked> {
        self.inner.look_up(caller, directory, name.as_bytes()).await
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        if *directory == self.inner.root {
            return Ok(Looked { node: self.root(caller).await?, directory: None, directory_lease: None });
        }
        self.inner.look_up(caller, directory, b"..").await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let args = plain(convert::to_wire(handle)?);
        let path = self.inner.call::<call::Readlink, _, _>(caller, &args).await?.results;
        Ok((path.into_bytes(), None))
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        _by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let count = count.min(self.inner.transfer_max);
        let args = nqnfs::ReadArgs { file: convert::to_wire(handle)?, offset, count };
        self.inner.used(handle);
        let ok = self.inner.call_of::<call::Read, _, _>(caller, handle, &plain(args)).await?.results;
        let attributes = self.inner.learn(handle, &ok.attributes);
        let Bulk::Bytes(data) = ok.data else { return Err(Status::Io.into()) };
        if data.len() as u64 > u64::from(count) {
            return Err(self.inner.nonsense.heard("READ", "more bytes than were asked for"));
        }
        let end = offset.saturating_add(data.len() as u64);
        let eof = end >= attributes.size;
        if data.is_empty() && count > 0 && !eof {
            return Err(self.inner.nonsense.heard("READ", "no bytes, and not the end of the file"));
        }
        Ok(Read { data: Data::Bytes(data), eof, attributes: Some(attributes) })
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        _by: StateidBasis,
        offset: u64,
        data: Bytes,
        _stability: Stability,
    ) -> Result<Written> {
        let data = data.slice(..data.len().min(self.inner.transfer_max as usize));
        let count = data.len() as u32;
        let file = convert::to_wire(handle)?;
        let args = nqnfs::WriteArgs { file, offset, append: false, data: Bulk::Bytes(data) };
        self.inner.used(handle);
        let fattr = self.inner.write_data(caller, handle, args).await?;
        let wcc = Wcc::seen(Some(self.inner.learn(handle, &fattr)));
        Ok(Written { count, stability: Stability::FileSync, verifier: [0; 8], wcc })
    }

    /// Everything written is stable, so this only fetches attributes.
    async fn commit(&self, caller: &Caller, handle: &Handle, _offset: u64, _count: u32) -> Result<Commit> {
        let after = Some(self.getattr(caller, handle).await?);
        Ok(Commit { verifier: [0; 8], wcc: Wcc::seen(after) })
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.inner.make_file(caller, directory, name, how, set).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created> {
        if want == Want::None || !self.inner.is_listening() {
            return self.inner.make_directory(caller, directory, name, set).await;
        }
        // Run to completion even if the requester goes away: a granted lease must reach the layer above.
        let (inner, caller, directory) = (self.inner.clone(), caller.clone(), *directory);
        let (name, set) = (name.clone(), *set);
        vfs::run_to_completion(
            async move { inner.make_leased_directory(&caller, &directory, &name, &set).await },
        )
        .await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        self.inner.make_symlink(caller, directory, name, target, set).await
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
        self.inner.make_node(caller, directory, name, (file_type, device), set).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let args = plain(convert::place(directory, name)?);
        self.inner.call::<call::Remove, _, _>(caller, &args).await?;
        Ok(Wcc::default())
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let args = plain(convert::place(directory, name)?);
        self.inner.call::<call::Rmdir, _, _>(caller, &args).await?;
        Ok(Wcc::default())
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let (from, to) = (convert::place(from, from_name)?, convert::place(to, to_name)?);
        self.inner.call::<call::Rename, _, _>(caller, &plain(nqnfs::RenameArgs { from, to })).await?;
        Ok(Renamed { from: Wcc::default(), to: Wcc::default() })
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let args = nqnfs::LinkArgs { from: convert::to_wire(file)?, to: convert::place(directory, name)? };
        self.inner.call::<call::Link, _, _>(caller, &plain(args)).await?;
        Ok(Created { node: Node { handle: *file, attributes: None }, directory: Wcc::default(), lease: None })
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        self.inner.read_directory(caller, directory, part).await
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        let args = plain(convert::to_wire(handle)?);
        let ok = self.inner.call::<call::Statfs, _, _>(caller, &args).await?.results;
        Ok(convert::space(&ok))
    }

    async fn limits(&self, _caller: &Caller, _handle: &Handle) -> Result<FsLimits> {
        Ok(convert::limits(self.inner.transfer_max))
    }

    fn prepare_shutdown(&self) {
        self.inner.leases.lock().leave();
    }

    async fn shutdown(&self) {
        self.inner.return_all().await;
        self.inner.leases.lock().check_counters();
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        Some(self.inner.pulse.watch())
    }
}

#[async_trait]
impl Opens for Nqnfs {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        // Run to completion even if the requester goes away: a granted lease must reach the layer above.
        let (inner, caller, request) = (self.inner.clone(), caller.clone(), request.clone());
        vfs::run_to_completion(async move { inner.open(&caller, &request).await }).await
    }

    async fn downgrade(&self, _caller: &Caller, _open: OpenId, _access: Share, _deny: Share) -> Result<()> {
        Ok(())
    }

    async fn close(&self, _caller: &Caller, _open: OpenId) -> Result<()> {
        Ok(())
    }

    /// The protocol has no locks. The layers above enforce them among their own clients.
    async fn lock(&self, _caller: &Caller, _open: OpenId, _request: &LockRequest) -> Result<Locked> {
        Ok(Locked::Granted)
    }

    async fn unlock(
        &self,
        _caller: &Caller,
        _open: OpenId,
        _owner: &Owner,
        _range: (u64, u64),
    ) -> Result<()> {
        Ok(())
    }

    async fn test(&self, _caller: &Caller, _handle: &Handle, _lock: &Lock) -> Result<Option<Lock>> {
        Ok(None)
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    fn holds_locks(&self, _: OpenId, _: &Owner) -> bool {
        false
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl vfs::Leases for Nqnfs {
    fn callbacks(&self) -> Option<Callbacks> {
        let callbacks = self.callbacks.lock().take()?;
        self.inner.listening.store(true, std::sync::atomic::Ordering::Release);
        Some(callbacks)
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        if !self.inner.is_listening() {
            let accessed = self.inner.ask_access(caller, directory, asked).await?;
            return Ok(Delegated { accessed, lease: None });
        }
        // Run to completion even if the requester goes away: a granted lease must reach the layer above.
        let (inner, caller, directory) = (self.inner.clone(), caller.clone(), *directory);
        vfs::run_to_completion(async move { inner.delegate(&caller, &directory, asked).await }).await
    }

    async fn returned(&self, _caller: &Caller, lease: LeaseId) -> Result<()> {
        self.inner.with(|leases, _| leases.returned(lease));
        Ok(())
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn end_reclaim(&self) {}

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}

vfs::lacks!(Nqnfs: Extended, LocalView);
