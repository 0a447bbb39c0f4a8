//! READ, WRITE and COMMIT.
//!
//! A small read of cached pages is answered at once (`RWF_NOWAIT`). A large one is answered with a range of
//! the file, for `sendfile`. Unstable writes are in the page cache until COMMIT. If the disk then fails,
//! the write verifier changes, because Linux reports a lost page only once.

use std::fs::File;
use std::io::IoSliceMut;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use vfs::{Commit, Data, FileRange, FileType, Principal, Read, Stability, Status, Wcc, Written};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::locks::HeldLocks;
use crate::opens::DataRight;
use crate::tree::Tree;
use crate::{errno, identity, workers};

/// Limit of one READ or WRITE in bytes.
pub(crate) const TRANSFER_MAX: u32 = 1 << 20;
/// From this size in bytes, a READ is answered with a range of the file.
const RANGE_MIN: u32 = 64 << 10;

/// May a read wait for the disk?
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Wait {
    /// It may.
    Yes,
    /// It must not.
    No,
}

impl Tree {
    /// The shared descriptor for reading. The caller has checked permission.
    pub(crate) fn reading(&self, node: &Node) -> Result<Arc<File>, Status> {
        let mut data = node.data.lock();
        if let Some(file) = &data.reading {
            return Ok(file.clone());
        }
        let file = self.open_data(node, OFlags::RDONLY)?;
        Ok(data.reading.insert(file).clone())
    }

    /// The shared descriptor for writing. The caller has checked permission.
    pub(crate) fn writing(&self, node: &Node) -> Result<Arc<File>, Status> {
        let mut data = node.data.lock();
        data.wrote = self.descriptors.now();
        if let Some(file) = &data.writing {
            return Ok(file.clone());
        }
        if data.guard.is_some()
            && let Ok(file) = self.open_guarded_for_writing(node, &mut data)
        {
            return Ok(file);
        }
        let file = self.open_data(node, OFlags::WRONLY)?;
        Ok(data.writing.insert(file).clone())
    }

    /// Opens with the process's own rights: the exceptions for the owner and the executing user are this
    /// server's, not the kernel's. If the process has fewer rights than the caller (a file system that
    /// squashes root), opens with the caller's.
    fn open_data(&self, node: &Node, flags: OFlags) -> Result<Arc<File>, Status> {
        let ours = identity::as_self(|| self.proc.open(&node.path, flags))?;
        let opened = match ours {
            Err(Errno::ACCESS | Errno::PERM) => self.proc.open(&node.path, flags),
            other => other,
        };
        opened.map(|file| Arc::new(File::from(file))).map_err(errno::status)
    }
}

/// Reads. `None` if the read would have to wait and must not.
pub(crate) fn read(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    (offset, count): (u64, u32),
    wait: Wait,
) -> Result<Option<Read>, Status> {
    // Read before the data: a later comparison detects any change since.
    let stat = stat_regular(tree, node)?;
    right.check_read(&tree.opens, node, principal, &stat)?;
    let attributes = Some(stat.attributes(node.mount.fsid));
    let left = stat.size().saturating_sub(offset);
    let length = left.min(count.min(TRANSFER_MAX).into()) as u32;
    let eof = u64::from(length) == left;
    if length == 0 {
        return Ok(Some(Read { data: Data::default(), eof, attributes }));
    }
    let file = tree.reading(node)?;
    if length >= RANGE_MIN
        && let Some(pin) = node.ranges.pin()
    {
        // Checked again under the pin: from now on this server does not truncate the file.
        let size = tree.stat(node)?.size();
        if size >= offset + u64::from(length) {
            let data = Data::File(FileRange { file, offset, length, pin: Some(Arc::new(pin)) });
            return Ok(Some(Read { data, eof, attributes }));
        }
    }
    // A large read without a range is rare. Its copy takes too long for the requesting task.
    let wait = match wait {
        Wait::No if length >= RANGE_MIN => return Ok(None),
        Wait::No if node.mount.in_memory => Wait::Yes,
        wait => wait,
    };
    let mut buffer = vec![0; length as usize];
    let filled = fill(&file, &mut buffer, offset, wait);
    if wait == Wait::No && filled != Ok(buffer.len()) {
        return Ok(None);
    }
    // Shorter if the file was truncated in between.
    buffer.truncate(filled.map_err(errno::status)?);
    let eof = eof || buffer.len() < length as usize;
    Ok(Some(Read { data: Data::Bytes(buffer.into()), eof, attributes }))
}

/// Fills the buffer up to the end of the file; without waiting, up to the end of the cached pages.
fn fill(file: &File, buffer: &mut [u8], offset: u64, wait: Wait) -> Result<usize, Errno> {
    let flags = if wait == Wait::No { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
    let mut filled = 0;
    while filled < buffer.len() {
        let mut rest = [IoSliceMut::new(&mut buffer[filled..])];
        match rustix::io::preadv2(file, &mut rest, offset + filled as u64, flags) {
            Ok(0) => break,
            Ok(got) => filled += got,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if filled > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Writes with the caller's identity. So the kernel clears set-id bits and applies reserves and quotas as
/// for the caller.
pub(crate) fn write(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    (offset, data): (u64, &Bytes),
    stability: Stability,
    held: HeldLocks,
) -> Result<Written, Status> {
    let before = stat_regular(tree, node)?;
    right.check_write(&tree.opens, node, principal, &before)?;
    if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Status::FBig);
    }
    let data = &data[..data.len().min(TRANSFER_MAX as usize)];
    let _in_flight = tree.leases.may_grow(principal, node, &before, &(offset..offset + data.len() as u64))?;
    let file = tree.writing(node)?;
    // Read first: if this data is lost before the reply, COMMIT must not return the same verifier.
    let verifier = tree.verifier();
    let count = write_all(&file, data, offset).map_err(errno::status)?;
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    drop(held);
    if stability != Stability::Unstable {
        workers::about_to_wait();
    }
    let synced = match stability {
        Stability::Unstable => Ok(()),
        Stability::DataSync => rustix::fs::fdatasync(&*file),
        Stability::FileSync => rustix::fs::fsync(&*file),
    };
    synced.map_err(|errno| lost(tree, errno))?;
    Ok(Written { count: count as u32, stability, verifier, wcc })
}

/// Writes as much as fits. Returns an error only if nothing was written.
fn write_all(file: &File, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(file, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(wrote) => done += wrote,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Makes all unstable writes of the file durable, whatever the range.
pub(crate) fn commit(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
) -> Result<Commit, Status> {
    let stat = stat_regular(tree, node)?;
    right.check_write(&tree.opens, node, principal, &stat)?;
    let open = node.data.lock().writing.clone();
    let file = match open {
        Some(file) => file,
        None => tree.reading(node)?,
    };
    rustix::fs::fdatasync(&*file).map_err(|errno| lost(tree, errno))?;
    // A COMMIT changes no attribute that clients compare, so one stat serves as before and after.
    let wcc = Wcc::around(stat.wcc(), Some(stat.attributes(node.mount.fsid)));
    Ok(Commit { verifier: tree.verifier(), wcc })
}

fn lost(tree: &Tree, errno: Errno) -> Status {
    tree.writes_lost();
    tracing::error!(
        "a local file system could not store what was written: {errno}; clients will send it again"
    );
    errno::status(errno)
}

pub(crate) fn stat_regular(tree: &Tree, node: &Node) -> Result<Stat, Status> {
    let stat = tree.stat(node)?;
    match node.file_type {
        FileType::Regular => Ok(stat),
        FileType::Directory => Err(Status::IsDir),
        _ => Err(Status::Inval),
    }
}
