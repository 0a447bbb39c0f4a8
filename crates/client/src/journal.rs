//! A file of keys and values that survives the process: the next process reads what the last one wrote.
//!
//! ```text
//! "leasehold client 1\n" | (length 4 | sum of the length 4 | kind 1 | key length 2 | key | value | sum 4)*
//! ```
//!
//! Each flush appends its changes with one `write`, so they survive the process once [`Journal::flush`]
//! returns. They are not synced: if the machine goes down they are lost, and the reader must detect that by
//! other means. An entry that extends beyond the end of the file was being written when the process died. No
//! caller relied on it, and the reader ignores it. An entry that does not match its checksums is damage, and
//! then the reader rejects the file. When most of the file is obsolete, the journal writes a new file and
//! renames it into place.

pub(crate) mod fields;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"leasehold client 1\n";
const PUT: u8 = 1;
const REMOVE: u8 = 2;
/// The length field and the two checksums.
const FRAME_BYTES: usize = 12;
/// The kind and the length of the key.
const HEAD_BYTES: usize = 3;
/// Obsolete bytes that do not justify a new file.
const SLACK_BYTES: usize = 1 << 20;
/// The largest file that is read. No client has that much state.
const FILE_MAX_BYTES: u64 = 256 << 20;

/// Keys and values, in the order of the keys.
pub(crate) type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The contents of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The entries that are present.
    pub(crate) entries: Entries,
    /// The keys of removed entries, as far as the file still has them.
    pub(crate) removed: Vec<Vec<u8>>,
}

/// The file and its entries.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    live: Entries,
    live_bytes: usize,
    file_bytes: usize,
    /// Frames that are not written yet.
    pending: Vec<u8>,
}

/// Reads a file. Returns `None` if it does not exist.
///
/// # Errors
/// A message, if the file cannot be read, has another format, or is damaged.
pub(crate) fn read(path: &Path) -> Result<Option<Contents>, String> {
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| error.to_string())?,
    };
    if metadata.len() > FILE_MAX_BYTES {
        return Err(format!("it has {} bytes, more than {FILE_MAX_BYTES}", metadata.len()));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    parse(&bytes).map(Some)
}

/// Parses the bytes of a file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Contents, String> {
    let mut rest = bytes.strip_prefix(MAGIC).ok_or("it does not begin as it should")?;
    let mut contents = Contents::default();
    loop {
        match next(rest) {
            Next::End => return Ok(contents),
            Next::Damage => return Err(format!("it is damaged {} bytes before its end", rest.len())),
            Next::Put { key, value, behind } => {
                contents.entries.insert(key.to_vec(), value.to_vec());
                rest = behind;
            }
            Next::Remove { key, behind } => {
                contents.entries.remove(key);
                contents.removed.push(key.to_vec());
                rest = behind;
            }
        }
    }
}

/// The id of this boot of the machine. It is unknown without /proc. Entries of an earlier boot may be
/// incomplete.
pub(crate) fn boot() -> Option<Vec<u8>> {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.trim_ascii().to_vec();
    (!id.is_empty() && id.len() <= 64).then_some(id)
}

enum Next<'a> {
    /// The end, or an incomplete entry.
    End,
    Damage,
    Put {
        key: &'a [u8],
        value: &'a [u8],
        behind: &'a [u8],
    },
    Remove {
        key: &'a [u8],
        behind: &'a [u8],
    },
}

fn next(bytes: &[u8]) -> Next<'_> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Next::End };
    let Some((sum, rest)) = rest.split_first_chunk::<4>() else { return Next::End };
    if crc32c::crc32c(length) != u32::from_be_bytes(*sum) {
        return Next::Damage;
    }
    let length = u32::from_be_bytes(*length) as usize;
    let Some((body, rest)) = rest.split_at_checked(length) else { return Next::End };
    let Some((sum, behind)) = rest.split_first_chunk::<4>() else { return Next::End };
    if crc32c::crc32c(body) != u32::from_be_bytes(*sum) {
        return Next::Damage;
    }
    let parts = body.split_first_chunk::<HEAD_BYTES>().and_then(|([kind, high, low], rest)| {
        let (key, value) = rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        Some((*kind, key, value))
    });
    match parts {
        Some((PUT, key, value)) => Next::Put { key, value, behind },
        Some((REMOVE, key, _)) => Next::Remove { key, behind },
        _ => Next::Damage,
    }
}

fn frame(kind: u8, key: &[u8], value: &[u8], into: &mut Vec<u8>) {
    let length = ((HEAD_BYTES + key.len() + value.len()) as u32).to_be_bytes();
    into.extend_from_slice(&length);
    into.extend_from_slice(&crc32c::crc32c(&length).to_be_bytes());
    let start = into.len();
    into.push(kind);
    into.extend_from_slice(&(key.len() as u16).to_be_bytes());
    into.extend_from_slice(key);
    into.extend_from_slice(value);
    let sum = crc32c::crc32c(&into[start..]);
    into.extend_from_slice(&sum.to_be_bytes());
}

fn size(key: &[u8], value: &[u8]) -> usize {
    FRAME_BYTES + HEAD_BYTES + key.len() + value.len()
}

impl Journal {
    /// Begins a file with these entries, and replaces an existing one. Keys have at most 65,535 bytes.
    pub(crate) fn begin(path: &Path, entries: Entries) -> io::Result<Journal> {
        let (file, file_bytes) = write_anew(path, &entries)?;
        let live_bytes = entries.iter().map(|(key, value)| size(key, value)).sum();
        Ok(Journal { path: path.into(), file, live: entries, live_bytes, file_bytes, pending: Vec::new() })
    }

    /// Makes `wanted` the only entries whose keys have this prefix. All keys of `wanted` must have it.
    pub(crate) fn sync(&mut self, prefix: &[u8], wanted: Entries) {
        let mine = |(key, _): &(&Vec<u8>, &Vec<u8>)| key.starts_with(prefix);
        let gone: Vec<Vec<u8>> = self
            .live
            .range(prefix.to_vec()..)
            .take_while(mine)
            .filter(|(key, _)| !wanted.contains_key(*key))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| self.remove(key));
        for (key, value) in wanted {
            self.put(key, value);
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Some(value) = self.live.remove(key) {
            self.live_bytes -= size(key, &value);
            frame(REMOVE, key, &[], &mut self.pending);
        }
    }

    /// Stores a value.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        if self.live.get(&key) == Some(&value) {
            return;
        }
        frame(PUT, &key, &value, &mut self.pending);
        self.live_bytes += size(&key, &value);
        let key_bytes = key.len();
        if let Some(old) = self.live.insert(key, value) {
            self.live_bytes -= FRAME_BYTES + HEAD_BYTES + key_bytes + old.len();
        }
    }

    /// Writes pending entries. When it returns, they survive the process.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if self.file_bytes > 2 * self.live_bytes + SLACK_BYTES {
            (self.file, self.file_bytes) = write_anew(&self.path, &self.live)?;
        } else {
            self.file.write_all(&self.pending)?;
            self.file_bytes += self.pending.len();
        }
        self.pending.clear();
        Ok(())
    }

    /// Removes the file, so that the next incarnation does not use it.
    pub(crate) fn abandon(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

fn write_anew(path: &Path, entries: &Entries) -> io::Result<(File, usize)> {
    let mut bytes = MAGIC.to_vec();
    for (key, value) in entries {
        frame(PUT, key, value, &mut bytes);
    }
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(&bytes)?;
    std::fs::rename(&beside, path)?;
    Ok((file, bytes.len()))
}

#[cfg(test)]
mod tests;
