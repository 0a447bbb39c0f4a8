//! Locks, for which the layer above opens a file by its handle. The protocol has no opens: such an open costs
//! a GETATTR, and registers the file with the client of the lock manager.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use vfs::{
    AccessMask, Adopted, Callbacks, Caller, Delegated, FileSystem, Handle, Lease, LeaseId, LeaseKind, Leases,
    Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner, Result, Share, Status, Wcc,
};

use super::Nfs3;
use crate::nlm::LockManager;

impl Nfs3 {
    fn lock_manager(&self) -> Result<&Arc<LockManager>> {
        self.locks.as_ref().ok_or(Status::NotSupp.into())
    }
}

#[async_trait]
impl Opens for Nfs3 {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        if request.name.is_some() {
            return Err(Status::NotSupp.into());
        }
        let locks = self.lock_manager()?;
        let attributes = self.getattr(caller, &request.handle).await?;
        Ok(Opened {
            id: locks.open(request.handle)?,
            handle: request.handle,
            attributes,
            lease: None,
            directory: Wcc::default(),
            created: false,
            granted: None,
            directory_lease: None,
            read: None,
        })
    }

    async fn downgrade(&self, _: &Caller, _: OpenId, _: Share, _: Share) -> Result<()> {
        Ok(())
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    async fn close(&self, _: &Caller, open: OpenId) -> Result<()> {
        self.lock_manager()?.close(open).await;
        Ok(())
    }

    async fn lock(&self, caller: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.lock_manager()?.lock(caller, open, request).await
    }

    async fn unlock(&self, caller: &Caller, open: OpenId, owner: &Owner, range: (u64, u64)) -> Result<()> {
        self.lock_manager()?.unlock(caller, open, owner, range).await
    }

    async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.lock_manager()?.test(caller, handle, lock).await
    }

    fn holds_locks(&self, open: OpenId, owner: &Owner) -> bool {
        self.locks.as_ref().is_some_and(|locks| locks.holds(open, owner))
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl Leases for Nfs3 {
    fn callbacks(&self) -> Option<Callbacks> {
        None
    }

    fn adopted(&self) -> Adopted {
        let opens = self.locks.as_ref().map(|locks| locks.adopted()).unwrap_or_default();
        Adopted { opens, leases: Vec::new() }
    }

    async fn end_reclaim(&self) {}

    async fn returned(&self, _: &Caller, _: LeaseId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        let accessed = self.access(caller, directory, asked).await?;
        Ok(Delegated { accessed, lease: None })
    }
}
