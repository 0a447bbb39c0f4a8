//! SEEK, ALLOCATE and DEALLOCATE (RFC 7862): holes, and space that is reserved before data is written.

use rustix::fs::{FallocateFlags, SeekFrom};
use vfs::{Extent, Principal, Sought, Status, Wcc};

use crate::descriptors::Node;
use crate::errno;
use crate::io::stat_regular;
use crate::locks::HeldLocks;
use crate::opens::DataRight;
use crate::tree::Tree;

/// No file system has larger blocks.
const BLOCK_BYTES_MAX: u64 = 1 << 20;

/// The start of the next data or hole. The descriptor is shared, but no other code uses its position.
pub(crate) fn seek(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    offset: u64,
    what: Extent,
) -> Result<Sought, Status> {
    let stat = stat_regular(tree, node)?;
    right.check_read(&tree.opens, node, principal, &stat)?;
    if offset >= stat.size() {
        return Err(Status::Nxio);
    }
    let file = tree.reading(node)?;
    let from = match what {
        Extent::Data => SeekFrom::Data(offset),
        Extent::Hole => SeekFrom::Hole(offset),
    };
    let offset = rustix::fs::seek(&*file, from).map_err(errno::status)?;
    let attributes = tree.stat(node).ok().map(|stat| stat.attributes(node.mount.fsid));
    Ok(Sought { offset, eof: offset >= stat.size(), attributes })
}

/// The change of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    /// Space is reserved for it.
    Allocate,
    /// Its space is released: it becomes a hole.
    Deallocate,
}

/// Reserves or releases the space of a range.
pub(crate) fn reserve(
    tree: &Tree,
    (principal, right): (&Principal, DataRight),
    node: &Node,
    (offset, length): (u64, u64),
    what: Reservation,
    held: HeldLocks,
) -> Result<Wcc, Status> {
    let before = stat_regular(tree, node)?;
    right.check_write(&tree.opens, node, principal, &before)?;
    if length == 0 {
        return Err(Status::Inval);
    }
    let (flags, end) = match what {
        Reservation::Allocate => {
            let end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
            (FallocateFlags::empty(), end.ok_or(Status::FBig)?)
        }
        // After the last block there is nothing to release, and a range beyond the largest file is an
        // error.
        Reservation::Deallocate => {
            let last = before.size().saturating_add(BLOCK_BYTES_MAX - 1) / BLOCK_BYTES_MAX * BLOCK_BYTES_MAX;
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            (flags, offset.saturating_add(length).min(last))
        }
    };
    let Some(length) = end.checked_sub(offset).filter(|&length| length > 0) else {
        return Ok(Wcc::around(before.wcc(), Some(before.attributes(node.mount.fsid))));
    };
    let _in_flight = match what {
        Reservation::Allocate => Some(tree.leases.may_grow(principal, node, &before, &(offset..end))?),
        Reservation::Deallocate => None,
    };
    let file = tree.writing(node)?;
    let done = rustix::fs::fallocate(&*file, flags, offset, length).map_err(errno::status);
    // A call that failed in the middle may have changed the file too.
    let wcc = Wcc::around(before.wcc(), tree.changed(node));
    done?;
    drop(held);
    tree.persist_if_sync(node)?;
    Ok(wcc)
}
