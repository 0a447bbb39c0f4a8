//! COPY and CLONE (RFC 7862) between files of one file system, done by the kernel. Holes stay holes.
//!
//! A COPY stops after `TIME_MAX` and reports the bytes copied so far. It holds the lock of the target file,
//! and an impatient client would send the request again. Between two file systems it fails with `Xdev` if
//! the kernel cannot copy.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Copied, Principal, Stability, Status, Wcc};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::io::stat_regular;
use crate::locks::HeldLocks;
use crate::opens::DataRight;
use crate::tree::Tree;
use crate::{errno, sys};

/// A COPY stops soon after this time.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes to copy with one system call.
const STEP_BYTES: usize = 8 << 20;

/// One side of a copy.
pub(crate) struct End<'a> {
    pub(crate) node: &'a Node,
    pub(crate) right: DataRight,
    pub(crate) offset: u64,
}

/// Copies `count` bytes (zero: up to the end), or fewer.
pub(crate) fn copy(
    tree: &Tree,
    principal: &Principal,
    from: &End<'_>,
    to: &End<'_>,
    count: u64,
    held: HeldLocks,
) -> Result<Copied, Status> {
    let (source, before) = stat_both(tree, principal, from, to)?;
    let count = range(&source, from.offset, count)?;
    if to.offset.checked_add(count).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(Status::FBig);
    }
    let _in_flight = tree.leases.may_grow(principal, to.node, &before, &(to.offset..to.offset + count))?;
    let (reading, writing) = (tree.reading(from.node)?, tree.writing(to.node)?);
    // Read first, as for a WRITE.
    let verifier = tree.verifier();
    let started = Instant::now();
    let mut done = 0;
    while done < count && (done == 0 || started.elapsed() < TIME_MAX) {
        let (mut at, mut there) = (from.offset + done, to.offset + done);
        let (hole, data) = extent(&reading, at, count - done);
        if hole > 0 {
            match make_hole(&writing, there, hole) {
                Ok(()) => {
                    done += hole;
                    continue;
                }
                Err(errno) if done == 0 && errno != Errno::OPNOTSUPP => return Err(errno::status(errno)),
                Err(Errno::OPNOTSUPP) => {}
                Err(_) => break,
            }
        }
        let step = (hole + data).min(STEP_BYTES as u64) as usize;
        match rustix::fs::copy_file_range(&*reading, Some(&mut at), &*writing, Some(&mut there), step) {
            Ok(0) => break,
            Ok(copied) => done += copied as u64,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno::status(errno)),
            Err(_) => break,
        }
    }
    let wcc = Wcc::around(before.wcc(), tree.changed(to.node));
    drop(held);
    Ok(Copied { count: done, stability: Stability::Unstable, verifier, wcc })
}

/// The length of the hole at `at`, and of the data after it, within `count` bytes. The descriptor is
/// shared, but no other code uses its position.
fn extent(file: &File, at: u64, count: u64) -> (u64, u64) {
    let end = at + count;
    let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => data.min(end),
        Err(Errno::NXIO) => end,
        // Not every file system supports this.
        Err(_) => return (0, count),
    };
    let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).map_or(end, |hole| hole.clamp(data, end));
    (data - at, hole - data)
}

/// Turns a range into a hole. Extends the file if it ends before the end of the range.
fn make_hole(file: &File, offset: u64, length: u64) -> Result<(), Errno> {
    let size = rustix::fs::fstat(file)?.st_size as u64;
    let end = offset + length;
    if let Some(inside) = size.min(end).checked_sub(offset).filter(|inside| *inside > 0) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, offset, inside)?;
    }
    if size < end { rustix::fs::ftruncate(file, end) } else { Ok(()) }
}

/// Makes a range share its blocks with another.
pub(crate) fn clone_range(
    tree: &Tree,
    principal: &Principal,
    from: &End<'_>,
    to: &End<'_>,
    count: u64,
    held: HeldLocks,
) -> Result<Wcc, Status> {
    let (source, before) = stat_both(tree, principal, from, to)?;
    range(&source, from.offset, count)?;
    let (reading, writing) = (tree.reading(from.node)?, tree.writing(to.node)?);
    sys::clone_range(&reading, from.offset, count, &writing, to.offset).map_err(errno::status)?;
    let wcc = Wcc::around(before.wcc(), tree.changed(to.node));
    drop(held);
    tree.persist_if_sync(to.node)?;
    Ok(wcc)
}

fn stat_both(
    tree: &Tree,
    principal: &Principal,
    from: &End<'_>,
    to: &End<'_>,
) -> Result<(Stat, Stat), Status> {
    let source = stat_regular(tree, from.node)?;
    from.right.check_read(&tree.opens, from.node, principal, &source)?;
    let target = stat_regular(tree, to.node)?;
    to.right.check_write(&tree.opens, to.node, principal, &target)?;
    Ok((source, target))
}

/// The length of a range, all of which must be within the file.
fn range(source: &Stat, offset: u64, count: u64) -> Result<u64, Status> {
    let left = source.size().checked_sub(offset).ok_or(Status::Inval)?;
    match count {
        0 => Ok(left),
        count if count <= left => Ok(count),
        _ => Err(Status::Inval),
    }
}
