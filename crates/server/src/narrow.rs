//! What NFS v2 and NQNFS share. Both have 32-bit cookies and inode numbers, status codes and names of v2, and
//! WRITEs that are synchronous and complete.

pub(crate) mod convert;
mod cookies;
mod listing;

use bytes::Bytes;
use vfs::{Attributes, Caller, Freshness, Handle, Name, Stability, StateidBasis, Status};

use crate::exports::Export;
use crate::shared::{Object, Shared};

pub(crate) use cookies::Cookies;
pub(crate) use listing::list;

/// The attributes that an operation returned. If it returned none, this does a `stat`.
pub(crate) async fn attributes(
    export: &Export,
    caller: &Caller,
    handle: &Handle,
    brought: Option<Attributes>,
) -> vfs::Result<Attributes> {
    match brought {
        Some(attributes) => Ok(attributes),
        None => export.fs().getattr(&caller.clone().with_freshness(Freshness::Timeout), handle).await,
    }
}

/// WRITE for versions in which it is synchronous and complete: repeats the write until the file system has
/// taken all data.
pub(crate) async fn write_all(
    shared: &Shared,
    object: &Object,
    mut offset: u64,
    mut data: Bytes,
) -> vfs::Result<Attributes> {
    let Object { export, handle, caller } = object;
    loop {
        let (by, stability) = (StateidBasis::Anonymous, Stability::FileSync);
        let write = || export.fs().write(caller, handle, by, offset, data.clone(), stability);
        let written = shared.past_courtesy(object, None, write).await?;
        let count = (written.count as usize).min(data.len());
        shared.count_written(object, count);
        if count == 0 && !data.is_empty() {
            return Err(Status::Io.into());
        }
        offset += count as u64;
        data = data.slice(count..);
        if data.is_empty() {
            return attributes(export, caller, handle, written.wcc.after).await;
        }
    }
}

/// A name for an operation that creates, removes or renames. `.` and `..` are not allowed.
pub(crate) fn new_name(name: &[u8]) -> vfs::Result<Name> {
    match name {
        b"." | b".." => Err(Status::Exist.into()),
        other => Name::new(other),
    }
}
