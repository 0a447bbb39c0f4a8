//! NFS version 3 as a file system. Each operation is one procedure, or the few that a complete answer needs.

mod attributes;
mod directory;
mod io;
mod making;
mod names;
mod opens;
mod origin;
mod system;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{Call, Reply, nfs3};
use tokio::sync::watch;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Commit, CreateHow, Created, Device, Error, FileSystem,
    FileType, FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Read, ReadDir, Renamed, Result,
    SetAttributes, Stability, StateidBasis, Timestamp, UnansweredSince, Want, Wcc, Written,
};

use crate::connect::{self, ConnectError, Sizes};
use crate::convert;
use crate::counts::Counts;
use crate::nlm::{self, LockManager};
use crate::nonsense::Types;
use crate::transport::{Answered, Transport};
use crate::url::Url;

/// A mounted export of a remote server. See [`Nfs3::connect`].
#[derive(Debug)]
pub struct Nfs3 {
    url: Url,
    server: SocketAddr,
    root: Handle,
    transport: Transport,
    sizes: Sizes,
    types: Types,
    /// The lock manager beside the server. `None` if there is none, or with the option `nolock`.
    locks: Option<Arc<LockManager>>,
    /// The origin has said that it does not support READDIRPLUS.
    without_plus: AtomicBool,
}

impl Nfs3 {
    /// Mounts the export of a URL. Needs a Tokio runtime, on which the connections live.
    ///
    /// # Errors
    /// One line for the user: what failed, and what to do.
    pub async fn connect(url: &Url) -> Result<Nfs3, ConnectError> {
        Nfs3::connect_through(url, protocol::portmap::PORT).await
    }

    /// Mounts, with a port mapper on any port.
    pub async fn connect_through(url: &Url, portmapper: u16) -> Result<Nfs3, ConnectError> {
        Nfs3::connect_with(url, portmapper, nlm::Past::default()).await
    }

    /// Mounts, and takes over the locks of an earlier process.
    pub(crate) async fn connect_as(url: &Url, locks: nlm::Past) -> Result<Nfs3, ConnectError> {
        Nfs3::connect_with(url, protocol::portmap::PORT, locks).await
    }

    async fn connect_with(url: &Url, portmapper: u16, past: nlm::Past) -> Result<Nfs3, ConnectError> {
        let mounted = connect::connect(url, portmapper).await?;
        let locks = if url.options.nolock {
            None
        } else {
            let whereabouts = nlm::Whereabouts {
                nfs: mounted.server,
                port_given: url.options.port.or(url.port).is_some(),
                portmapper: SocketAddr::new(mounted.server.ip(), portmapper),
                source: connect::source(&url.options),
                tls: connect::connector(url)?,
            };
            LockManager::connect(url, whereabouts, past).await
        };
        Ok(Nfs3 {
            url: url.clone(),
            server: mounted.server,
            root: mounted.root,
            transport: mounted.transport,
            sizes: mounted.sizes,
            types: Types::default(),
            locks,
            without_plus: AtomicBool::new(false),
        })
    }

    /// The calls made so far, without MOUNT and its FSINFO.
    pub fn counts(&self) -> Counts {
        self.transport.counting.snapshot()
    }

    async fn call<C: Call>(&self, caller: &Caller, args: &C::Args) -> Result<Answered<C::Results>> {
        self.transport.call::<C>(caller, args).await
    }

    /// The error for an answer that makes no sense.
    fn nonsense<C: Call>(&self, what: impl std::fmt::Display) -> Error {
        self.transport.nonsense.heard(C::NAME, what)
    }

    /// Checks the attributes of a handle, if there are any. A type that the handle cannot have is nonsense.
    fn attributes_of<C: Call>(
        &self,
        handle: &Handle,
        came: Option<nfs3::Fattr>,
        wanted: Option<FileType>,
    ) -> Result<Option<Attributes>> {
        let Some(attributes) = came.as_ref().map(convert::attributes) else { return Ok(None) };
        let found = attributes.file_type;
        if wanted.is_some_and(|wanted| wanted != found) || !self.types.agree(handle, found) {
            return Err(self.nonsense::<C>(format_args!("handle {handle} is a {found:?} all of a sudden")));
        }
        Ok(Some(attributes))
    }

    /// Weak cache consistency data of a handle.
    fn wcc_of<C: Call>(&self, handle: &Handle, came: nfs3::WccData, wanted: Option<FileType>) -> Result<Wcc> {
        let after = self.attributes_of::<C>(handle, came.after, wanted)?;
        Ok(convert::wcc(came.before, after))
    }

    /// The error for a status, with attributes of the handle in the request. Attributes of another type are
    /// left out, because that type may be the reason for the failure.
    fn failed(&self, handle: &Handle, status: nfs3::Status, came: Option<nfs3::Fattr>) -> Error {
        let attributes = came.as_ref().map(convert::attributes);
        let attributes = attributes.filter(|attributes| self.types.agree(handle, attributes.file_type));
        Error::from(convert::status(status)).with(attributes)
    }

    /// Success, or the error for a failure that carries attributes of the handle in the request.
    fn succeeded<T>(&self, handle: &Handle, reply: nfs3::Reply<T, Option<nfs3::Fattr>>) -> Result<T> {
        match reply {
            Reply::Ok(ok) => Ok(ok),
            Reply::Fail(status, came) => Err(self.failed(handle, status, came)),
        }
    }

    /// Success, or the error for a failure that carries weak cache consistency data of the handle in the
    /// request.
    fn done<T>(&self, handle: &Handle, reply: nfs3::Reply<T, nfs3::WccData>) -> Result<T> {
        match reply {
            Reply::Ok(ok) => Ok(ok),
            Reply::Fail(status, came) => Err(self.failed(handle, status, came.after)),
        }
    }
}

/// Encodes a directory and a name.
fn place(directory: &Handle, name: &Name) -> Result<nfs3::DirOpArgs> {
    let name = nfs3::Filename::new(Bytes::copy_from_slice(name.as_bytes())).unwrap_or_default();
    Ok(nfs3::DirOpArgs { dir: convert::to_wire(directory)?, name })
}

#[async_trait]
impl FileSystem for Nfs3 {
    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        Some(self.transport.pulse.watch())
    }

    async fn root(&self, caller: &Caller) -> Result<Node> {
        let attributes = self.get_attributes(caller, &self.root).await?;
        Ok(Node { handle: self.root, attributes: Some(attributes) })
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.get_attributes(caller, handle).await
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.set_attributes(caller, handle, set, guard).await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.ask_access(caller, handle, asked).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _want: Want) -> Result<Looked> {
        self.look_up(caller, directory, name.as_bytes()).await
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.look_up_parent(caller, directory).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.read_link(caller, handle).await
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        _by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.read_data(caller, handle, offset, count).await
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        _by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        self.write_data(caller, handle, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        self.commit_data(caller, handle, offset, count).await
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
        _want: Want,
    ) -> Result<Created> {
        self.make_directory(caller, directory, name, set).await
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
        self.remove_name::<nfs3::call::Remove>(caller, directory, name).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name::<nfs3::call::Rmdir>(caller, directory, name).await
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
        self.read_directory(caller, directory, part).await
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.ask_space(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.ask_limits(caller, handle).await
    }

    fn prepare_shutdown(&self) {}

    async fn shutdown(&self) {
        if let Some(locks) = &self.locks {
            locks.shutdown().await;
        }
    }
}

vfs::lacks!(Nfs3: Extended, LocalView);
