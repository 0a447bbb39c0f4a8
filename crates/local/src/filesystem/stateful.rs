//! Opens, byte-range locks and leases on the directory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use vfs::replay::{self, Made};
use vfs::{
    AccessMask, Accessed, Adopted, Callbacks, Caller, CreateHow, Delegated, FileSystem, FileType, Handle,
    Lease, LeaseId, LeaseKind, Leases, Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner,
    Principal, Result, Share, Status,
};

use crate::descriptors::Node;
use crate::opening::{self, ToMake};
use crate::{LocalFs, workers};

impl LocalFs {
    async fn try_open(
        &self,
        caller: &Caller,
        node: &Arc<Node>,
        request: &OpenRequest,
    ) -> Result<Opened, Status> {
        let (target, request, holder) = (node.clone(), request.clone(), caller.holder);
        let Some((how, set)) = request.create else {
            return self
                .work(caller, move |tree, principal| {
                    opening::open(tree, principal, holder, &target, &request)
                })
                .await;
        };
        let name = request.name.clone().ok_or(Status::Inval)?;
        let directory = node.clone();
        let (opened, synced) = self
            .change_names(caller, &[node], move |tree, principal, held| {
                let make = ToMake { directory: &target, name: &name, how, set: &set };
                let opened = opening::create(tree, principal, holder, &make, &request, held)?;
                let is_changed = opened.created;
                Ok((opened, is_changed.then(|| directory.clone())))
            })
            .await?;
        if let Err(status) = synced {
            // No client learns of the open. Another open of the file may have got the same lease meanwhile,
            // so the lease is recalled and not ended.
            if let Some(lease) = &opened.lease {
                self.tree.leases.recall(lease.id);
            }
            let _ = self.close(caller, opened.id).await;
            return Err(status);
        }
        Ok(opened)
    }

    /// A resent OPEN finds that its name exists. If the file is the one that the OPEN would create, the
    /// first transmission has created it, and the OPEN succeeds.
    async fn open_made_before(
        &self,
        caller: &Caller,
        directory: &Arc<Node>,
        request: &OpenRequest,
    ) -> Result<Opened> {
        let failed = self.failed(directory, Status::Exist);
        let (Some(name), Some((how, set))) = (&request.name, &request.create) else { return Err(failed) };
        // The verifier detects a resent exclusive create.
        if matches!(how, CreateHow::Exclusive(_)) {
            return Err(failed);
        }
        let made = Made::Node { file_type: FileType::Regular, set };
        let made = replay::made(self, caller, &directory.handle, name, failed, made).await?;
        let there = OpenRequest { handle: made.node.handle, name: None, create: None, ..request.clone() };
        let node = self.node(&there.handle).await?;
        let opened = self.try_open(caller, &node, &there).await?;
        Ok(Opened { created: true, directory: made.directory, ..opened })
    }
}

#[async_trait]
impl Opens for LocalFs {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let node = self.node(&request.handle).await?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.try_open(caller, &node, request).await {
                Err(Status::Exist) if caller.resent => {
                    return self.open_made_before(caller, &node, request).await;
                }
                // Another request removed the file after it was made or found: the name leads elsewhere now.
                Err(Status::Stale) if request.create.is_some() && attempts < opening::ATTEMPTS_MAX => {}
                done => return done.map_err(|status| self.failed(&node, status)),
            }
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
        // For an open that needs descriptors: whether the failed one does is not known.
        self.tree.opens.capacity(&self.tree.descriptors, caller.holder, (None, false)).is_ok()
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
        if !tree.leases.waits_at_return() {
            tree.leases.returned(&tree, lease);
            return Ok(());
        }
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
