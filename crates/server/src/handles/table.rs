//! The table of long handles: maps a keyed hash to the back end's handle.
//!
//! An append-only file of checked records, read into memory at the start. An entry is synchronously on the
//! disk before its handle is given out, because it cannot be recreated. Entries come from NFSv2 clients of
//! origins with handles of more than 18 bytes, and from v3 clients of origins with more than 51. Each
//! looked-up file costs one entry.
//!
//! A record that does not match its sum ends the file. No handle of a later record was given out, unless
//! the disk lost data; then those handles are stale. The file is never rewritten.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use parking_lot::RwLock;
use vfs::Handle;

use crate::exports::ExportId;

/// Hash, export, length of the handle, sum.
const HEADER_BYTES: usize = 16 + 4 + 1 + 4;

#[derive(Debug)]
pub(super) struct Table {
    inner: RwLock<Inner>,
}

#[derive(Debug)]
struct Inner {
    entries: HashMap<(ExportId, u128), Handle>,
    file: File,
}

impl Table {
    pub(super) fn open(state: &Path) -> io::Result<Table> {
        let path = state.join("handles");
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut entries = HashMap::new();
        let mut rest = &bytes[..];
        while let Some((key, handle, behind)) = parse(rest) {
            entries.insert(key, handle);
            rest = behind;
        }
        if !rest.is_empty() {
            tracing::warn!(bytes = rest.len(), "the handle table ends in a torn record, which is cut off");
            file.set_len((bytes.len() - rest.len()) as u64)?;
        }
        std::io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
        Ok(Table { inner: RwLock::new(Inner { entries, file }) })
    }

    pub(super) fn get(&self, export: ExportId, hash: u128) -> Option<Handle> {
        self.inner.read().entries.get(&(export, hash)).copied()
    }

    /// Enters a handle. It is durable when this returns.
    pub(super) fn put(&self, export: ExportId, hash: u128, handle: &Handle) -> io::Result<()> {
        if self.get(export, hash).is_some() {
            return Ok(());
        }
        let mut inner = self.inner.write();
        inner.file.write_all(&encode(export, hash, handle))?;
        inner.file.sync_data()?;
        inner.entries.insert((export, hash), *handle);
        Ok(())
    }
}

fn encode(export: ExportId, hash: u128, handle: &Handle) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEADER_BYTES + handle.as_bytes().len());
    record.extend_from_slice(&hash.to_be_bytes());
    record.extend_from_slice(&export.0.to_be_bytes());
    record.push(handle.as_bytes().len() as u8);
    record.extend_from_slice(handle.as_bytes());
    let sum = crc32c::crc32c(&record);
    record.extend_from_slice(&sum.to_be_bytes());
    record
}

fn parse(bytes: &[u8]) -> Option<((ExportId, u128), Handle, &[u8])> {
    let (hash, rest) = bytes.split_first_chunk::<16>()?;
    let (export, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first()?;
    let (handle, rest) = rest.split_at_checked(*length as usize)?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let body = bytes.get(..21 + handle.len())?;
    if crc32c::crc32c(body) != u32::from_be_bytes(*sum) {
        return None;
    }
    let key = (ExportId(u32::from_be_bytes(*export)), u128::from_be_bytes(*hash));
    Some((key, Handle::new(handle)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_record_costs_itself_alone() {
        let state = tempfile::tempdir().unwrap();
        let handle = Handle::new(&[5; 100]).unwrap();
        let table = Table::open(state.path()).unwrap();
        table.put(ExportId(1), 11, &handle).unwrap();
        table.inner.write().file.write_all(&encode(ExportId(1), 12, &handle)[..40]).unwrap();
        drop(table);
        let table = Table::open(state.path()).unwrap();
        table.put(ExportId(1), 13, &handle).unwrap();
        drop(table);
        let table = Table::open(state.path()).unwrap();
        let found = [11, 12, 13].map(|hash| table.get(ExportId(1), hash).is_some());
        assert_eq!(found, [true, false, true]);
    }
}
