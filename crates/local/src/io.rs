//! READ, WRITE and COMMIT.
//!
//! A small read whose pages are in memory is answered at once (`RWF_NOWAIT`); a large one is a range of the file, for
//! `sendfile`. Unstable writes are in the page cache until COMMIT; if the disk then fails, the write verifier changes,
//! because Linux tells of a lost page once and forgets it.

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
use crate::{errno, identity};

/// Most bytes in one READ or WRITE.
pub(crate) const TRANSFER_MAX: u32 = 1 << 20;
/// From here on a READ is answered with a range of the file instead of bytes.
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
    /// The file open for reading, which is shared: permission was checked before.
    pub(crate) fn reading(&self, node: &Node) -> Result<Arc<File>, Status> {
        let mut data = node.data.lock();
        if let Some(file) = &data.reading {
            return Ok(file.clone());
        }
        let file = self.open_data(node, OFlags::RDONLY)?;
        Ok(data.reading.insert(file).clone())
    }

    /// The file open for writing, which is shared: permission was checked before.
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

    /// With our own rights, because the owner's and the executing caller's exceptions are ours and not the kernel's;
    /// with those of the caller where ours are less (a file system that trusts no root).
    fn open_data(&self, node: &Node, flags: OFlags) -> Result<Arc<File>, Status> {
        let ours = identity::as_self(|| self.proc.open(&node.path, flags))?;
        let opened = match ours {
            Err(Errno::ACCESS | Errno::PERM) => self.proc.open(&node.path, flags),
            other => other,
        };
        opened.map(|file| Arc::new(File::from(file))).map_err(errno::status)
    }
}

/// Reads; `None` if that would have to wait and must not.
pub(crate) fn read(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    (offset, count): (u64, u32),
    wait: Wait,
) -> Result<Option<Read>, Status> {
    // Taken before the data: whoever compares it later sees any change since.
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
        // Looked at again under the pin: from here on no cut of ours comes in between.
        let size = tree.stat(node)?.size();
        if size >= offset + u64::from(length) {
            let data = Data::File(FileRange { file, offset, length, pin: Some(Arc::new(pin)) });
            return Ok(Some(Read { data, eof, attributes }));
        }
    }
    // A large read that may not be a range is a rare one; what it takes to copy it is not for the asking task.
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
    // Fewer if somebody cut the file shorter in between.
    buffer.truncate(filled.map_err(errno::status)?);
    let eof = eof || buffer.len() < length as usize;
    Ok(Some(Read { data: Data::Bytes(buffer.into()), eof, attributes }))
}

/// Fills the buffer as far as the file goes; without waiting, as far as memory goes.
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

/// Writes, with the caller's identity worn: set-id bits fall, and reserves and quotas hold, as for the caller.
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
    // Taken first: if this very data is lost before the answer is out, COMMIT must not show the same one.
    let verifier = tree.verifier();
    let count = write_all(&file, data, offset).map_err(errno::status)?;
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    drop(held);
    let synced = match stability {
        Stability::Unstable => Ok(()),
        Stability::DataSync => rustix::fs::fdatasync(&*file),
        Stability::FileSync => rustix::fs::fsync(&*file),
    };
    synced.map_err(|errno| lost(tree, errno))?;
    Ok(Written { count: count as u32, stability, verifier, wcc })
}

/// Writes as much as fits; an error counts only if nothing did.
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

/// Makes unstable writes durable: those of the whole file, whatever the range.
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
    // A COMMIT changes nothing that clients compare, so one look is before and after.
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
