//! Opens, byte-range locks and leases on the directory.

use async_trait::async_trait;
use std::time::Duration;
use vfs::{
    AccessMask, Accessed, Adopted, Callbacks, Caller, Delegated, FileSystem, Handle, Lease, LeaseId,
    LeaseKind, Leases, Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner, Principal,
    Result, Share, Status,
};

use crate::opening::{self};
use crate::{LocalFs, workers};

#[async_trait]
impl Opens for LocalFs {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let node = self.node(&request.handle).await?;
        match self.try_open(caller, &node, request).await {
            Err(Status::Exist) if caller.resent => self.open_made_before(caller, &node, request).await,
            done => done.map_err(|status| self.failed(&node, status)),
        }
    }

    async fn downgrade(&self, _caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        Ok(self.tree.opens.downgrade(open, access, deny)?)
    }

    async fn close(&self, _caller: &Caller, open: OpenId) -> Result<()> {
        Ok(opening::close(&self.tree, open)?)
    }

    /// The layer above decides about locks among clients; processes of this machine do not see them.
    async fn lock(&self, _caller: &Caller, open: OpenId, _request: &LockRequest) -> Result<Locked> {
        self.tree.opens.get(open)?;
        Ok(Locked::Granted)
    }

    async fn unlock(&self, _caller: &Caller, open: OpenId, _owner: &Owner, _range: (u64, u64)) -> Result<()> {
        self.tree.opens.get(open)?;
        Ok(())
    }

    async fn test(&self, _caller: &Caller, handle: &Handle, _lock: &Lock) -> Result<Option<Lock>> {
        self.tree.stat(&*self.node(handle).await?)?;
        Ok(None)
    }

    /// This layer cannot free anything; it reports whether there is capacity by now.
    async fn free_capacity(&self, caller: &Caller) -> bool {
        self.tree.opens.capacity(&self.tree.descriptors, caller.holder, None).is_ok()
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    fn holds_locks(&self, _: OpenId, _: &Owner) -> bool {
        false
    }
}

#[async_trait]
impl Leases for LocalFs {
    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        let accessed = self.access(caller, directory, asked).await?;
        let node = self.node(directory).await?;
        let lease = if node.is_dir() { self.tree.leases.grant_directory(&node) } else { None };
        let Some(lease) = lease else { return Ok(Delegated { accessed, lease }) };
        // As it is since it is watched.
        let attributes = self.tree.stat(&node)?.attributes(node.mount.fsid);
        let lease = Some(Lease { change: attributes.change, ..lease });
        Ok(Delegated { accessed: Accessed { attributes: Some(attributes), ..accessed }, lease })
    }

    fn callbacks(&self) -> Option<Callbacks> {
        self.tree.leases.callbacks()
    }

    async fn returned(&self, _caller: &Caller, lease: LeaseId) -> Result<()> {
        let tree = self.tree.clone();
        let done = workers::run(Principal::Machine, move || {
            tree.leases.returned(&tree, lease);
            Ok::<_, Status>(())
        });
        Ok(done.await?)
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn end_reclaim(&self) {}

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}
