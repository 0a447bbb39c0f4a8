//! Nobody below: what a cache stands on that is looked at without its origin. Every question is answered with `Delay`.

use async_trait::async_trait;
use bytes::Bytes;
use vfs::{
    AccessMask, Accessed, Attributes, By, Caller, Commit, CreateHow, Created, Device, FileSystem, FileType,
    FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Read, ReadDir, Renamed, Result, SetAttributes,
    Stability, Status, Timestamp, Wcc, Written,
};

/// See the module.
pub struct Nobody;

fn nobody<T>() -> Result<T> {
    Err(Status::Delay.into())
}

#[async_trait]
impl FileSystem for Nobody {
    async fn root(&self, _: &Caller) -> Result<Node> {
        nobody()
    }

    async fn getattr(&self, _: &Caller, _: &Handle) -> Result<Attributes> {
        nobody()
    }

    async fn setattr(&self, _: &Caller, _: &Handle, _: &SetAttributes, _: Option<Timestamp>) -> Result<Wcc> {
        nobody()
    }

    async fn access(&self, _: &Caller, _: &Handle, _: AccessMask) -> Result<Accessed> {
        nobody()
    }

    async fn lookup(&self, _: &Caller, _: &Handle, _: &Name) -> Result<Looked> {
        nobody()
    }

    async fn parent(&self, _: &Caller, _: &Handle) -> Result<Looked> {
        nobody()
    }

    async fn readlink(&self, _: &Caller, _: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        nobody()
    }

    async fn read(&self, _: &Caller, _: &Handle, _: By, _: u64, _: u32) -> Result<Read> {
        nobody()
    }

    async fn write(&self, _: &Caller, _: &Handle, _: By, _: u64, _: Bytes, _: Stability) -> Result<Written> {
        nobody()
    }

    async fn commit(&self, _: &Caller, _: &Handle, _: u64, _: u32) -> Result<Commit> {
        nobody()
    }

    async fn create(
        &self,
        _: &Caller,
        _: &Handle,
        _: &Name,
        _: CreateHow,
        _: &SetAttributes,
    ) -> Result<Created> {
        nobody()
    }

    async fn mkdir(&self, _: &Caller, _: &Handle, _: &Name, _: &SetAttributes) -> Result<Created> {
        nobody()
    }

    async fn symlink(
        &self,
        _: &Caller,
        _: &Handle,
        _: &Name,
        _: &[u8],
        _: &SetAttributes,
    ) -> Result<Created> {
        nobody()
    }

    async fn mknod(
        &self,
        _: &Caller,
        _: &Handle,
        _: &Name,
        _: FileType,
        _: Device,
        _: &SetAttributes,
    ) -> Result<Created> {
        nobody()
    }

    async fn remove(&self, _: &Caller, _: &Handle, _: &Name) -> Result<Wcc> {
        nobody()
    }

    async fn rmdir(&self, _: &Caller, _: &Handle, _: &Name) -> Result<Wcc> {
        nobody()
    }

    async fn rename(&self, _: &Caller, _: &Handle, _: &Name, _: &Handle, _: &Name) -> Result<Renamed> {
        nobody()
    }

    async fn link(&self, _: &Caller, _: &Handle, _: &Handle, _: &Name) -> Result<Created> {
        nobody()
    }

    async fn readdir(&self, _: &Caller, _: &Handle, _: ReadDir) -> Result<Listing> {
        nobody()
    }

    async fn fsstat(&self, _: &Caller, _: &Handle) -> Result<FsStat> {
        nobody()
    }

    async fn limits(&self, _: &Caller, _: &Handle) -> Result<FsLimits> {
        nobody()
    }
}
