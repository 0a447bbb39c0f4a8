//! The layer: each operation goes to the layer below, and is recorded when it has ended.
//!
//! Operations on opens and leases have no file in their arguments, and change none. They pass through.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

use super::record::{Detail, Repeatable, Subject};
use super::{Audit, Export, Exported, Wait};

/// A file system whose operations are recorded.
pub struct Audited {
    below: Arc<dyn FileSystem>,
    audit: Arc<Audit>,
    export: Arc<Exported>,
}

impl Audited {
    /// Records the operations on a file system.
    pub fn new(below: Arc<dyn FileSystem>, audit: Arc<Audit>, export: Export) -> Audited {
        let number = audit.exports.fetch_add(1, Ordering::Relaxed);
        Audited { below, audit, export: Arc::new(Exported { number, of: export }) }
    }

    /// Records an operation that changes something.
    async fn changed<T>(
        &self,
        caller: &Caller,
        operation: &'static str,
        subject: Subject,
        result: Result<T>,
    ) -> Result<T> {
        if let Some(wait) = self.audit.record(&self.export, caller, operation, subject, outcome(&result)) {
            wait.await;
        }
        result
    }

    /// Records an operation that changes nothing, if all are recorded.
    async fn asked<T>(
        &self,
        caller: &Caller,
        operation: &'static str,
        subject: impl FnOnce() -> Subject,
        result: Result<T>,
    ) -> Result<T> {
        if self.audit.records_all() {
            self.changed(caller, operation, subject(), result).await
        } else {
            result
        }
    }

    /// Records an operation that is repeated often.
    fn repeated<T>(
        &self,
        caller: &Caller,
        operation: &'static str,
        (at, name): (&Handle, Option<&Name>),
        range: Option<(u64, u64)>,
        result: &Result<T>,
    ) -> Option<Wait> {
        let (client, user, export) = (caller.client, super::user(caller), &self.export);
        let result = outcome(result);
        let operation = Repeatable { client, user, operation, export, at, name, range, result };
        self.audit.wait(self.audit.queue.repeat(&operation))
    }
}

fn outcome<T>(result: &Result<T>) -> std::result::Result<(), Status> {
    result.as_ref().map(|_| ()).map_err(|error| error.status)
}

/// The answer of an operation that is not recorded most of the time: the future of the layer below itself, so
/// that a hit does not pay for another one. It is what `async_trait` makes of the method.
type Answer<'f, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'f>>;

#[async_trait]
impl FileSystem for Audited {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        self.below.root(caller).await
    }

    fn getattr<'l0, 'l1, 'l2, 'f>(
        &'l0 self,
        caller: &'l1 Caller,
        handle: &'l2 Handle,
    ) -> Answer<'f, Attributes>
    where
        'l0: 'f,
        'l1: 'f,
        'l2: 'f,
        Self: 'f,
    {
        if !self.audit.records_all() {
            return self.below.getattr(caller, handle);
        }
        Box::pin(async move {
            let result = self.below.getattr(caller, handle).await;
            if let Some(wait) = self.repeated(caller, "getattr", (handle, None), None, &result) {
                wait.await;
            }
            result
        })
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let result = self.below.setattr(caller, handle, set, guard).await;
        self.changed(caller, "setattr", Subject::of(handle).setting(set), result).await
    }

    fn access<'l0, 'l1, 'l2, 'f>(
        &'l0 self,
        caller: &'l1 Caller,
        handle: &'l2 Handle,
        asked: AccessMask,
    ) -> Answer<'f, Accessed>
    where
        'l0: 'f,
        'l1: 'f,
        'l2: 'f,
        Self: 'f,
    {
        if !self.audit.records_all() {
            return self.below.access(caller, handle, asked);
        }
        Box::pin(async move {
            let result = self.below.access(caller, handle, asked).await;
            if let Some(wait) = self.repeated(caller, "access", (handle, None), None, &result) {
                wait.await;
            }
            result
        })
    }

    fn lookup<'l0, 'l1, 'l2, 'l3, 'f>(
        &'l0 self,
        caller: &'l1 Caller,
        directory: &'l2 Handle,
        name: &'l3 Name,
        want: Want,
    ) -> Answer<'f, Looked>
    where
        'l0: 'f,
        'l1: 'f,
        'l2: 'f,
        'l3: 'f,
        Self: 'f,
    {
        if !self.audit.records_all() {
            return self.below.lookup(caller, directory, name, want);
        }
        Box::pin(async move {
            let result = self.below.lookup(caller, directory, name, want).await;
            if let Some(wait) = self.repeated(caller, "lookup", (directory, Some(name)), None, &result) {
                wait.await;
            }
            result
        })
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        let result = self.below.parent(caller, directory).await;
        self.asked(caller, "parent", || Subject::of(directory), result).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let result = self.below.readlink(caller, handle).await;
        self.asked(caller, "readlink", || Subject::of(handle), result).await
    }

    fn read<'l0, 'l1, 'l2, 'f>(
        &'l0 self,
        caller: &'l1 Caller,
        handle: &'l2 Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Answer<'f, Read>
    where
        'l0: 'f,
        'l1: 'f,
        'l2: 'f,
        Self: 'f,
    {
        if !self.audit.records_all() {
            return self.below.read(caller, handle, by, offset, count);
        }
        Box::pin(async move {
            let result = self.below.read(caller, handle, by, offset, count).await;
            let range = Some((offset, count.into()));
            if let Some(wait) = self.repeated(caller, "read", (handle, None), range, &result) {
                wait.await;
            }
            result
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
        let count = data.len();
        let result = self.below.write(caller, handle, by, offset, data, stability).await;
        let range = (offset, count as u64);
        if self.audit.records_all() {
            if let Some(wait) = self.repeated(caller, "write", (handle, None), Some(range), &result) {
                wait.await;
            }
            return result;
        }
        // The open has been recorded, if there is one.
        let is_stateless = matches!(by, StateidBasis::Anonymous);
        if !(is_stateless && self.audit.write_is_due(caller, handle)) {
            return result;
        }
        let (offset, count) = range;
        let subject = Subject::of(handle).with(Detail::Range { offset, count });
        self.changed(caller, "write", subject, result).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        let result = self.below.commit(caller, handle, offset, count).await;
        self.asked(caller, "commit", || Subject::of(handle), result).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let result = self.below.create(caller, directory, name, how, set).await;
        self.changed(caller, "create", Subject::named(directory, name).setting(set), result).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created> {
        let result = self.below.mkdir(caller, directory, name, set, want).await;
        self.changed(caller, "mkdir", Subject::named(directory, name).setting(set), result).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let result = self.below.symlink(caller, directory, name, target, set).await;
        self.changed(
            caller,
            "symlink",
            Subject::named(directory, name).with(Detail::Target(target.into())),
            result,
        )
        .await
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
        let result = self.below.mknod(caller, directory, name, file_type, device, set).await;
        self.changed(caller, "mknod", Subject::named(directory, name).setting(set), result).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let result = self.below.remove(caller, directory, name).await;
        // REMOVE of version 4 is for directories, too: its front tries both, and the second try is recorded.
        if result.as_ref().is_err_and(|error| error.status == Status::IsDir) {
            return result;
        }
        self.changed(caller, "remove", Subject::named(directory, name), result).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let result = self.below.rmdir(caller, directory, name).await;
        self.changed(caller, "rmdir", Subject::named(directory, name), result).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let result = self.below.rename(caller, from, from_name, to, to_name).await;
        self.changed(caller, "rename", Subject::named(from, from_name).to(to, Some(to_name)), result).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let result = self.below.link(caller, file, directory, name).await;
        self.changed(caller, "link", Subject::of(file).to(directory, Some(name)), result).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let result = self.below.readdir(caller, directory, part).await;
        self.asked(caller, "readdir", || Subject::of(directory), result).await
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.below.fsstat(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.below.limits(caller, handle).await
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        self.below.unanswered_since()
    }

    fn prepare_shutdown(&self) {
        self.below.prepare_shutdown();
    }

    async fn shutdown(&self) {
        self.below.shutdown().await;
    }
}

#[async_trait]
impl Opens for Audited {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let result = self.below.open(caller, request).await;
        let changes = request.access.contains(Share::WRITE) || request.create.is_some();
        if !(changes || self.audit.records_all()) {
            return result;
        }
        let mut subject = match &request.name {
            Some(name) => Subject::named(&request.handle, name),
            None => Subject::of(&request.handle),
        };
        let created = result.as_ref().is_ok_and(|opened| opened.created);
        subject = subject.with(Detail::Open { access: request.access, created });
        self.changed(caller, "open", subject, result).await
    }

    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.below.downgrade(caller, open, access, deny).await
    }

    async fn flush(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.below.flush(caller, open).await
    }

    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.below.close(caller, open).await
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.below.lock(caller, open, request).await
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.below.unlock(caller, open, owner, range).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.below.test(caller, handle, lock).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.below.holds_locks(open, owner)
    }

    async fn free_capacity(&self, caller: &Caller) -> bool {
        self.below.free_capacity(caller).await
    }
}

#[async_trait]
impl Leases for Audited {
    fn callbacks(&self) -> Option<Callbacks> {
        self.below.callbacks()
    }

    fn adopted(&self) -> Adopted {
        self.below.adopted()
    }

    async fn end_reclaim(&self) {
        self.below.end_reclaim().await;
    }

    async fn returned(&self, caller: &Caller, lease: LeaseId) -> Result<()> {
        self.below.returned(caller, lease).await
    }

    async fn lease(
        &self,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
        term: Duration,
    ) -> Result<Option<Lease>> {
        self.below.lease(caller, handle, kind, term).await
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.below.delegate(caller, directory, asked).await
    }
}

#[async_trait]
impl Extended for Audited {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        let result = self.below.acl(caller, handle).await;
        self.asked(caller, "acl", || Subject::of(handle), result).await
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let result = self.below.set_acl(caller, handle, acl).await;
        self.changed(caller, "set_acl", Subject::of(handle), result).await
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        let result = self.below.getxattr(caller, handle, name).await;
        self.asked(caller, "getxattr", || Subject::of(handle).with(Detail::Attribute(name.clone())), result)
            .await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let result = self.below.setxattr(caller, handle, name, value, how).await;
        self.changed(caller, "setxattr", Subject::of(handle).with(Detail::Attribute(name.clone())), result)
            .await
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        let result = self.below.listxattrs(caller, handle, cookie, bytes).await;
        self.asked(caller, "listxattrs", || Subject::of(handle), result).await
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        let result = self.below.removexattr(caller, handle, name).await;
        self.changed(caller, "removexattr", Subject::of(handle).with(Detail::Attribute(name.clone())), result)
            .await
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        self.below.seek(caller, handle, by, offset, what).await
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let result = self.below.allocate(caller, at, length).await;
        self.changed(caller, "allocate", Subject::of(&at.handle), result).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let result = self.below.deallocate(caller, at, length).await;
        self.changed(caller, "deallocate", Subject::of(&at.handle), result).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        let result = self.below.copy(caller, from, to, count).await;
        self.changed(caller, "copy", Subject::of(&from.handle).to(&to.handle, None), result).await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        let result = self.below.clone_range(caller, from, to, count).await;
        self.changed(caller, "clone", Subject::of(&from.handle).to(&to.handle, None), result).await
    }
}

#[async_trait]
impl LocalView for Audited {
    fn believed_until(&self, handle: &Handle) -> Option<Instant> {
        self.below.believed_until(handle)
    }

    fn names_doubted(&self, directory: &Handle) -> u64 {
        self.below.names_doubted(directory)
    }

    async fn complete_file(&self, caller: &Caller, open: OpenId) -> Option<CompleteFile> {
        self.below.complete_file(caller, open).await
    }

    fn is_remembered(&self, directory: &Handle, name: &Name) -> Option<bool> {
        self.below.is_remembered(directory, name)
    }
}
