//! Opens, and the leases that come with them.
//!
//! The layer above decides about share reservations and locks among its clients; this module stores the
//! denied access and grants every lock. Nobody else can change a file, so each lease lasts until it is
//! returned, and nothing has to be remembered of it.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use vfs::{
    AccessMask, Adopted, Callbacks, Caller, Delegated, Handle, HolderId, Lease, LeaseId, LeaseKind, Leases,
    Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner, Result, Share, StateidBasis,
    Status, Want, Wcc,
};

use crate::Synthetic;
use crate::filesystem::{owner, rights};
use crate::tree::{Id, Tree};

/// An open.
pub(crate) struct Open {
    file: Id,
    holder: Option<HolderId>,
    owner: Owner,
    access: Share,
    deny: Share,
}

impl Tree {
    /// Does any client have this file open?
    pub(crate) fn is_open(&self, file: Id) -> bool {
        let first = (file, None, Owner(Bytes::new()));
        self.open_of.range(first..).next().is_some_and(|((of, _, _), _)| *of == file)
    }

    /// May the data of a file be read or written under this state?
    ///
    /// # Errors
    /// `BadStateId` if the basis names no open of this file, `OpenMode`, and those of
    /// [`Tree::check_regular`].
    pub(crate) fn check_basis(&self, id: Id, by: StateidBasis, access: Share) -> Result<(), Status> {
        if let StateidBasis::Open(open) = by {
            let open = self.opens.get(&open).filter(|open| open.file == id).ok_or(Status::BadStateId)?;
            if !open.access.contains(access) {
                return Err(Status::OpenMode);
            }
        }
        self.check_regular(id)
    }

    fn open(&mut self, caller: &Caller, at: Id, request: &OpenRequest) -> Result<Opened, Status> {
        // Before a file is made: a file that was made but not opened would block the next attempt.
        if self.opens.len() >= self.options.opens_max {
            return Err(Status::Resource);
        }
        let ((file, created), directory) = match (&request.name, &request.create) {
            (None, None) => ((at, false), Wcc::default()),
            (None, Some(_)) => return Err(Status::Inval),
            (Some(name), None) => self.around(at, |tree| {
                let found = tree.find(at, name)?.ok_or(Status::NoEnt)?;
                Ok((found, false))
            })?,
            (Some(name), Some((how, set))) => {
                self.around(at, |tree| tree.create(owner(caller), at, name, (*how, set)))?
            }
        };
        self.check_regular(file)?;
        let attributes = self.attributes(file)?;
        let asked = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
        let kind = match request.want {
            Want::None => None,
            Want::Read => Some(LeaseKind::Read),
            Want::Any | Want::Write => Some(LeaseKind::Write),
        };
        let lease = kind.map(|kind| self.grant(attributes.change, kind));
        let id = self.enter_open(caller, file, request);
        Ok(Opened {
            id,
            handle: self.node(file)?.handle,
            attributes,
            lease,
            directory,
            created,
            granted: Some(rights(&attributes) & asked),
            directory_lease: None,
            read: None,
        })
    }

    /// Enters an open, or extends the one that this owner has.
    fn enter_open(&mut self, caller: &Caller, file: Id, request: &OpenRequest) -> OpenId {
        let key = (file, caller.holder, request.owner.clone());
        if let Some((id, open)) = self.open_of.get(&key).and_then(|id| Some((*id, self.opens.get_mut(id)?))) {
            open.access |= request.access;
            open.deny |= request.deny;
            return id;
        }
        let id = OpenId(self.number());
        let (owner, access, deny) = (request.owner.clone(), request.access, request.deny);
        self.open_of.insert(key, id);
        self.opens.insert(id, Open { file, holder: caller.holder, owner, access, deny });
        id
    }

    fn downgrade(&mut self, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        let open = self.opens.get_mut(&id).ok_or(Status::BadStateId)?;
        if access.is_empty() || !open.access.contains(access) || !open.deny.contains(deny) {
            return Err(Status::Inval);
        }
        (open.access, open.deny) = (access, deny);
        Ok(())
    }

    fn close(&mut self, id: OpenId) -> Result<(), Status> {
        let Open { file, holder, owner, .. } = self.opens.remove(&id).ok_or(Status::BadStateId)?;
        self.open_of.remove(&(file, holder, owner));
        self.forget_if_unused(file);
        Ok(())
    }

    /// A lease on an object at this change. It reserves no space, so a writer must not delay data that the
    /// overlay may have no space for.
    fn grant(&mut self, change: u64, kind: LeaseKind) -> Lease {
        Lease { id: LeaseId(self.number()), kind, until: None, change, space_limit: 0 }
    }
}

#[async_trait]
impl Opens for Synthetic {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        self.with(&request.handle, |tree, at| tree.open(caller, at, request))
    }

    async fn downgrade(&self, _: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        Ok(self.tree.lock().downgrade(open, access, deny)?)
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into()) // no write is delayed
    }

    async fn close(&self, _: &Caller, open: OpenId) -> Result<()> {
        Ok(self.tree.lock().close(open)?)
    }

    async fn lock(&self, _: &Caller, open: OpenId, _: &LockRequest) -> Result<Locked> {
        self.tree.lock().opens.get(&open).ok_or(Status::BadStateId)?;
        Ok(Locked::Granted)
    }

    async fn unlock(&self, _: &Caller, open: OpenId, _: &Owner, _: (u64, u64)) -> Result<()> {
        self.tree.lock().opens.get(&open).ok_or(Status::BadStateId)?;
        Ok(())
    }

    async fn test(&self, _: &Caller, handle: &Handle, _: &Lock) -> Result<Option<Lock>> {
        self.with(handle, |_, _| Ok(None))
    }

    fn holds_locks(&self, _: OpenId, _: &Owner) -> bool {
        false
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        let tree = self.tree.lock();
        tree.opens.len() < tree.options.opens_max
    }
}

#[async_trait]
impl Leases for Synthetic {
    fn callbacks(&self) -> Option<Callbacks> {
        None
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn end_reclaim(&self) {}

    async fn returned(&self, _: &Caller, _: LeaseId) -> Result<()> {
        Ok(())
    }

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }

    async fn delegate(&self, _: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.with(directory, |tree, id| {
            let accessed = tree.accessed(id, asked)?;
            let attributes = tree.attributes(id)?;
            let lease = attributes.is_dir().then(|| tree.grant(attributes.change, LeaseKind::Read));
            Ok(Delegated { accessed, lease })
        })
    }
}
