//! The layer below as a `FileSystem`.

use async_trait::async_trait;
use bytes::Bytes;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Adopted, Attributes, Callbacks, Caller, Commit, CompleteFile, CreateHow, Created,
    Data, Delegated, Device, FileSystem, FileType, FsLimits, FsStat, Handle, Lease, LeaseId, LeaseKind,
    Leases, Listing, LocalView, Lock, LockRequest, Locked, Looked, Name, Node, OpenId, OpenRequest, Opened,
    Opens, Owner, Read, ReadDir, Renamed, Result, SetAttributes, Share, Stability, StateidBasis, Status,
    Timestamp, UnansweredSince, Want, Wcc, Written,
};

use super::{Below, File, ROOT, attributes, handle, id_of};

impl Below {
    fn attributes(&self, id: u8) -> Result<Attributes> {
        if id == ROOT {
            let change = 1 + self.files.lock().root_changes;
            return Ok(attributes(ROOT, &File { size: 0, change, nlink: 2 }));
        }
        self.files.lock().by_id.get(&id).map(|file| attributes(id, file)).ok_or(Status::Stale.into())
    }

    fn find(&self, name: &Name) -> Result<u8> {
        self.files.lock().names.get(name.as_bytes()).copied().ok_or(Status::NoEnt.into())
    }

    fn change(&self, caller: &Caller, id: u8, change: impl FnOnce(&mut File)) -> Result<Wcc> {
        let mut files = self.files.lock();
        let file = files.by_id.get_mut(&id).ok_or(Status::Stale)?;
        file.change += 1;
        for believed in self.believed.lock().iter_mut().filter(|believed| believed.file == id) {
            assert_eq!(Some(believed.holder), caller.holder, "changed under the lease of another");
            believed.change = file.change;
        }
        change(file);
        Ok(Wcc::seen(Some(attributes(id, file))))
    }

    /// A name in the directory is changed.
    fn change_names(&self, caller: &Caller) {
        let mut files = self.files.lock();
        files.root_changes += 1;
        for believed in self.believed.lock().iter_mut().filter(|believed| believed.file == ROOT) {
            assert_eq!(Some(believed.holder), caller.holder, "a name was changed under the lease of another");
            believed.change = 1 + files.root_changes;
        }
    }

    fn node(&self, id: u8) -> Result<Node> {
        Ok(Node { handle: handle(id), attributes: Some(self.attributes(id)?) })
    }

    /// The file, and whether it is new.
    fn make(&self, caller: &Caller, name: &Name, how: CreateHow, set: &SetAttributes) -> Result<(u8, bool)> {
        match (self.find(name), how) {
            (Ok(_), CreateHow::Guarded) => Err(Status::Exist.into()),
            (Ok(id), _) => {
                if let Some(size) = set.size {
                    self.change(caller, id, |file| file.size = size)?;
                }
                Ok((id, false))
            }
            (Err(_), _) => {
                self.change_names(caller);
                let made = self.add(std::str::from_utf8(name.as_bytes()).unwrap());
                Ok((id_of(&made), true))
            }
        }
    }
}

#[async_trait]
impl FileSystem for Below {
    async fn root(&self, _: &Caller) -> Result<Node> {
        self.node(ROOT)
    }

    async fn getattr(&self, _: &Caller, handle: &Handle) -> Result<Attributes> {
        self.note("getattr");
        self.be_overtaken().await;
        self.pass("getattr").await;
        self.attributes(id_of(handle))
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        _: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.note("setattr");
        self.be_overtaken().await;
        if id_of(handle) == ROOT {
            self.change_names(caller);
            return Ok(Wcc::default());
        }
        self.change(caller, id_of(handle), |file| file.size = set.size.unwrap_or(file.size))
    }

    async fn access(&self, _: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        Ok(Accessed { granted: asked, attributes: Some(self.attributes(id_of(handle))?) })
    }

    async fn lookup(&self, _: &Caller, _: &Handle, name: &Name, _: Want) -> Result<Looked> {
        self.note("lookup");
        self.be_overtaken().await;
        Ok(Looked { node: self.node(self.find(name)?)?, directory: None, directory_lease: None })
    }

    async fn parent(&self, _: &Caller, _: &Handle) -> Result<Looked> {
        Ok(Looked { node: self.node(ROOT)?, directory: None, directory_lease: None })
    }

    async fn readlink(&self, _: &Caller, _: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        Err(Status::Inval.into())
    }

    async fn read(&self, _: &Caller, handle: &Handle, by: StateidBasis, _: u64, _: u32) -> Result<Read> {
        self.note("read");
        self.be_overtaken().await;
        if let StateidBasis::Open(id) = by {
            self.files.lock().opens.get(&id).ok_or(Status::BadStateId)?;
        }
        Ok(Read { data: Data::default(), eof: true, attributes: Some(self.attributes(id_of(handle))?) })
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
        self.note("write");
        self.be_overtaken().await;
        self.pass("write").await;
        if let StateidBasis::Open(id) = by {
            let access = self.files.lock().opens.get(&id).ok_or(Status::BadStateId)?.1;
            if !access.contains(Share::WRITE) {
                return Err(Status::OpenMode.into());
            }
        }
        let end = offset + data.len() as u64;
        let wcc = self.change(caller, id_of(handle), |file| file.size = file.size.max(end))?;
        Ok(Written { count: data.len() as u32, stability, verifier: [0; 8], wcc })
    }

    async fn commit(&self, _: &Caller, handle: &Handle, _: u64, _: u32) -> Result<Commit> {
        let after = Some(self.attributes(id_of(handle))?);
        Ok(Commit { verifier: [0; 8], wcc: Wcc::seen(after) })
    }

    async fn create(
        &self,
        caller: &Caller,
        _: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.note("create");
        self.be_overtaken().await;
        let (id, _) = self.make(caller, name, how, set)?;
        Ok(Created { node: self.node(id)?, directory: Wcc::default(), lease: None })
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        _: &Handle,
        _: &Name,
        _: &SetAttributes,
        _: Want,
    ) -> Result<Created> {
        self.note("mkdir");
        self.change_names(caller);
        Err(Status::Rofs.into())
    }

    async fn symlink(
        &self,
        caller: &Caller,
        _: &Handle,
        _: &Name,
        _: &[u8],
        _: &SetAttributes,
    ) -> Result<Created> {
        self.note("symlink");
        self.change_names(caller);
        Err(Status::Rofs.into())
    }

    async fn mknod(
        &self,
        caller: &Caller,
        _: &Handle,
        _: &Name,
        _: FileType,
        _: Device,
        _: &SetAttributes,
    ) -> Result<Created> {
        self.note("mknod");
        self.change_names(caller);
        Err(Status::Rofs.into())
    }

    async fn remove(&self, caller: &Caller, _: &Handle, name: &Name) -> Result<Wcc> {
        self.note("remove");
        self.be_overtaken().await;
        self.pass("remove").await;
        let id = self.find(name)?;
        self.change_names(caller);
        self.files.lock().names.remove(name.as_bytes());
        self.change(caller, id, |file| file.nlink -= 1)?;
        Ok(Wcc::default())
    }

    async fn rmdir(&self, caller: &Caller, _: &Handle, _: &Name) -> Result<Wcc> {
        self.note("rmdir");
        self.change_names(caller);
        Err(Status::NotDir.into())
    }

    async fn rename(
        &self,
        caller: &Caller,
        _: &Handle,
        from: &Name,
        _: &Handle,
        to: &Name,
    ) -> Result<Renamed> {
        self.note("rename");
        self.be_overtaken().await;
        let id = self.find(from)?;
        self.change_names(caller);
        let mut files = self.files.lock();
        files.names.remove(from.as_bytes());
        let replaced = files.names.insert(to.as_bytes().to_vec(), id).filter(|replaced| *replaced != id);
        if let Some(replaced) = replaced.and_then(|replaced| files.by_id.get_mut(&replaced)) {
            replaced.nlink -= 1;
        }
        Ok(Renamed { from: Wcc::default(), to: Wcc::default() })
    }

    async fn link(&self, caller: &Caller, file: &Handle, _: &Handle, name: &Name) -> Result<Created> {
        self.note("link");
        self.be_overtaken().await;
        self.change_names(caller);
        self.files.lock().names.insert(name.as_bytes().to_vec(), id_of(file));
        self.change(caller, id_of(file), |file| file.nlink += 1)?;
        Ok(Created { node: self.node(id_of(file))?, directory: Wcc::default(), lease: None })
    }

    async fn readdir(&self, _: &Caller, _: &Handle, _: ReadDir) -> Result<Listing> {
        Err(Status::NotSupp.into())
    }

    async fn fsstat(&self, _: &Caller, _: &Handle) -> Result<FsStat> {
        Ok(FsStat::default())
    }

    async fn limits(&self, _: &Caller, _: &Handle) -> Result<FsLimits> {
        Ok(FsLimits::default())
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    fn prepare_shutdown(&self) {}

    async fn shutdown(&self) {}
}

#[async_trait]
impl Opens for Below {
    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        self.note("open");
        self.be_overtaken().await;
        if !self.stateful {
            return Err(Status::NotSupp.into());
        }
        let (id, created) = match (&request.name, &request.create) {
            (None, _) => (id_of(&request.handle), false),
            (Some(name), None) => (self.find(name)?, false),
            (Some(name), Some((how, set))) => self.make(caller, name, *how, set)?,
        };
        let found = self.attributes(id)?;
        let open = {
            let mut files = self.files.lock();
            files.next += 1;
            let open = OpenId(files.next);
            files.opens.insert(open, (id, request.access, request.deny));
            open
        };
        let wanted = request.want != vfs::Want::None;
        let lease = if wanted { self.lease(id, found.change) } else { None };
        self.pass("open").await;
        let directory = Wcc::default();
        Ok(Opened {
            id: open,
            handle: handle(id),
            attributes: found,
            lease,
            directory,
            created,
            granted: None,
            directory_lease: None,
            read: None,
        })
    }

    async fn downgrade(&self, _: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.note("downgrade");
        let mut files = self.files.lock();
        let held = files.opens.get_mut(&open).ok_or(Status::BadStateId)?;
        (held.1, held.2) = (access, deny);
        Ok(())
    }

    async fn close(&self, _: &Caller, open: OpenId) -> Result<()> {
        self.note("close");
        self.be_overtaken().await;
        self.files.lock().opens.remove(&open).map(|_| ()).ok_or(Status::BadStateId.into())
    }

    async fn lock(&self, _: &Caller, open: OpenId, request: &LockRequest) -> Result<Locked> {
        self.note("lock");
        let mut files = self.files.lock();
        let id = files.opens.get(&open).ok_or(Status::BadStateId)?.0;
        if let Some(foreign) = &files.foreign_lock
            && foreign.conflicts(&request.lock)
        {
            return Ok(Locked::Denied(foreign.clone()));
        }
        files.locks.push((id, request.lock.clone()));
        Ok(Locked::Granted)
    }

    async fn unlock(&self, _: &Caller, open: OpenId, owner: &Owner, _: (u64, u64)) -> Result<()> {
        self.note("unlock");
        let mut files = self.files.lock();
        let id = files.opens.get(&open).ok_or(Status::BadStateId)?.0;
        files.locks.retain(|(of, lock)| *of != id || lock.owner != *owner);
        Ok(())
    }

    async fn test(&self, _: &Caller, _: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        self.note("test");
        Ok(self.files.lock().foreign_lock.clone().filter(|foreign| foreign.conflicts(lock)))
    }

    async fn flush(&self, _: &Caller, _: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    fn holds_locks(&self, _: OpenId, _: &Owner) -> bool {
        false
    }

    async fn free_capacity(&self, _: &Caller) -> bool {
        false
    }
}

#[async_trait]
impl Leases for Below {
    async fn delegate(&self, _: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        self.note("delegate");
        self.be_overtaken().await;
        let attributes = self.attributes(id_of(directory))?;
        let lease = self.lease(id_of(directory), attributes.change);
        self.pass("delegate").await;
        let accessed = Accessed { granted: asked, attributes: Some(attributes) };
        Ok(Delegated { accessed, lease })
    }

    fn callbacks(&self) -> Option<Callbacks> {
        self.callbacks.lock().take()
    }

    async fn returned(&self, _: &Caller, lease: LeaseId) -> Result<()> {
        self.note("returned");
        self.be_overtaken().await;
        self.files.lock().leases.retain(|_, id| *id != lease);
        Ok(())
    }

    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    async fn end_reclaim(&self) {}

    async fn lease(&self, _: &Caller, _: &Handle, _: LeaseKind, _: Duration) -> Result<Option<Lease>> {
        Ok(None)
    }
}

#[async_trait]
impl LocalView for Below {
    fn is_remembered(&self, _: &Handle, _: &Name) -> Option<bool> {
        *self.remembers.lock()
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

vfs::lacks!(Below: Extended);
