//! The null file system: it stands where a file system is not there, or not there yet. Below a cache that is
//! viewed without its origin, and in an export whose origin has not answered. Every operation fails with
//! `Delay`.

use crate::{
    AccessMask, Accessed, Attributes, Caller, Commit, CreateHow, Created, Device, FileSystem, FileType,
    FsLimits, FsStat, Handle, Listing, Looked, Name, Node, Read, ReadDir, Renamed, Result, SetAttributes,
    Stability, StateidBasis, Status, Timestamp, UnansweredSince, Want, Wcc, Written,
};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

/// The null file system.
#[derive(Debug)]
pub struct NullFileSystem;

fn null<T>() -> Result<T> {
    Err(Status::Delay.into())
}

#[async_trait]
impl FileSystem for NullFileSystem {
    async fn root(&self, _: &Caller) -> Result<Node> {
        null()
    }

    async fn getattr(&self, _: &Caller, _: &Handle) -> Result<Attributes> {
        null()
    }

    async fn setattr(&self, _: &Caller, _: &Handle, _: &SetAttributes, _: Option<Timestamp>) -> Result<Wcc> {
        null()
    }

    async fn access(&self, _: &Caller, _: &Handle, _: AccessMask) -> Result<Accessed> {
        null()
    }

    async fn lookup(&self, _: &Caller, _: &Handle, _: &Name, _: Want) -> Result<Looked> {
        null()
    }

    async fn parent(&self, _: &Caller, _: &Handle) -> Result<Looked> {
        null()
    }

    async fn readlink(&self, _: &Caller, _: &Handle) -> Result<(Bytes, Option<Attributes>)> {
        null()
    }

    async fn read(&self, _: &Caller, _: &Handle, _: StateidBasis, _: u64, _: u32) -> Result<Read> {
        null()
    }

    async fn write(
        &self,
        _: &Caller,
        _: &Handle,
        _: StateidBasis,
        _: u64,
        _: Bytes,
        _: Stability,
    ) -> Result<Written> {
        null()
    }

    async fn commit(&self, _: &Caller, _: &Handle, _: u64, _: u32) -> Result<Commit> {
        null()
    }

    async fn create(
        &self,
        _: &Caller,
        _: &Handle,
        _: &Name,
        _: CreateHow,
        _: &SetAttributes,
    ) -> Result<Created> {
        null()
    }

    async fn mkdir(&self, _: &Caller, _: &Handle, _: &Name, _: &SetAttributes, _: Want) -> Result<Created> {
        null()
    }

    async fn symlink(
        &self,
        _: &Caller,
        _: &Handle,
        _: &Name,
        _: &[u8],
        _: &SetAttributes,
    ) -> Result<Created> {
        null()
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
        null()
    }

    async fn remove(&self, _: &Caller, _: &Handle, _: &Name) -> Result<Wcc> {
        null()
    }

    async fn rmdir(&self, _: &Caller, _: &Handle, _: &Name) -> Result<Wcc> {
        null()
    }

    async fn rename(&self, _: &Caller, _: &Handle, _: &Name, _: &Handle, _: &Name) -> Result<Renamed> {
        null()
    }

    async fn link(&self, _: &Caller, _: &Handle, _: &Handle, _: &Name) -> Result<Created> {
        null()
    }

    async fn readdir(&self, _: &Caller, _: &Handle, _: ReadDir) -> Result<Listing> {
        null()
    }

    async fn fsstat(&self, _: &Caller, _: &Handle) -> Result<FsStat> {
        null()
    }

    async fn limits(&self, _: &Caller, _: &Handle) -> Result<FsLimits> {
        null()
    }

    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    fn prepare_shutdown(&self) {}

    async fn shutdown(&self) {}
}

crate::lacks!(NullFileSystem: Opens, Leases, Extended, LocalView);
