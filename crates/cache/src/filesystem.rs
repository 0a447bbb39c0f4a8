//! The cache as a file system: one part per kind of operation.

mod attributes;
mod data;
pub mod directory;
mod modify;
pub mod names;

use async_trait::async_trait;
use bytes::Bytes;
use vfs::{
    AccessMask, Accessed, Attributes, By, Caller, Commit, CreateHow, Created, Device, FileSystem, FileType,
    FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Read, ReadDir, Renamed, Result, SetAttributes,
    Stability, Timestamp, Wcc, Written,
};

use crate::Cache;
use crate::object::Opening;

#[async_trait]
impl FileSystem for Cache {
    async fn root(&self, caller: &Caller) -> Result<Node> {
        let sent = self.core.policy.sending();
        self.core.counters.other.bump();
        let node = self.core.below.root(caller).await?;
        let object = self.core.object(&node.handle);
        self.core.observe(&object, node.attributes.as_ref(), &sent, Opening::No);
        Ok(node)
    }

    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.core.getattr(caller, handle).await
    }

    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        self.core.setattr(caller, handle, set, guard).await
    }

    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        self.core.access(caller, handle, asked).await
    }

    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Looked> {
        self.core.lookup(caller, directory, name).await
    }

    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        self.core.parent(caller, directory).await
    }

    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        self.core.readlink(caller, handle).await
    }

    async fn read(&self, caller: &Caller, handle: &Handle, by: By, offset: u64, count: u32) -> Result<Read> {
        let read = self.core.read(caller, handle, by, offset, count).await?;
        // Hits have none that are news, so no READ has any: see `vfs::Read::attributes`.
        Ok(Read { attributes: None, ..read })
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
        self.core.write(caller, handle, by, offset, data, stability).await
    }

    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit> {
        self.core.commit(caller, handle, offset, count).await
    }

    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let make = self.core.below.create(caller, directory, name, how, set);
        self.core.make(directory, name, make).await
    }

    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.core.make(directory, name, self.core.below.mkdir(caller, directory, name, set)).await
    }

    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created> {
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
        let make = self.core.below.mknod(caller, directory, name, file_type, device, set);
        self.core.make(directory, name, make).await
    }

    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.core.remove(directory, name, self.core.below.remove(caller, directory, name)).await
    }

    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        self.core.remove(directory, name, self.core.below.rmdir(caller, directory, name)).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed> {
        self.core.rename(caller, (from, from_name), (to, to_name)).await
    }

    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        self.core.link(caller, file, directory, name).await
    }

    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        self.core.readdir(caller, directory, part).await
    }

    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat> {
        self.core.counters.other.bump();
        self.core.below.fsstat(caller, handle).await
    }

    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits> {
        self.core.counters.other.bump();
        let limits = self.core.below.limits(caller, handle).await?;
        self.core.learn_limits(limits);
        Ok(limits)
    }

    async fn shutdown(&self) {
        self.finish().await;
        self.core.below.shutdown().await;
    }
}
