//! The arbiter as a `FileSystem`: it checks each operation against what is held, then passes it on.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Acl, Adopted, Attributes, Callbacks, Caller, Commit, CompleteFile, Copied,
    CreateHow, Created, Delegated, Device, Extended, Extent, FileSystem, FileType, FsLimits, FsStat, Handle,
    Lease, LeaseId, LeaseKind, Leases, ListedXattrs, Listing, LocalView, Lock, LockRequest, Locked, Looked,
    Name, Node, OpenId, OpenRequest, Opened, Opens, Owner, Place, Read, ReadDir, Renamed, Result,
    SetAttributes, Share, Sought, Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want, Wcc,
    Written, XattrHow, XattrName,
};

use crate::Arbiter;
use crate::shell::Victims;

#[async_trait]
impl FileSystem for Arbiter {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        self.shell.below.root(caller).await
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.shell.getattr(caller, handle).await
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let share = if set.size.is_some() { Share::WRITE } else { Share::empty() };
        let _change = self.shell.admit_change(caller, handle, share).await?;
        self.shell.below.setattr(caller, handle, set, guard).await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        let accessed = self.shell.below.access(caller, handle, asked).await?;
        Ok(Accessed { attributes: self.shell.trusted(caller, handle, accessed.attributes), ..accessed })
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _: Want) -> Result<Looked> {
        let mut looked = self.shell.below.lookup(caller, directory, name, vfs::Want::None).await?;
        self.shell.refreshed(caller, &mut looked.node).await?;
        Ok(looked)
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.shell.below.parent(caller, directory).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.shell.below.readlink(caller, handle).await
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let by = self.shell.admit_read(caller, handle, by).await?;
        self.shell.below.read(caller, handle, by, offset, count).await
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
        let (_change, by) = self.shell.admit_write(caller, handle, by).await?;
        self.shell.below.write(caller, handle, by, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        let mut commit = self.shell.below.commit(caller, handle, offset, count).await?;
        commit.wcc.after = self.shell.trusted(caller, handle, commit.wcc.after);
        Ok(commit)
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.shell.create(caller, (directory, name), how, set).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        let _change = self.shell.change_directories(caller, &[directory]).await?;
        self.shell.below.mkdir(caller, directory, name, set, vfs::Want::None).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let _change = self.shell.change_directories(caller, &[directory]).await?;
        self.shell.below.symlink(caller, directory, name, target, set).await
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
        let _change = self.shell.change_directories(caller, &[directory]).await?;
        self.shell.below.mknod(caller, directory, name, file_type, device, set).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let _change = self.shell.change_names(caller, &[(directory, name)], Victims::Files).await?;
        self.shell.below.remove(caller, directory, name).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let _change = self.shell.change_names(caller, &[(directory, name)], Victims::Directories).await?;
        self.shell.below.rmdir(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let names = [(from, from_name), (to, to_name)];
        let _change = self.shell.change_names(caller, &names, Victims::Any).await?;
        self.shell.below.rename(caller, from, from_name, to, to_name).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let _change = self.shell.change_link(caller, file, (directory, name)).await?;
        self.shell.below.link(caller, file, directory, name).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let mut listing = self.shell.below.readdir(caller, directory, part).await?;
        for node in listing.entries.iter_mut().filter_map(|entry| entry.node.as_mut()) {
            node.attributes = self.shell.trusted(caller, &node.handle, node.attributes);
        }
        Ok(listing)
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.shell.below.fsstat(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.shell.below.limits(caller, handle).await
    }

    async fn shutdown(&self) {
        self.shell.below.shutdown().await;
        self.shell.check_counters();
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    fn prepare_shutdown(&self) {}
}

#[async_trait]
impl Opens for Arbiter {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        self.tasks.start(&self.shell);
        self.shell.open(caller, request, None).await
    }

    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.shell.downgrade(caller, open, access, deny).await
    }

    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.shell.close(caller, open).await
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.shell.lock(caller, open, request).await
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.shell.unlock(caller, open, owner, range).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.shell.test(caller, handle, lock).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.shell.holds_locks(open, owner)
    }

    async fn free_capacity(&self, caller: &Caller) -> bool {
        self.tasks.start(&self.shell);
        self.shell.free_capacity(caller).await
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }
}

#[async_trait]
impl Leases for Arbiter {
    fn callbacks(&self) -> Option<Callbacks> {
        self.shell.callbacks()
    }

    async fn returned(&self, _caller: &Caller, lease: LeaseId) -> Result<()> {
        self.shell.returned(lease);
        Ok(())
    }

    async fn end_reclaim(&self) {
        self.shell.below.end_reclaim().await;
    }

    async fn lease(
        &self,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
        term: Duration,
    ) -> Result<Option<Lease>> {
        self.tasks.start(&self.shell);
        self.shell.lease(caller, handle, kind, term).await
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.tasks.start(&self.shell);
        self.shell.delegate(caller, directory, asked, None).await
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }
}

#[async_trait]
impl Extended for Arbiter {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        self.shell.below.acl(caller, handle).await
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let _change = self.shell.admit_change(caller, handle, Share::empty()).await?;
        self.shell.below.set_acl(caller, handle, acl).await
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        self.shell.below.getxattr(caller, handle, name).await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let _change = self.shell.admit_change(caller, handle, Share::empty()).await?;
        self.shell.below.setxattr(caller, handle, name, value, how).await
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        self.shell.below.listxattrs(caller, handle, cookie, bytes).await
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        let _change = self.shell.admit_change(caller, handle, Share::empty()).await?;
        self.shell.below.removexattr(caller, handle, name).await
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        let by = self.shell.admit_read(caller, handle, by).await?;
        self.shell.below.seek(caller, handle, by, offset, what).await
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let (_change, by) = self.shell.admit_write(caller, &at.handle, at.by).await?;
        self.shell.below.allocate(caller, Place { by, ..at }, length).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let (_change, by) = self.shell.admit_write(caller, &at.handle, at.by).await?;
        self.shell.below.deallocate(caller, Place { by, ..at }, length).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        let source = self.shell.admit_read(caller, &from.handle, from.by).await?;
        let (_change, target) = self.shell.admit_write(caller, &to.handle, to.by).await?;
        let (from, to) = (Place { by: source, ..from }, Place { by: target, ..to });
        self.shell.below.copy(caller, from, to, count).await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        let source = self.shell.admit_read(caller, &from.handle, from.by).await?;
        let (_change, target) = self.shell.admit_write(caller, &to.handle, to.by).await?;
        let (from, to) = (Place { by: source, ..from }, Place { by: target, ..to });
        self.shell.below.clone_range(caller, from, to, count).await
    }
}

#[async_trait]
impl LocalView for Arbiter {
    fn is_remembered(&self, directory: &Handle, name: &Name) -> Option<bool> {
        self.shell.below.is_remembered(directory, name)
    }

    fn believed_until(&self, _: &Handle) -> Option<Instant> {
        None
    }

    fn names_doubted(&self, _: &Handle) -> u64 {
        0
    }

    async fn complete_file(&self, _: &Caller, _: OpenId) -> Option<CompleteFile> {
        None
    }
}
