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

mod blocks;
pub(crate) mod fields;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smallvec::SmallVec;

use blocks::Blocks;

use crate::replica::Mirror;

const MAGIC: &[u8] = b"leasehold client 1\n";
const PUT: u8 = 1;
const REMOVE: u8 = 2;
/// The length field and the two checksums.
const FRAME_BYTES: usize = 12;
/// The kind and the length of the key.
const HEAD_BYTES: usize = 3;
/// Obsolete bytes that do not justify a new file.
const SLACK_BYTES: usize = 1 << 20;
/// The largest file that is read: enough for two million opens with a delegation each, twice.
const FILE_MAX_BYTES: u64 = 1 << 30;

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

/// A key in memory. Most have nine bytes.
type Key = SmallVec<[u8; 16]>;

/// The place of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    offset: u64,
    length: u32,
    /// The checksum of the value.
    sum: u32,
}

/// The file and its entries.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    live: BTreeMap<Key, Span>,
    live_bytes: usize,
    file_bytes: usize,
    /// Frames that are not written yet.
    pending: Vec<u8>,
    /// Obsolete bytes that do not justify another file.
    slack_bytes: usize,
    /// A copy elsewhere.
    mirror: Option<Arc<Mirror>>,
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

/// The bytes of an entry in the file.
fn size(key: &[u8], value_bytes: usize) -> usize {
    FRAME_BYTES + HEAD_BYTES + key.len() + value_bytes
}

impl Span {
    /// The place of a value whose frame begins at this offset.
    fn in_frame(frame: usize, key: &[u8], value: &[u8]) -> Span {
        // The length, its checksum and the head come before the key.
        let offset = (frame + 8 + HEAD_BYTES + key.len()) as u64;
        Span { offset, length: value.len() as u32, sum: crc32c::crc32c(value) }
    }
}

impl Journal {
    /// Begins a file with these entries, and replaces an existing one. Keys have at most 65,535 bytes.
    pub(crate) fn begin(path: &Path, entries: &Entries) -> io::Result<Journal> {
        let live_bytes = entries.iter().map(|(key, value)| size(key, value.len())).sum();
        let mut anew = Anew::create(path)?;
        for (key, value) in entries {
            anew.put(key, value)?;
        }
        let (file, file_bytes, live) = anew.finish(path)?;
        let (pending, slack_bytes) = (Vec::new(), SLACK_BYTES);
        let (path, mirror) = (path.into(), None);
        Ok(Journal { path, file, live, live_bytes, file_bytes, pending, slack_bytes, mirror })
    }

    /// Keeps a copy from now on. The copy must have all entries already.
    pub(crate) fn mirrored(&mut self, mirror: Arc<Mirror>) {
        self.mirror = Some(mirror);
    }

    /// Makes `wanted` the only entries whose keys have this prefix. All keys of `wanted` must have it.
    pub(crate) fn sync(&mut self, prefix: &[u8], wanted: Entries) {
        let gone: Vec<Key> = self
            .live
            .range(Key::from_slice(prefix)..)
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(prefix))
            .filter(|key| !wanted.contains_key(&key[..]))
            .cloned()
            .collect();
        gone.iter().for_each(|key| self.remove(key));
        for (key, value) in wanted {
            self.put(&key, &value);
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if let Some(span) = self.live.remove(key) {
            self.live_bytes -= size(key, span.length as usize);
            frame(REMOVE, key, &[], &mut self.pending);
            self.mirror.iter().for_each(|mirror| mirror.change(key, None));
        }
    }

    /// Stores a value.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let span = Span::in_frame(self.file_bytes + self.pending.len(), key, value);
        let old = self.live.get(key).copied();
        if old.is_some_and(|old| (old.length, old.sum) == (span.length, span.sum) && self.has(old, value)) {
            return;
        }
        frame(PUT, key, value, &mut self.pending);
        self.mirror.iter().for_each(|mirror| mirror.change(key, Some(value)));
        self.live_bytes += size(key, value.len());
        if let Some(old) = self.live.insert(Key::from_slice(key), span) {
            self.live_bytes -= size(key, old.length as usize);
        }
    }

    /// Is this the value at that place? If the file cannot be read, it is not.
    fn has(&self, span: Span, value: &[u8]) -> bool {
        if let Some(from) = span.offset.checked_sub(self.file_bytes as u64) {
            let from = from as usize;
            return self.pending.get(from..from + value.len()) == Some(value);
        }
        let mut stored = vec![0; value.len()];
        self.file.read_exact_at(&mut stored, span.offset).is_ok_and(|()| stored == value)
    }

    /// Writes pending entries. When it returns, they survive the process.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.file.write_all(&self.pending)?;
        self.file_bytes += self.pending.len();
        self.pending.clear();
        if self.file_bytes > 2 * self.live_bytes + self.slack_bytes {
            // This file holds everything. If another one cannot be written, it grows.
            let written = self.write_anew().inspect_err(|error| {
                tracing::debug!(%error, "no shorter {} could be written", self.path.display());
            });
            self.slack_bytes = if written.is_ok() { SLACK_BYTES } else { self.file_bytes };
        }
        Ok(())
    }

    /// Writes a file without what is obsolete, and puts it in the place of this one.
    fn write_anew(&mut self) -> io::Result<()> {
        let mut anew = Anew::create(&self.path)?;
        let mut blocks = Blocks::new(&self.file);
        let mut live: Vec<(&Key, Span)> = self.live.iter().map(|(key, span)| (key, *span)).collect();
        live.sort_unstable_by_key(|(_, span)| span.offset);
        for (key, span) in live {
            let value = blocks.read(span.offset, span.length as usize)?;
            if crc32c::crc32c(value) != span.sum {
                return Err(io::ErrorKind::InvalidData.into());
            }
            anew.put(key, value)?;
        }
        (self.file, self.file_bytes, self.live) = anew.finish(&self.path)?;
        Ok(())
    }

    /// Removes the file, so that the next incarnation does not use it.
    pub(crate) fn abandon(self) -> io::Result<()> {
        self.mirror.iter().for_each(|mirror| mirror.begin(Entries::new()));
        std::fs::remove_file(&self.path)
    }
}

/// A new file beside the one that it is to replace.
struct Anew {
    file: BufWriter<File>,
    file_bytes: usize,
    live: BTreeMap<Key, Span>,
    frame: Vec<u8>,
}

impl Anew {
    fn beside(path: &Path) -> PathBuf {
        path.with_extension("new")
    }

    fn create(path: &Path) -> io::Result<Anew> {
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(Anew::beside(path))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(MAGIC)?;
        Ok(Anew { file, file_bytes: MAGIC.len(), live: BTreeMap::new(), frame: Vec::new() })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.live.insert(Key::from_slice(key), Span::in_frame(self.file_bytes, key, value));
        self.frame.clear();
        frame(PUT, key, value, &mut self.frame);
        self.file_bytes += self.frame.len();
        self.file.write_all(&self.frame)
    }

    /// Puts it in the place of the other file. Returns the file, its length, and the places of its entries.
    fn finish(self, path: &Path) -> io::Result<(File, usize, BTreeMap<Key, Span>)> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        std::fs::rename(Anew::beside(path), path)?;
        Ok((file, self.file_bytes, self.live))
    }
}

#[cfg(test)]
mod tests;
