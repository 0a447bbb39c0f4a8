//! The arbiter as a `FileSystem`: each operation is checked against what is held, then passed on.

use async_trait::async_trait;
use bytes::Bytes;
use vfs::{
    AccessMask, Accessed, Attributes, By, Callbacks, Caller, Commit, CreateHow, Created, Device, FileSystem,
    FileType, FsLimits, FsStat, Handle, LeaseId, Listing, Looked, Name, Node, OpenId, OpenRequest, Opened,
    Read, ReadDir, Renamed, Result, SetAttributes, Share, Stability, Timestamp, Wcc, Written,
};

use crate::Arbiter;

impl Arbiter {
    fn admit(&self, handle: &Handle, by: By, share: Share) -> Result<()> {
        match by {
            By::Anonymous => self.admit_anonymous(handle, share),
            By::Open(id) => self.shares.lock().admit_open(handle, id, share).map_err(Into::into),
        }
    }

    /// The file that an open names, made if need be.
    async fn opened_node(&self, caller: &Caller, request: &OpenRequest) -> Result<(Node, Wcc)> {
        let Some(name) = &request.name else {
            return Ok((Node { handle: request.handle, attributes: None }, Wcc::default()));
        };
        if let Some((how, set)) = &request.create {
            let created = self.below.create(caller, &request.handle, name, *how, set).await?;
            return Ok((created.node, created.directory));
        }
        let looked = self.below.lookup(caller, &request.handle, name).await?;
        Ok((looked.node, Wcc { before: None, after: looked.directory }))
    }
}

#[async_trait]
impl FileSystem for Arbiter {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        self.below.root(caller).await
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.below.getattr(caller, handle).await
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        if set.size.is_some() {
            self.admit_anonymous(handle, Share::WRITE)?;
        }
        self.below.setattr(caller, handle, set, guard).await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.below.access(caller, handle, asked).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Looked> {
        self.below.lookup(caller, directory, name).await
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.below.parent(caller, directory).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.below.readlink(caller, handle).await
    }

    async fn read(&self, caller: &Caller, handle: &Handle, by: By, offset: u64, count: u32) -> Result<Read> {
        self.admit(handle, by, Share::READ)?;
        self.below.read(caller, handle, By::Anonymous, offset, count).await
    }

    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: By,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written> {
        self.admit(handle, by, Share::WRITE)?;
        self.below.write(caller, handle, By::Anonymous, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        self.below.commit(caller, handle, offset, count).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.below.create(caller, directory, name, how, set).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.below.mkdir(caller, directory, name, set).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
        self.below.symlink(caller, directory, name, target, set).await
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
        self.below.mknod(caller, directory, name, file_type, device, set).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.below.remove(caller, directory, name).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.below.rmdir(caller, directory, name).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.below.rename(caller, from, from_name, to, to_name).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.below.link(caller, file, directory, name).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        self.below.readdir(caller, directory, part).await
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.below.fsstat(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.below.limits(caller, handle).await
    }

    async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let (node, directory) = self.opened_node(caller, request).await?;
        let id = self.open_id();
        self.shares.lock().open(node.handle, id, request.access, request.deny)?;
        let attributes = match node.attributes {
            Some(attributes) => Ok(attributes),
            None => self.below.getattr(caller, &node.handle).await,
        };
        match attributes {
            Ok(attributes) => Ok(Opened {
                id,
                handle: node.handle,
                attributes,
                lease: None,
                directory,
                created: false,
                granted: None,
            }),
            Err(error) => {
                // Nobody learnt the id.
                let _ = self.shares.lock().close(id);
                Err(error)
            }
        }
    }

    async fn downgrade(&self, _caller: &Caller, open: OpenId, access: Share, deny: Share) -> Result<()> {
        self.shares.lock().downgrade(open, access, deny).map_err(Into::into)
    }

    async fn close(&self, _caller: &Caller, open: OpenId) -> Result<()> {
        self.shares.lock().close(open)?;
        Ok(())
    }

    fn callbacks(&self) -> Option<Callbacks> {
        self.below.callbacks()
    }

    async fn returned(&self, caller: &Caller, lease: LeaseId) -> Result<()> {
        self.below.returned(caller, lease).await
    }

    async fn shutdown(&self) {
        self.below.shutdown().await;
    }
}
