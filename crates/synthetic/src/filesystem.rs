//! The operations, each under the lock from its checks to the attributes of its result.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Commit, CreateHow, Created, Data, Device, Features, FileSystem,
    FileType, FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Principal, Read, ReadDir, Renamed,
    Result, SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want, Wcc,
    Written,
};

use crate::Synthetic;
use crate::names::{LINKS_MAX, New};
use crate::shape::ROOT;
use crate::tree::{Content, Id, Names, Tree};

/// Limit of one READ or WRITE in bytes.
const TRANSFER_MAX: usize = 1 << 20;

/// The owner and group of what the caller makes.
pub(crate) fn owner(caller: &Caller) -> (u32, u32) {
    match &caller.principal {
        Principal::Unix(credential) => (credential.uid, credential.gid),
        Principal::Machine => (0, 0),
    }
}

/// All rights that an object can have.
pub(crate) fn rights(file: &Attributes) -> AccessMask {
    let change = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND;
    if file.is_dir() {
        change | AccessMask::LOOKUP | AccessMask::DELETE
    } else {
        change | AccessMask::EXECUTE
    }
}

impl Tree {
    pub(crate) fn accessed(&self, id: Id, asked: AccessMask) -> Result<Accessed, Status> {
        let file = self.attributes(id)?;
        Ok(Accessed { granted: rights(&file) & asked, attributes: Some(file) })
    }

    fn created(&self, id: Id, directory: Wcc) -> Result<Created, Status> {
        Ok(Created { node: self.node(id)?, directory, lease: None })
    }

    fn looked(&self, id: Id, directory: Id) -> Result<Looked, Status> {
        let directory = Some(self.attributes(directory)?);
        Ok(Looked { node: self.node(id)?, directory, directory_lease: None })
    }
}

impl Synthetic {
    /// Makes a name in a directory.
    fn make(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        new: Result<New, Status>,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.with(directory, |tree, at| {
            let new = new?;
            let (id, wcc) = tree.around(at, |tree| tree.make(owner(caller), at, name, new, set))?;
            tree.created(id, wcc)
        })
    }

    fn remove_name(&self, directory: &Handle, name: &Name, is_dir: bool) -> Result<Wcc> {
        self.with(directory, |tree, at| Ok(tree.around(at, |tree| tree.remove(at, name, is_dir))?.1))
    }
}

#[async_trait]
impl FileSystem for Synthetic {
    async fn root(&self, _: &Caller) -> Result<Node> {
        Ok(self.tree.lock().node(ROOT)?)
    }

    async fn getattr(&self, _: &Caller, handle: &Handle) -> Result<Attributes> {
        self.with(handle, |tree, id| tree.attributes(id))
    }

    async fn setattr(
        &self,
        _: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.with(handle, |tree, id| {
            let before = tree.attributes(id)?;
            if guard.is_some_and(|ctime| ctime != before.ctime) {
                return Err(Status::NotSync);
            }
            if *set == SetAttributes::default() {
                return Ok(Wcc::around(before.wcc(), Some(before)));
            }
            Ok(tree.around(id, |tree| tree.set(id, set))?.1)
        })
    }

    async fn access(&self, _: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.with(handle, |tree, id| tree.accessed(id, asked))
    }

    async fn lookup(&self, _: &Caller, directory: &Handle, name: &Name, _: Want) -> Result<Looked> {
        self.with(directory, |tree, at| {
            let found = tree.find(at, name)?.ok_or(Status::NoEnt)?;
            tree.looked(found, at)
        })
    }

    async fn parent(&self, _: &Caller, directory: &Handle) -> Result<Looked> {
        self.with(directory, |tree, at| tree.looked(tree.parent(at)?, at))
    }

    async fn readlink(&self, _: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.with(handle, |tree, id| match tree.changed.get(&id).map(|changed| &changed.content) {
            Some(Content::Target(target)) => Ok((target.clone(), Some(tree.attributes(id)?))),
            _ => Err(Status::Inval),
        })
    }

    async fn read(
        &self,
        _: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.with(handle, |tree, id| {
            tree.check_basis(id, by, Share::READ)?;
            let attributes = tree.attributes(id)?;
            let data = tree.read(id, offset, u64::from(count).min(TRANSFER_MAX as u64));
            let eof = offset.saturating_add(data.len() as u64) >= attributes.size;
            Ok(Read { data: Data::Bytes(data), eof, attributes: Some(attributes) })
        })
    }

    async fn write(
        &self,
        _: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        let data = &data[..data.len().min(TRANSFER_MAX)];
        self.with(handle, |tree, id| {
            tree.check_basis(id, by, Share::WRITE)?;
            let end = offset.checked_add(data.len() as u64).ok_or(Status::FBig)?;
            let size = end.max(tree.attributes(id)?.size);
            let ((), wcc) = tree.around(id, |tree| match data {
                [] => Ok(()),
                _ => tree.store(id, size, (offset, data)),
            })?;
            Ok(Written { count: data.len() as u32, stability, verifier: tree.verifier(), wcc })
        })
    }

    async fn commit(&self, _: &Caller, handle: &Handle, _: u64, _: u32) -> Result<Commit> {
        self.with(handle, |tree, id| {
            tree.check_regular(id)?;
            let ((), wcc) = tree.around(id, |_| Ok(()))?;
            Ok(Commit { verifier: tree.verifier(), wcc })
        })
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.with(directory, |tree, at| {
            let create = |tree: &mut Tree| tree.create(owner(caller), at, name, (how, set));
            let ((id, _), wcc) = tree.around(at, create)?;
            tree.created(id, wcc)
        })
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        let new = New::of(FileType::Directory, Content::Names(Names::below(ROOT)));
        self.make(caller, directory, name, Ok(new), set)
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        self.make(caller, directory, name, New::symlink(target), set)
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
        self.make(caller, directory, name, New::special(file_type, device), set)
    }

    async fn remove(&self, _: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(directory, name, false)
    }

    async fn rmdir(&self, _: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(directory, name, true)
    }

    async fn rename(
        &self,
        _: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.with(from, |tree, from| {
            let to = tree.id(to)?;
            tree.rename((from, from_name), (to, to_name))
        })
    }

    async fn link(&self, _: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.with(file, |tree, id| {
            let at = tree.id(directory)?;
            let ((), wcc) = tree.around(at, |tree| tree.link(id, at, name))?;
            tree.created(id, wcc)
        })
    }

    async fn readdir(&self, _: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        self.with(directory, |tree, at| tree.list(at, part))
    }

    async fn fsstat(&self, _: &Caller, handle: &Handle) -> Result<FsStat> {
        self.with(handle, |tree, _| {
            let (shape, options) = (&tree.shape, &tree.options);
            let free_bytes = options.bytes_max.saturating_sub(tree.used_bytes);
            let free_files = options.records_max.saturating_sub(tree.records());
            Ok(FsStat {
                total_bytes: u64::from(shape.files) * u64::from(shape.file_bytes) + options.bytes_max,
                free_bytes,
                available_bytes: free_bytes,
                total_files: shape.end() - ROOT + options.records_max,
                free_files,
                available_files: free_files,
                invariant_seconds: 0,
            })
        })
    }

    async fn limits(&self, _: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.with(handle, |_, _| {
            Ok(FsLimits { link_max: LINKS_MAX, features: Features::STATE, ..FsLimits::default() })
        })
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    fn prepare_shutdown(&self) {}

    async fn shutdown(&self) {}
}

vfs::lacks!(Synthetic: Extended, LocalView);
