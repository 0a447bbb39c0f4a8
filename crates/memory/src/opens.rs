//! Opens, and the leases that come with them.
//!
//! The layer above decides about share reservations and locks among its clients; this module stores the
//! denied access and grants every lock. Nobody else can change a file, so each lease lasts until it is
//! returned.

use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;
use vfs::{
    AccessMask, Adopted, Callbacks, Caller, Delegated, Handle, HolderId, Lease, LeaseId, LeaseKind, Leases,
    Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Opens, Owner, Principal, Result, Share,
    StateidBasis, Status, Want, Wcc,
};

use crate::Memory;
use crate::rights::{User, access_mask};
use crate::tree::{Id, Tree};

/// An open.
pub(crate) struct Open {
    file: Id,
    holder: Option<HolderId>,
    owner: Owner,
    /// The user whose rights were checked.
    principal: Principal,
    access: Share,
    deny: Share,
}

impl Tree {
    /// Does any client have this file open?
    pub(crate) fn is_open(&self, file: Id) -> bool {
        self.opens_of(file, None).next().is_some()
    }

    /// The opens of a file from this holder on.
    fn opens_of(&self, file: Id, holder: Option<HolderId>) -> impl Iterator<Item = &Open> {
        let first = (file, holder, Owner(Bytes::new()));
        let here = self.open_of.range(first..).take_while(move |((of, _, _), _)| *of == file);
        here.filter_map(|(_, id)| self.opens.get(id))
    }

    /// May the caller read or write the data of a file?
    ///
    /// # Errors
    /// `BadStateId` if the basis names no open of this file, `OpenMode`, `Access`, and those of
    /// [`Tree::data`].
    pub(crate) fn check_data(
        &self,
        caller: &Caller,
        id: Id,
        by: StateidBasis,
        access: Share,
    ) -> Result<(), Status> {
        if let StateidBasis::Open(open) = by {
            let open = self.opens.get(&open).filter(|open| open.file == id).ok_or(Status::BadStateId)?;
            self.data(id)?;
            return if open.access.contains(access) { Ok(()) } else { Err(Status::OpenMode) };
        }
        self.data(id)?;
        User::of(caller).check_data(&self.attributes(id)?, access)
    }

    /// As [`Tree::check_data`], for an operation whose protocol names no open: one that the caller has as
    /// this holder counts.
    pub(crate) fn check_write_somehow(&self, caller: &Caller, id: Id) -> Result<(), Status> {
        let Some(holder) = caller.holder else {
            return self.check_data(caller, id, StateidBasis::Anonymous, Share::WRITE);
        };
        let his = self.opens_of(id, Some(holder)).take_while(|open| open.holder == Some(holder));
        let writes = |open: &Open| open.access.contains(Share::WRITE) && open.principal == caller.principal;
        match self.check_data(caller, id, StateidBasis::Anonymous, Share::WRITE) {
            Err(Status::Access) if his.into_iter().any(writes) => Ok(()),
            checked => checked,
        }
    }

    fn open(&mut self, caller: &Caller, at: Id, request: &OpenRequest) -> Result<Opened, Status> {
        let user = User::of(caller);
        // Before a file is made: a file that was made but not opened would block the next attempt.
        if self.opens.len() >= self.options.opens_max {
            return Err(Status::Resource);
        }
        let ((file, created), directory) = match (&request.name, &request.create) {
            (None, None) => ((at, false), Wcc::default()),
            (None, Some(_)) => return Err(Status::Inval),
            (Some(name), None) => self.around(at, |tree| {
                let found = tree.find(user, at, name)?.ok_or(Status::NoEnt)?;
                Ok((found, false))
            })?,
            (Some(name), Some((how, set))) => {
                self.around(at, |tree| tree.create(user, at, name, (*how, set), request.access))?
            }
        };
        self.data(file)?;
        let attributes = self.attributes(file)?;
        // The creator gets the open as asked for, whatever the mode.
        if !created {
            user.check_open(&attributes, request.access)?;
        }
        let asked = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
        let kind = match request.want {
            Want::None => None,
            Want::Read => Some(LeaseKind::Read),
            Want::Any | Want::Write => Some(LeaseKind::Write),
        };
        let lease = kind.map(|kind| self.grant(file, kind)).transpose()?;
        let id = self.enter_open(caller, file, request);
        Ok(Opened {
            id,
            handle: self.node(file)?.handle,
            attributes,
            lease,
            directory,
            created,
            granted: Some(access_mask(&attributes, user.granted(&attributes)) & asked),
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
        let (holder, principal) = (caller.holder, caller.principal.clone());
        let (owner, access, deny) = (request.owner.clone(), request.access, request.deny);
        self.open_of.insert(key, id);
        self.opens.insert(id, Open { file, holder, owner, principal, access, deny });
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

    /// Grants the lease of a file: one for each file, until it is returned. It reserves no space, so a writer
    /// must not delay data that the file system may have no space for.
    fn grant(&mut self, id: Id, kind: LeaseKind) -> Result<Lease, Status> {
        let lease = match self.inode(id)?.lease {
            Some(lease) => lease,
            None => LeaseId(self.number()),
        };
        self.leases.insert(lease, id);
        let inode = self.inode_mut(id)?;
        inode.lease = Some(lease);
        Ok(Lease { id: lease, kind, until: None, change: inode.attributes.change, space_limit: 0 })
    }

    fn returned(&mut self, lease: LeaseId) {
        let id = self.leases.remove(&lease);
        if let Some(inode) = id.and_then(|id| self.inodes.get_mut(&id)) {
            inode.lease = None;
        }
    }
}

#[async_trait]
impl Opens for Memory {
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
impl Leases for Memory {
    fn callbacks(&self) -> Option<Callbacks> {
        None
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn end_reclaim(&self) {}

    async fn returned(&self, _: &Caller, lease: LeaseId) -> Result<()> {
        self.tree.lock().returned(lease);
        Ok(())
    }

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }

    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.with(directory, |tree, id| {
            let accessed = tree.accessed(User::of(caller), id, asked)?;
            let is_dir = tree.attributes(id)?.is_dir();
            let lease = if is_dir { Some(tree.grant(id, LeaseKind::Read)?) } else { None };
            Ok(Delegated { accessed, lease })
        })
    }
}
