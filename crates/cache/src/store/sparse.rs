//! Writing bytes so that blocks of zeros take no space.
//!
//! A hole at the origin arrives here as zeros, from a READ or from the cache's own knowledge of the hole. The
//! data file gets a hole in their place. A sparse file therefore uses as much of this disk as it uses of the
//! origin's.
//!
//! Several tasks may write one file at the same time, in different ranges. Only growth of the file beyond a
//! trailing run of zeros affects all of them: `set_len` with a size that another writer has passed meanwhile
//! would truncate the file. The caller's lock keeps such growth apart from all writes.
//!
//! Promise: holes

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, fallocate};

/// A hole begins and ends at a multiple of this many bytes: the block size of every file system that holds a
/// cache.
const BLOCK_BYTES: u64 = 4096;

/// Writes `bytes` at `offset`. Aligned blocks of zeros become holes. The file ends where the bytes end, or
/// later.
///
/// `growth` is the lock of this file that all of its writers share.
pub fn write_all_at(file: &File, growth: &RwLock<()>, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut zeros_at_end = None;
    {
        let _shared = growth.read();
        for (range, zero) in runs(bytes, offset) {
            let end = offset + range.end as u64;
            if zero {
                clear(file, offset + range.start as u64..end)?;
                zeros_at_end = Some(end);
            } else {
                file.write_all_at(&bytes[range.clone()], offset + range.start as u64)?;
                zeros_at_end = None;
            }
        }
    }
    if let Some(end) = zeros_at_end {
        let _alone = growth.write();
        if file.metadata()?.len() < end {
            file.set_len(end)?;
        }
    }
    Ok(())
}

/// Makes a range read as zeros, up to the end of the file.
fn clear(file: &File, range: Range<u64>) -> io::Result<()> {
    let end = range.end.min(file.metadata()?.len());
    let Some(length) = end.checked_sub(range.start).filter(|length| *length > 0) else { return Ok(()) };
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, range.start, length) {
        Ok(()) => Ok(()),
        // Some file systems cannot punch holes.
        Err(_) => file.write_all_at(&vec![0; length as usize], range.start),
    }
}

/// Parts of `bytes`, in order, and whether each is a run of aligned blocks of zeros.
fn runs(bytes: &[u8], offset: u64) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let inside = (offset + at as u64) % BLOCK_BYTES;
        let end = at.saturating_add((BLOCK_BYTES - inside) as usize).min(bytes.len());
        let complete = (end - at) as u64 == BLOCK_BYTES;
        let zero = complete && is_zero(&bytes[at..end]);
        match runs.last_mut() {
            Some((range, kind)) if *kind == zero => range.end = end,
            _ => runs.push((at..end, zero)),
        }
        at = end;
    }
    runs
}

/// Are all bytes zeros?
pub fn is_zero(bytes: &[u8]) -> bool {
    // Most data shows in its first bytes that it is not zero.
    let (head, _) = bytes.split_at(bytes.len().min(16));
    if head.iter().any(|byte| *byte != 0) {
        return false;
    }
    let (chunks, rest) = bytes.as_chunks::<16>();
    chunks.iter().all(|chunk| u128::from_ne_bytes(*chunk) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::MetadataExt;

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut bytes = vec![1; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn zeros_take_no_space_and_the_file_ends_where_they_do() {
        let (file, growth) = (file(), RwLock::new(()));
        write_all_at(&file, &growth, &vec![0; 1 << 20], 8 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (9 << 20, 0));
        let mut mixed = vec![0; 1 << 20];
        mixed[500_000] = 1;
        write_all_at(&file, &growth, &mixed, 0).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 <= 64 << 10);
        write_all_at(&file, &growth, &vec![0; 1 << 20], 0).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0, "what was there is gone");
        assert_eq!(file.metadata().unwrap().len(), 9 << 20);
    }

    #[test]
    fn zeros_are_told_from_what_differs_in_one_byte() {
        for length in [0, 1, 15, 16, 17, 100, 4096] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in 0..length {
                bytes[at] = 1;
                assert!(!is_zero(&bytes), "{length} {at}");
                bytes[at] = 0;
            }
        }
    }

    proptest! {
        /// Compares with an array: whatever is written where, the file reads as if all of it had been
        /// written.
        #[test]
        fn what_is_written_is_read(
            writes in prop::collection::vec((0u64..40_000, 1usize..20_000, any::<bool>()), 1..12),
        ) {
            let (file, growth) = (file(), RwLock::new(()));
            let mut model: Vec<u8> = Vec::new();
            for (n, (offset, length, zero)) in writes.into_iter().enumerate() {
                let bytes = vec![if zero { 0 } else { n as u8 + 1 }; length];
                write_all_at(&file, &growth, &bytes, offset).unwrap();
                let end = offset as usize + length;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            prop_assert!(contents(&file) == model);
        }
    }
}
