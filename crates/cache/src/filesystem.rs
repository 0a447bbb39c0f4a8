//! The cache as a file system: one module per kind of operation.

mod atime;
mod attributes;
mod behind;
mod complete;
mod data;
mod delegated;
pub mod directory;
mod extended;
pub mod lock;
pub mod modify;
pub mod names;
mod offline;
pub mod open;
mod opendir;
pub mod overlay;

use std::future::Future;

use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Acl, Adopted, Attributes, Callbacks, Caller, Commit, CompleteFile, Copied,
    CreateHow, Created, Delegated, Device, Extended, Extent, FileSystem, FileType, FsLimits, FsStat, Handle,
    Lease, LeaseId, LeaseKind, Leases, ListedXattrs, Listing, LocalView, Lock, LockRequest, Locked, Looked,
    Name, Node, OpenId, OpenRequest, Opened, Opens, Owner, Place, Read, ReadDir, Renamed, Result,
    SetAttributes, Share, Sought, Stability, StateidBasis, Status, Timestamp, Want, Wcc, Written, XattrHow,
    XattrName,
};

use crate::Cache;
use crate::object::Opening;
use crate::recording::Use;
use crate::writes::Hold;

impl Cache {
    /// Runs an operation that changes a file to completion, even if the requester has gone away. Under a
    /// lease, a change of ours with an unknown outcome would not show anywhere.
    async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.core.has_state() != Some(true) {
            return work.await;
        }
        vfs::run_to_completion(work).await
    }
}

#[async_trait]
impl FileSystem for Cache {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        let sent = self.core.policy.sending();
        self.core.counters.other.bump();
        let ask = async {
            let node = self.core.below.root(caller).await?;
            let object = self.core.object(&node.handle);
            self.core.observe(&object, node.attributes.as_ref(), &sent, Opening::No);
            self.core.learn_root(node.handle);
            Ok(node)
        };
        let known = || {
            let handle = self.core.known_root()?;
            Some(Ok(Node { handle, attributes: Some(self.core.offline_attributes(&handle)?) }))
        };
        self.core.or_offline(ask, known).await
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.core.is_not_dropped(handle)?;
        let known = || self.core.offline_attributes(handle).map(Ok);
        let attributes = self.core.or_offline(self.core.getattr_written(caller, handle), known).await?;
        self.core.recorder.object(handle, || Use::Looked);
        Ok(attributes)
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.core.may_change()?;
        self.core.is_not_dropped(handle)?;
        let (core, caller, handle, set) = (self.core.clone(), caller.clone(), *handle, *set);
        self.run_to_completion(async move {
            let since = core.policy.event();
            let mut wcc = core.setattr(&caller, &handle, &set, guard).await?;
            core.written_after(since, &handle, &mut wcc);
            Ok(wcc)
        })
        .await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.core.is_not_dropped(handle)?;
        let online = async {
            let since = self.core.policy.event();
            let mut accessed = self.core.access(caller, handle, asked).await?;
            self.core.written_accessed(since, caller, handle, &mut accessed).await;
            Ok(accessed)
        };
        self.core.or_offline(online, || self.core.offline_access(caller, handle, asked).map(Ok)).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, _: Want) -> Result<Looked> {
        let online = async {
            let since = self.core.policy.event();
            let mut looked = self.core.lookup(caller, directory, name).await?;
            self.core.written_looked(since, caller, &mut looked).await;
            Ok(looked)
        };
        let looked = self.core.or_offline(online, || self.core.offline_lookup(caller, directory, name)).await;
        match &looked {
            Ok(found) => self.core.recorder.object(&found.node.handle, || Use::Looked),
            Err(error) if error.status == Status::NoEnt => self.core.recorder.absent(directory, name),
            Err(_) => {}
        }
        looked
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.core.or_put_off(self.core.parent(caller, directory)).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let known = || self.core.offline_link(caller, handle).map(Ok);
        let link = self.core.or_offline(self.core.readlink(caller, handle), known).await?;
        self.core.recorder.object(handle, || Use::Linked);
        Ok(link)
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.core.is_not_dropped(handle)?;
        self.core.tell_if_lost(handle)?;
        let read = if self.core.is_all_clean() {
            self.core.read_or_offline((caller, by), handle, offset, count).await?
        } else {
            self.core.or_put_off(self.core.read_over((caller, by), handle, offset, count)).await?
        };
        self.core.recorder.read(handle, offset, read.data.len() as u64);
        // A hit has no new attributes, so no READ reports any: see `vfs::Read::attributes`.
        Ok(Read { attributes: None, ..read })
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
        self.core.is_not_dropped(handle)?;
        self.core.tell_if_lost(handle)?;
        if let Some(delayed) = &self.core.delayed {
            if delayed.options.shared {
                self.core.may_change()?;
            }
            let by = (caller, by);
            let writing = self.core.write_delayed(delayed, by, handle, offset, data, stability);
            return self.core.or_put_off(writing).await;
        }
        self.core.may_change()?;
        let (core, caller, handle) = (self.core.clone(), caller.clone(), *handle);
        self.run_to_completion(async move { core.write(&caller, &handle, offset, data, stability).await })
            .await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        match &self.core.delayed {
            Some(delayed) => self.core.or_put_off(self.core.commit_delayed(delayed, caller, handle)).await,
            None => self.core.or_put_off(self.core.commit(caller, handle, offset, count)).await,
        }
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.core.may_change()?;
        let (core, caller, set) = (self.core.clone(), caller.clone(), *set);
        let (directory, name) = (*directory, name.clone());
        self.run_to_completion(async move {
            let size = set.size.filter(|_| how == CreateHow::Unchecked);
            let cut = core.cut_named(&caller, &directory, &name, size).await;
            if size.is_some() {
                core.sync_journal().await;
            }
            let make = core.below.create(&caller, &directory, &name, how, &set);
            let since = core.policy.event();
            let mut created = core.make(&directory, &name, make).await?;
            if let Some(cut) = cut.filter(|cut| cut.is_of(&created.node.handle)) {
                cut.done();
            }
            if let Some(size) = size {
                core.was_cut(&core.object(&created.node.handle), size);
            }
            core.written_created(since, &mut created);
            Ok(created)
        })
        .await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        self.core.may_change()?;
        self.core.make_directory(caller, directory, name, set).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        self.core.may_change()?;
        self.core.make(directory, name, self.core.below.symlink(caller, directory, name, target, set)).await
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
        self.core.may_change()?;
        let make = self.core.below.mknod(caller, directory, name, file_type, device, set);
        self.core.make(directory, name, make).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller, directory, name) = (self.core.clone(), caller.clone(), *directory, name.clone());
        self.run_to_completion(async move {
            let victim = core.victim(&caller, &directory, &name).await;
            let hold = core.before_unlink(&directory, &name).await;
            let remove = core.below.remove(&caller, &directory, &name);
            let removed = core.remove(&directory, &name, victim, remove).await?;
            hold.into_iter().for_each(Hold::gone);
            Ok(removed)
        })
        .await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.core.may_change()?;
        self.core.rmdir(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.core.may_change()?;
        let (core, caller) = (self.core.clone(), caller.clone());
        let (from, from_name, to, to_name) = (*from, from_name.clone(), *to, to_name.clone());
        self.run_to_completion(async move {
            core.before_rename(&caller, (&from, &from_name), &to_name).await?;
            let hold = core.before_unlink(&to, &to_name).await;
            let renamed = core.rename(&caller, (&from, &from_name), (&to, &to_name)).await?;
            hold.into_iter().for_each(Hold::gone);
            Ok(renamed)
        })
        .await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.core.may_change()?;
        let (core, caller, file) = (self.core.clone(), caller.clone(), *file);
        let (directory, name) = (*directory, name.clone());
        self.run_to_completion(async move {
            core.before_link(&file, &name).await?;
            let since = core.policy.event();
            let mut created = core.link(&caller, &file, &directory, &name).await?;
            core.written_created(since, &mut created);
            Ok(created)
        })
        .await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let online = async {
            let since = self.core.policy.event();
            let mut listing = self.core.readdir(caller, directory, part).await?;
            self.core.written_listing(since, &mut listing);
            Ok(listing)
        };
        let known = || self.core.offline_readdir(caller, directory, &part).map(Ok);
        let listing = self.core.or_offline(online, known).await?;
        self.core.recorder.object(directory, || Use::Listed);
        Ok(listing)
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.core.counters.other.bump();
        let ask = async {
            let stat = self.core.below.fsstat(caller, handle).await?;
            self.core.link.learn_fsstat(stat);
            Ok(stat)
        };
        self.core.or_offline(ask, || self.core.offline_fsstat().map(Ok)).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.core.counters.other.bump();
        let ask = async {
            let limits = self.core.below.limits(caller, handle).await?;
            self.core.learn_limits(limits);
            Ok(limits)
        };
        self.core.or_offline(ask, || self.core.link.limits().map(Ok)).await
    }

    fn unanswered_since(&self) -> Option<tokio::sync::watch::Receiver<vfs::UnansweredSince>> {
        self.core.below.unanswered_since()
    }

    async fn shutdown(&self) {
        if let Some(prefetch) = &self.core.prefetch {
            prefetch.end().await;
            self.core.flush_companions(true);
        }
        self.core.flush_all_writes().await;
        self.core.below.prepare_shutdown();
        self.core.return_unused().await;
        self.finish().await;
        self.core.below.shutdown().await;
    }

    fn prepare_shutdown(&self) {
        if let Some(prefetch) = &self.core.prefetch {
            prefetch.stop();
        }
    }
}

#[async_trait]
impl Opens for Cache {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        if !self.core.is_away() {
            self.core.may_open(request)?;
        }
        if request.name.is_none() {
            self.core.is_not_dropped(&request.handle)?;
        }
        let online = async {
            let since = self.core.policy.event();
            let mut opened = self.core.open(caller, request).await?;
            self.core.tell_opener_if_lost(caller, request, &opened).await?;
            self.core.written_opened(since, caller, &mut opened).await;
            Ok(opened)
        };
        let before = self.core.prove_named(caller, request);
        let known = || {
            let opened = self.core.offline_open(caller, request);
            opened.or_else(|| self.core.may_open(request).err().map(Err))
        };
        // A file may have been made, and a client that asks again would find it there.
        let must_wait = request.create.is_some() && self.core.options.puts_off && !self.core.puts_off();
        let opened =
            if must_wait { online.await } else { self.core.or_offline_after(online, before, known).await };
        match (&opened, &request.name) {
            (Ok(opened), _) if request.access.contains(Share::READ) && request.create.is_none() => {
                self.core.recorder.object(&opened.handle, || Use::Opened);
            }
            (Err(error), Some(name)) if error.status == Status::NoEnt => {
                self.core.recorder.absent(&request.handle, name);
            }
            _ => {}
        }
        opened
    }

    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        let flushed =
            if access.contains(Share::WRITE) { Ok(()) } else { self.core.flush_at_close(caller, open).await };
        self.core.downgrade(open, access, deny).await?;
        flushed
    }

    async fn flush(&self, caller: &Caller, open: OpenId) -> Result<()> {
        if self.core.delayed.as_ref().is_none_or(|delayed| delayed.options.shared) {
            return Err(Status::NotSupp.into());
        }
        self.core.flush_at_close(caller, open).await
    }

    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        let flushed = self.core.flush_at_end(caller, open).await;
        self.core.close(caller, open).await?;
        flushed
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.core.lock(caller, open, request).await
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.core.unlock(caller, open, owner, range).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.core.or_put_off(self.core.test(caller, handle, lock)).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.core.holds_locks(open, owner)
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl Leases for Cache {
    fn callbacks(&self) -> Option<Callbacks> {
        self.core.above.take_callbacks()
    }

    async fn returned(&self, _: &Caller, lease: LeaseId) -> Result<()> {
        self.core.returned_above(lease);
        Ok(())
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        let known = || {
            let accessed = self.core.offline_access(caller, directory, asked)?;
            Some(Ok(Delegated { accessed, lease: None }))
        };
        self.core.or_offline(self.core.delegate(caller, directory, asked), known).await
    }

    async fn end_reclaim(&self) {
        self.core.end_reclaim().await;
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}

#[async_trait]
impl Extended for Cache {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        self.core.or_put_off(self.core.acl(caller, handle)).await
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller, handle, acl) = (self.core.clone(), caller.clone(), *handle, acl.clone());
        self.run_to_completion(async move { core.set_acl(&caller, &handle, &acl).await }).await
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        self.core.or_put_off(self.core.getxattr(caller, handle, name)).await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller, handle, name) = (self.core.clone(), caller.clone(), *handle, name.clone());
        self.run_to_completion(async move { core.setxattr(&caller, &handle, &name, value, how).await }).await
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        self.core.or_put_off(self.core.listxattrs(caller, handle, cookie, bytes)).await
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller, handle, name) = (self.core.clone(), caller.clone(), *handle, name.clone());
        self.run_to_completion(async move { core.removexattr(&caller, &handle, &name).await }).await
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        _: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        self.core.or_put_off(self.core.seek(caller, handle, offset, what)).await
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller) = (self.core.clone(), caller.clone());
        self.run_to_completion(async move { core.allocate(&caller, at, length).await }).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller) = (self.core.clone(), caller.clone());
        self.run_to_completion(async move { core.deallocate(&caller, at, length).await }).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        self.core.may_change()?;
        let (core, caller) = (self.core.clone(), caller.clone());
        self.run_to_completion(async move { core.copy(&caller, from, to, count).await }).await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        self.core.may_change()?;
        let (core, caller) = (self.core.clone(), caller.clone());
        self.run_to_completion(async move { core.clone_range(&caller, from, to, count).await }).await
    }
}

#[async_trait]
impl LocalView for Cache {
    fn believed_until(&self, handle: &Handle) -> Option<Instant> {
        self.core.believed_until(handle)
    }

    fn names_doubted(&self, directory: &Handle) -> u64 {
        self.core.names_doubted(directory)
    }

    async fn complete_file(&self, caller: &Caller, open: OpenId) -> Option<CompleteFile> {
        let complete = self.core.complete_file(caller, open)?;
        if let Ok(file) = self.core.opened_object(open) {
            // The kernel reads it without asking.
            self.core.recorder.read(&file.handle, 0, complete.attributes.size);
        }
        Some(complete)
    }

    fn is_remembered(&self, directory: &Handle, name: &Name) -> Option<bool> {
        Some(self.core.is_remembered(directory, name))
    }
}
