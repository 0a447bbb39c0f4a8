//! The operations, each under the lock from its checks to the attributes of its result.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Commit, CreateHow, Created, Data, Device, Features, FileSystem,
    FileType, FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Read, ReadDir, Renamed, Result,
    SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want, Wcc, Written,
};

use crate::Memory;
use crate::names::{LINKS_MAX, New};
use crate::rights::{EXECUTE, User, access_mask};
use crate::tree::{Content, Id, Names, Tree};

/// Limit of one READ or WRITE in bytes.
const TRANSFER_MAX: usize = 1 << 20;

impl Tree {
    pub(crate) fn accessed(&self, user: User<'_>, id: Id, asked: AccessMask) -> Result<Accessed, Status> {
        let file = self.attributes(id)?;
        let rights = access_mask(&file, user.granted(&file));
        Ok(Accessed { granted: rights & asked, attributes: Some(file) })
    }

    fn created(&self, id: Id, directory: Wcc) -> Result<Created, Status> {
        Ok(Created { node: self.node(id)?, directory, lease: None })
    }

    fn looked(&self, id: Id, directory: Id) -> Result<Looked, Status> {
        let directory = Some(self.attributes(directory)?);
        Ok(Looked { node: self.node(id)?, directory, directory_lease: None })
    }
}

impl Memory {
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
            let (id, wcc) = tree.around(at, |tree| tree.make(User::of(caller), at, name, new, set))?;
            tree.created(id, wcc)
        })
    }

    fn remove_name(&self, caller: &Caller, directory: &Handle, name: &Name, is_dir: bool) -> Result<Wcc> {
        self.with(directory, |tree, at| {
            Ok(tree.around(at, |tree| tree.remove(User::of(caller), at, name, is_dir))?.1)
        })
    }
}

#[async_trait]
impl FileSystem for Memory {
    async fn root(&self, _: &Caller) -> Result<Node> {
        let tree = self.tree.lock();
        Ok(tree.node(tree.root)?)
    }

    async fn getattr(&self, _: &Caller, handle: &Handle) -> Result<Attributes> {
        self.with(handle, |tree, id| tree.attributes(id))
    }

    async fn setattr(
        &self,
        caller: &Caller,
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
            if set.size.is_some() {
                tree.check_write_somehow(caller, id)?;
            }
            Ok(tree.around(id, |tree| tree.set(User::of(caller), id, set))?.1)
        })
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.with(handle, |tree, id| tree.accessed(User::of(caller), id, asked))
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _: Want) -> Result<Looked> {
        self.with(directory, |tree, at| {
            let found = tree.find(User::of(caller), at, name)?.ok_or(Status::NoEnt)?;
            tree.looked(found, at)
        })
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.with(directory, |tree, at| {
            let parent = tree.names(at)?.parent;
            if at != parent {
                User::of(caller).check(&tree.attributes(at)?, EXECUTE)?;
            }
            tree.looked(parent, at)
        })
    }

    async fn readlink(&self, _: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.with(handle, |tree, id| match &tree.inode(id)?.content {
            Content::Target(target) => Ok((target.clone(), Some(tree.attributes(id)?))),
            _ => Err(Status::Inval),
        })
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.with(handle, |tree, id| {
            tree.check_data(caller, id, by, Share::READ)?;
            let (data, attributes) = (tree.data(id)?, Some(tree.attributes(id)?));
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
            let rest = &data[from..];
            let read = &rest[..rest.len().min(count as usize).min(TRANSFER_MAX)];
            let eof = read.len() == rest.len();
            Ok(Read { data: Data::Bytes(Bytes::copy_from_slice(read)), eof, attributes })
        })
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
        let data = &data[..data.len().min(TRANSFER_MAX)];
        self.with(handle, |tree, id| {
            tree.check_data(caller, id, by, Share::WRITE)?;
            let end = offset.checked_add(data.len() as u64).ok_or(Status::FBig)?;
            let size = end.max(tree.attributes(id)?.size);
            let ((), wcc) = tree.around(id, |tree| match data {
                [] => Ok(()),
                _ => tree.store(User::of(caller), id, size, (offset, data)),
            })?;
            Ok(Written { count: data.len() as u32, stability, verifier: tree.verifier(), wcc })
        })
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, _: u64, _: u32) -> Result<Commit> {
        self.with(handle, |tree, id| {
            tree.check_write_somehow(caller, id)?;
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
            let create =
                |tree: &mut Tree| tree.create(User::of(caller), at, name, (how, set), Share::empty());
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
        let new = New::of(FileType::Directory, Content::Names(Names::below(0)));
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

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, false)
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.remove_name(caller, directory, name, true)
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.with(from, |tree, from| {
            let to = tree.id(to)?;
            tree.rename(User::of(caller), (from, from_name), (to, to_name))
        })
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.with(file, |tree, id| {
            let at = tree.id(directory)?;
            let ((), wcc) = tree.around(at, |tree| tree.link(User::of(caller), id, at, name))?;
            tree.created(id, wcc)
        })
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        self.with(directory, |tree, at| tree.list(User::of(caller), at, part))
    }

    async fn fsstat(&self, _: &Caller, handle: &Handle) -> Result<FsStat> {
        self.with(handle, |tree, _| {
            let (bytes, files) = (tree.options.bytes_max, tree.options.files_max);
            let free_bytes = bytes.saturating_sub(tree.used_bytes);
            let free_files = files.saturating_sub(tree.inodes.len() as u64);
            Ok(FsStat {
                total_bytes: bytes,
                free_bytes,
                available_bytes: free_bytes,
                total_files: files,
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

vfs::lacks!(Memory: Extended, LocalView);
