//! The operations of the interface, each with the groups that matter for its objects.
//!
//! Locks go with the groups that matter for the open file: a lock manager opens it once more. Other
//! operations on opens pass through: the origin has decided when it was opened. So do
//! operations that need no right.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Acl, Adopted, Attributes, Callbacks, Caller, Commit, CompleteFile, Copied,
    CreateHow, Created, Delegated, Device, DirectoryLease, Extended, Extent, FileSystem, FileType, FsLimits,
    FsStat, Handle, Lease, LeaseId, LeaseKind, Leases, ListedXattrs, Listing, LocalView, Lock, LockRequest,
    Locked, Looked, Name, Node, OpenId, OpenRequest, Opened, Opens, Owner, Place, Read, ReadDir, Renamed,
    Result, SetAttributes, Share, Sought, Stability, StateidBasis, Timestamp, UnansweredSince, Want, Wcc,
    Written, XattrHow, XattrName,
};

use super::{Concerns, Sixteen, after, is_in, many};
use crate::counts::ProcedureCounts;
use crate::origin::{Follow, Holdings, Origin};
use crate::replica::Replica;
use crate::url::Url;

/// The attributes of the object that a reply shows, and the lease that it brings.
struct Shown<'r> {
    attributes: Option<&'r Attributes>,
    lease: Option<LeaseId>,
}

impl<'r> Shown<'r> {
    fn alone(attributes: Option<&'r Attributes>) -> Shown<'r> {
        Shown { attributes, lease: None }
    }

    /// In a directory. The attributes under its lease are the latest.
    fn of_directory(attributes: Option<&'r Attributes>, held: Option<&'r DirectoryLease>) -> Shown<'r> {
        Shown {
            attributes: held.map(|held| &held.attributes).or(attributes),
            lease: held.map(|held| held.lease.id),
        }
    }
}

fn shown_by_lookup(looked: &Looked) -> Shown<'_> {
    Shown::of_directory(looked.directory.as_ref(), looked.directory_lease.as_ref())
}

fn shown_by_readdir(listing: &Listing) -> Shown<'_> {
    Shown::of_directory(listing.directory.as_ref(), listing.directory_lease.as_ref())
}

fn shown_by_delegate(delegated: &Delegated) -> Shown<'_> {
    let lease = delegated.lease.map(|lease| lease.id);
    Shown { attributes: delegated.accessed.attributes.as_ref(), lease }
}

impl<O: FileSystem + ?Sized> Sixteen<O> {
    /// A call whose success is believed for its caller from then on. If the reply shows a group of the object
    /// that the caller has and that was not sent, the origin decides again with this group.
    async fn confirmed<T, F: Future<Output = Result<T>> + Send>(
        &self,
        caller: &Caller,
        object: &Handle,
        shown: impl Fn(&T) -> Shown<'_> + Send + Sync,
        call: impl Fn(Caller) -> F + Send + Sync,
    ) -> Result<T> {
        let Some(all) = many(caller) else { return call(caller.clone()).await };
        let asked = Instant::now();
        let objects = [*object];
        let (result, sent) = self.decided(caller, all, Concerns::of(&objects), &call).await;
        let Ok(Shown { attributes: Some(attributes), lease }) = result.as_ref().map(&shown) else {
            return result;
        };
        let group = attributes.gid;
        self.learn(object, attributes, asked);
        if !all.groups.contains(&group) || is_in(&sent, group) {
            return result;
        }
        if let Some(lease) = lease {
            // Nobody will hear of it. If it has ended already, that is as good.
            let _ = self.below.returned(caller, lease).await;
        }
        self.with_groups(caller, Concerns::gives(&objects, Some(group)), call).await
    }

    /// A call on an open, with the groups that matter for its file.
    async fn on_open<T, F: Future<Output = Result<T>> + Send>(
        &self,
        caller: &Caller,
        open: OpenId,
        call: impl Fn(Caller) -> F + Send + Sync,
    ) -> Result<T> {
        let file = self.opens.lock().file(open);
        self.with_groups(caller, Concerns::of(file.as_slice()), call).await
    }

    /// The object of a name, if the caller has many groups. Its group matters then, too.
    async fn target(&self, caller: &Caller, directory: &Handle, name: &Name) -> Option<Handle> {
        many(caller)?;
        self.lookup(caller, directory, name, Want::None).await.ok().map(|looked| looked.node.handle)
    }

    /// A call that makes an object in a directory.
    async fn made<F: Future<Output = Result<Created>> + Send>(
        &self,
        caller: &Caller,
        objects: &[Handle],
        set: &SetAttributes,
        call: impl Fn(Caller) -> F + Send + Sync,
    ) -> Result<Created> {
        let asked = Instant::now();
        let created = self.with_groups(caller, Concerns::gives(objects, set.gid), call).await?;
        let directory = objects.first().map(|directory| (directory, after(&created.directory)));
        let node = (&created.node.handle, created.node.attributes.as_ref());
        self.note(caller, asked, directory.into_iter().chain([node]));
        Ok(created)
    }
}

#[async_trait]
impl<O: FileSystem + ?Sized> FileSystem for Sixteen<O> {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        self.below.root(caller).await
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let asked = Instant::now();
        let attributes = self.below.getattr(caller, handle).await?;
        self.note(caller, asked, [(handle, Some(&attributes))]);
        Ok(attributes)
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let asked = Instant::now();
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.setattr(&caller, handle, set, guard).await };
        let wcc = self.with_groups(caller, Concerns::gives(&objects, set.gid), call).await?;
        self.note(caller, asked, [(handle, after(&wcc))]);
        Ok(wcc)
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        let below = &self.below;
        let call = |caller| async move { below.access(&caller, handle, asked).await };
        self.confirmed(caller, handle, |accessed: &Accessed| Shown::alone(accessed.attributes.as_ref()), call)
            .await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name, want: Want) -> Result<Looked> {
        let asked = Instant::now();
        let below = &self.below;
        let call = |caller| async move { below.lookup(&caller, directory, name, want).await };
        let looked = self.confirmed(caller, directory, shown_by_lookup, call).await?;
        self.note(caller, asked, [(&looked.node.handle, looked.node.attributes.as_ref())]);
        Ok(looked)
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        let (objects, below) = ([*directory], &self.below);
        let call = |caller| async move { below.parent(&caller, directory).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.readlink(&caller, handle).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        let below = &self.below;
        let call = |caller| async move { below.read(&caller, handle, by, offset, count).await };
        self.confirmed(caller, handle, |read: &Read| Shown::alone(read.attributes.as_ref()), call).await
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
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| {
            let data = data.clone();
            async move { below.write(&caller, handle, by, offset, data, stability).await }
        };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.commit(&caller, handle, offset, count).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let mut objects = vec![*directory];
        if how == CreateHow::Unchecked {
            objects.extend(self.target(caller, directory, name).await);
        }
        let below = &self.below;
        let call = |caller| async move { below.create(&caller, directory, name, how, set).await };
        self.made(caller, &objects, set, call).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
        want: Want,
    ) -> Result<Created> {
        let below = &self.below;
        let call = |caller| async move { below.mkdir(&caller, directory, name, set, want).await };
        self.made(caller, &[*directory], set, call).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        let below = &self.below;
        let call = |caller| async move { below.symlink(&caller, directory, name, target, set).await };
        self.made(caller, &[*directory], set, call).await
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
        let below = &self.below;
        let call =
            |caller| async move { below.mknod(&caller, directory, name, file_type, device, set).await };
        self.made(caller, &[*directory], set, call).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let (objects, below) = ([*directory], &self.below);
        let call = |caller| async move { below.remove(&caller, directory, name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let (objects, below) = ([*directory], &self.below);
        let call = |caller| async move { below.rmdir(&caller, directory, name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        let mut objects = vec![*from, *to];
        if from != to {
            // A directory that gets another parent is changed itself.
            objects.extend(self.target(caller, from, from_name).await);
        }
        let below = &self.below;
        let call = |caller| async move { below.rename(&caller, from, from_name, to, to_name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let (objects, below) = ([*directory, *file], &self.below);
        let call = |caller| async move { below.link(&caller, file, directory, name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let asked = Instant::now();
        let below = &self.below;
        let call = |caller| async move { below.readdir(&caller, directory, part).await };
        let listing = self.confirmed(caller, directory, shown_by_readdir, call).await?;
        let nodes = listing.entries.iter().filter_map(|entry| entry.node.as_ref());
        let nodes = nodes.map(|node| (&node.handle, node.attributes.as_ref()));
        self.note(caller, asked, nodes);
        Ok(listing)
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
impl<O: FileSystem + ?Sized> Opens for Sixteen<O> {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let mut objects = vec![request.handle];
        if let Some(name) = &request.name {
            objects.extend(self.target(caller, &request.handle, name).await);
        }
        let asked = Instant::now();
        let named = request.create.as_ref().and_then(|(_, set)| set.gid);
        let below = &self.below;
        let call = |caller| async move { below.open(&caller, request).await };
        let mut opened = self.with_groups(caller, Concerns::gives(&objects, named), call).await?;
        if many(caller).is_some() {
            // The origin was sent sixteen groups, and another one may grant more.
            opened.granted = None;
        }
        self.opens.lock().opened(opened.id, opened.handle);
        self.note(caller, asked, [(&opened.handle, Some(&opened.attributes))]);
        Ok(opened)
    }

    async fn downgrade(&self, caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.below.downgrade(caller, open, access, deny).await
    }

    async fn flush(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.below.flush(caller, open).await
    }

    async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        self.opens.lock().closed(open);
        self.below.close(caller, open).await
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        let below = &self.below;
        self.on_open(caller, open, |caller| async move { below.lock(&caller, open, request).await }).await
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        let below = &self.below;
        let call = |caller| async move { below.unlock(&caller, open, owner, range).await };
        self.on_open(caller, open, call).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.test(&caller, handle, lock).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.below.holds_locks(open, owner)
    }

    async fn free_capacity(&self, caller: &Caller) -> bool {
        self.below.free_capacity(caller).await
    }
}

#[async_trait]
impl<O: FileSystem + ?Sized> Leases for Sixteen<O> {
    fn callbacks(&self) -> Option<Callbacks> {
        self.below.callbacks()
    }

    fn adopted(&self) -> Adopted {
        let adopted = self.below.adopted();
        let mut opens = self.opens.lock();
        for open in &adopted.opens {
            opens.opened(open.id, open.handle);
        }
        adopted
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
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.lease(&caller, handle, kind, term).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        let below = &self.below;
        let call = |caller| async move { below.delegate(&caller, directory, asked).await };
        self.confirmed(caller, directory, shown_by_delegate, call).await
    }
}

#[async_trait]
impl<O: FileSystem + ?Sized> Extended for Sixteen<O> {
    async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.acl(&caller, handle).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.set_acl(&caller, handle, acl).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.getxattr(&caller, handle, name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| {
            let value = value.clone();
            async move { below.setxattr(&caller, handle, name, value, how).await }
        };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.listxattrs(&caller, handle, cookie, bytes).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        let (objects, below) = ([*handle], &self.below);
        let call = |caller| async move { below.removexattr(&caller, handle, name).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn seek(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        what: Extent,
    ) -> Result<Sought> {
        let below = &self.below;
        let call = |caller| async move { below.seek(&caller, handle, by, offset, what).await };
        self.confirmed(caller, handle, |sought: &Sought| Shown::alone(sought.attributes.as_ref()), call).await
    }

    async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let (objects, below) = ([at.handle], &self.below);
        let call = |caller| async move { below.allocate(&caller, at, length).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let (objects, below) = ([at.handle], &self.below);
        let call = |caller| async move { below.deallocate(&caller, at, length).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        let (objects, below) = ([from.handle, to.handle], &self.below);
        let call = |caller| async move { below.copy(&caller, from, to, count).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }

    async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        let (objects, below) = ([from.handle, to.handle], &self.below);
        let call = |caller| async move { below.clone_range(&caller, from, to, count).await };
        self.with_groups(caller, Concerns::of(&objects), call).await
    }
}

#[async_trait]
impl<O: FileSystem + ?Sized> LocalView for Sixteen<O> {
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

impl<O: Origin + ?Sized> Origin for Sixteen<O> {
    fn url(&self) -> &Url {
        self.below.url()
    }

    fn version(&self) -> &'static str {
        self.below.version()
    }

    fn server(&self) -> SocketAddr {
        self.below.server()
    }

    fn root_handle(&self) -> Handle {
        self.below.root_handle()
    }

    fn lease_time(&self) -> Option<Duration> {
        self.below.lease_time()
    }

    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        self.below.calls()
    }

    fn nonsense_heard(&self) -> u64 {
        self.below.nonsense_heard()
    }

    fn held(&self) -> Holdings {
        self.below.held()
    }

    fn has_opens(&self) -> bool {
        self.below.has_opens()
    }

    fn keep_record(&self, path: &Path) -> std::io::Result<()> {
        self.below.keep_record(path)
    }

    fn replicate_record(&self, replica: Arc<dyn Replica>) {
        self.below.replicate_record(replica);
    }

    fn leave_nothing(&self) {
        self.below.leave_nothing();
    }

    fn holds_for_others(&self) {
        self.below.holds_for_others();
    }

    fn follow_referrals(&self, follow: Arc<Follow>) {
        self.below.follow_referrals(follow);
    }
}
