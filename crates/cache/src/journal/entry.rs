//! The entries of the journal and their encoding.
//!
//! An entry is a frame on disk: the length of its body, the CRC32C of the body, a byte that says whether the
//! entry is live, and the body. The checksum does not cover that byte, so it can be changed in place.

use std::sync::Arc;

use bytes::Bytes;
use vfs::{Credential, Handle, LeaseId, Name, Principal, Timestamp};

use crate::store::Place;
use crate::store::codec::{Reader, Writer};

/// The layout of the bodies.
const LAYOUT: u8 = 1;
/// Bytes of a frame before its body.
pub const FRAME_BYTES: usize = 9;
/// Where the byte is that says whether the entry is live.
pub const LIVE_AT: u64 = 8;
/// The longest body. The kernel's largest write is 1 MiB.
const BODY_MAX_BYTES: usize = 64 << 20;
/// The last number of a file. They count up from 1.
const FILE_MAX: u64 = u64::MAX >> 1;
/// Supplementary groups of a writer; Linux has no more.
const GROUPS_MAX: usize = 65_536;

/// One step in the delayed writes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The first entry of a file in a segment.
    Begin(Box<Begin>),
    /// The file's change attribute at the origin, after all that this process has sent.
    Change(u64),
    /// A program wrote.
    Write {
        /// In whose name the bytes are sent.
        writer: Principal,
        /// Offset of the first byte.
        offset: u64,
        /// The origin's clock at the write, by estimate.
        modified: Timestamp,
        /// The data.
        bytes: Bytes,
    },
    /// Attributes wait until the data is at the origin.
    Attributes(Set),
    /// A truncation to this size, in bytes, is about to be sent.
    Cut(u64),
    /// That truncation has ended. True if the origin has carried it out.
    CutEnd(bool),
    /// The attributes that waited are set.
    AttributesEnd,
    /// Everything that remains of the file is entered anew, in so many entries: see [`Begin::replaces`].
    Complete(u64),
}

/// The file whose writes follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The file.
    pub handle: Handle,
    /// The write lease under which the writes are delayed.
    pub lease: LeaseId,
    /// The directory and the name where the file was last seen.
    pub place: Option<Place>,
    /// The file's change attribute at the origin, as for [`Entry::Change`], if it was known.
    pub change: Option<u64>,
    /// The file was entered under this number before, and is entered anew. From [`Entry::Complete`] on, the
    /// earlier entries do not count. Without it, these do not count.
    pub replaces: Option<u64>,
}

impl Begin {
    /// The last name of the file, for messages.
    pub fn shown(&self) -> String {
        let name = self.place.as_ref().map_or(&b"a file"[..], |place| place.name.as_bytes());
        String::from_utf8_lossy(name).escape_debug().to_string()
    }
}

/// Attributes that wait, and in whose name they are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// In whose name.
    pub writer: Principal,
    /// The atime, if any.
    pub atime: Option<Timestamp>,
    /// The mtime, if any.
    pub mtime: Option<Timestamp>,
    /// The mode, the owner and the group, if any.
    pub rights: [Option<u32>; 3],
    /// A program requested it.
    pub asked: bool,
}

/// The file that an entry belongs to, and the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The number of the file in this journal.
    pub file: u64,
    /// The entry.
    pub entry: Entry,
}

/// Encodes the frame of an entry. The data of a write follows it and is not copied.
pub fn encode(file: u64, entry: &Entry) -> (Vec<u8>, &[u8]) {
    let mut body = Writer::new(LAYOUT);
    body.u64(file);
    let mut data: &[u8] = &[];
    match entry {
        Entry::Begin(begin) => {
            body.u8(0);
            body.bytes(begin.handle.as_bytes());
            body.u64(begin.lease.0);
            for number in [begin.change, begin.replaces] {
                body.bool(number.is_some());
                body.u64(number.unwrap_or_default());
            }
            body.bool(begin.place.is_some());
            if let Some(place) = &begin.place {
                body.bytes(place.directory.as_bytes());
                body.bytes(place.name.as_bytes());
            }
        }
        Entry::Change(change) => {
            body.u8(1);
            body.u64(*change);
        }
        Entry::Write { writer, offset, modified, bytes } => {
            body.u8(2);
            encode_principal(&mut body, writer);
            body.u64(*offset);
            body.timestamp(*modified);
            data = bytes;
        }
        Entry::Attributes(set) => {
            body.u8(3);
            encode_set(&mut body, set);
        }
        Entry::Cut(end) => {
            body.u8(4);
            body.u64(*end);
        }
        Entry::CutEnd(done) => {
            body.u8(5);
            body.bool(*done);
        }
        Entry::AttributesEnd => body.u8(6),
        Entry::Complete(count) => {
            body.u8(7);
            body.u64(*count);
        }
    }
    let body = body.bare();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&body), data);
    let length = (body.len() + data.len()) as u32;
    let mut frame = Vec::with_capacity(FRAME_BYTES + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&sum.to_le_bytes());
    frame.push(1);
    frame.extend_from_slice(&body);
    (frame, data)
}

fn encode_principal(to: &mut Writer, principal: &Principal) {
    match principal {
        Principal::Machine => to.bool(false),
        Principal::Unix(credential) => {
            to.bool(true);
            to.u32(credential.uid);
            to.u32(credential.gid);
            to.u32(credential.groups.len() as u32);
            credential.groups.iter().for_each(|group| to.u32(*group));
        }
    }
}

fn encode_set(to: &mut Writer, set: &Set) {
    encode_principal(to, &set.writer);
    for time in [set.atime, set.mtime] {
        to.bool(time.is_some());
        to.timestamp(time.unwrap_or_default());
    }
    for right in set.rights {
        to.bool(right.is_some());
        to.u32(right.unwrap_or_default());
    }
    to.bool(set.asked);
}

/// A frame that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its length in bytes.
    pub bytes: usize,
    /// Whether it is live.
    pub live: bool,
    /// What it says.
    pub entry: Numbered,
}

/// Why a frame cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The bytes end before the frame does: there is no frame, or the process was killed in the middle of it.
    Torn,
    /// The frame is damaged, or of another version.
    Damaged,
}

/// Decodes the frame at the start of `from`.
///
/// # Errors
/// Nothing after it can be read.
pub fn decode(from: &Bytes) -> Result<Frame, Unread> {
    let (length, sum, live, body) = split(from).ok_or(Unread::Torn)?;
    if length > BODY_MAX_BYTES {
        return Err(Unread::Damaged);
    }
    let body = body.get(..length).ok_or(Unread::Torn)?;
    let sound = crc32c::crc32c(body) == sum;
    let entry = if sound { decode_body(&from.slice_ref(body)) } else { None };
    Ok(Frame { bytes: FRAME_BYTES + length, live, entry: entry.ok_or(Unread::Damaged)? })
}

/// Length and checksum of the body, whether the frame is live, and the bytes from the body on.
fn split(from: &[u8]) -> Option<(usize, u32, bool, &[u8])> {
    let (length, rest) = from.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (live, rest) = rest.split_first()?;
    Some((u32::from_le_bytes(*length) as usize, u32::from_le_bytes(*sum), *live != 0, rest))
}

fn decode_body(body: &Bytes) -> Option<Numbered> {
    let mut from = Reader::bare(body, LAYOUT)?;
    let file = Some(from.u64()?).filter(|file| *file <= FILE_MAX)?;
    let entry = match from.u8()? {
        0 => Entry::Begin(Box::new(Begin {
            handle: from.handle()?,
            lease: LeaseId(from.u64()?),
            change: Some((from.bool()?, from.u64()?)).and_then(|(known, change)| known.then_some(change)),
            replaces: Some((from.bool()?, from.u64()?)).and_then(|(known, file)| known.then_some(file)),
            place: if from.bool()? {
                Some(Place { directory: from.handle()?, name: Name::new(from.bytes()?).ok()? })
            } else {
                None
            },
        })),
        1 => Entry::Change(from.u64()?),
        2 => Entry::Write {
            writer: decode_principal(&mut from)?,
            offset: from.u64()?,
            modified: from.timestamp()?,
            bytes: body.slice_ref(from.rest()),
        },
        3 => Entry::Attributes(decode_set(&mut from)?),
        4 => Entry::Cut(from.u64()?),
        5 => Entry::CutEnd(from.bool()?),
        6 => Entry::AttributesEnd,
        7 => Entry::Complete(from.u64()?),
        _ => return None,
    };
    Some(Numbered { file, entry })
}

fn decode_principal(from: &mut Reader<'_>) -> Option<Principal> {
    if !from.bool()? {
        return Some(Principal::Machine);
    }
    let (uid, gid) = (from.u32()?, from.u32()?);
    let count = Some(from.u32()? as usize).filter(|count| *count <= GROUPS_MAX)?;
    let groups = (0..count).map(|_| from.u32()).collect::<Option<Vec<u32>>>()?;
    Some(Principal::Unix(Arc::new(Credential { uid, gid, groups })))
}

fn decode_set(from: &mut Reader<'_>) -> Option<Set> {
    let writer = decode_principal(from)?;
    let mut time = || Some((from.bool()?, from.timestamp()?)).map(|(set, time)| set.then_some(time));
    let (atime, mtime) = (time()?, time()?);
    let mut right = || Some((from.bool()?, from.u32()?)).map(|(set, right)| set.then_some(right));
    let rights = [right()?, right()?, right()?];
    Some(Set { writer, atime, mtime, rights, asked: from.bool()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn writer() -> Principal {
        Principal::Unix(Arc::new(Credential { uid: 7, gid: 8, groups: vec![9, 10] }))
    }

    fn entries() -> Vec<Entry> {
        let handle = Handle::new(b"file").unwrap();
        let place =
            Place { directory: Handle::new(b"directory").unwrap(), name: Name::new(b"name").unwrap() };
        vec![
            Entry::Begin(Box::new(Begin {
                handle,
                lease: LeaseId(3),
                change: Some(8),
                replaces: None,
                place: Some(place),
            })),
            Entry::Begin(Box::new(Begin {
                handle,
                lease: LeaseId(u64::MAX),
                change: None,
                replaces: Some(6),
                place: None,
            })),
            Entry::Change(77),
            Entry::Write {
                writer: writer(),
                offset: 1 << 40,
                modified: Timestamp::new(-5, 6),
                bytes: Bytes::from_static(b"some bytes"),
            },
            Entry::Write {
                writer: Principal::Machine,
                offset: 0,
                modified: Timestamp::default(),
                bytes: Bytes::new(),
            },
            Entry::Attributes(Set {
                writer: writer(),
                atime: Some(Timestamp::new(1, 2)),
                mtime: None,
                rights: [Some(0o644), None, Some(4)],
                asked: true,
            }),
            Entry::Cut(9),
            Entry::CutEnd(true),
            Entry::AttributesEnd,
            Entry::Complete(12),
        ]
    }

    fn frame(file: u64, entry: &Entry) -> Bytes {
        let (frame, data) = encode(file, entry);
        Bytes::from([&frame, data].concat())
    }

    #[test]
    fn entries_come_back() {
        for entry in entries() {
            let mut bytes = frame(5, &entry).to_vec();
            let length = bytes.len();
            bytes.extend_from_slice(b"what follows");
            let read = decode(&bytes.into()).unwrap();
            assert_eq!(read, Frame { bytes: length, live: true, entry: Numbered { file: 5, entry } });
        }
    }

    #[test]
    fn a_number_beyond_all_files_is_damage() {
        assert!(decode(&frame(FILE_MAX, &Entry::AttributesEnd)).is_ok());
        assert_eq!(decode(&frame(FILE_MAX + 1, &Entry::AttributesEnd)), Err(Unread::Damaged));
    }

    proptest! {
        #[test]
        fn torn_and_damaged_frames_are_found(
            which in 0..10_usize,
            at in any::<prop::sample::Index>(),
            length in any::<prop::sample::Index>(),
        ) {
            let bytes = frame(1 << 50, &entries()[which]);
            prop_assert_eq!(decode(&bytes.slice(..length.index(bytes.len()))), Err(Unread::Torn));
            let mut damaged = bytes.to_vec();
            let at = at.index(damaged.len());
            damaged[at] ^= 0x10;
            let read = decode(&damaged.into());
            // One byte may be changed in place.
            prop_assert!(read.is_err() || at as u64 == LIVE_AT);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let sum = crc32c::crc32c(&bytes);
            let frame = [&(bytes.len() as u32).to_le_bytes()[..], &sum.to_le_bytes(), &[1], &bytes].concat();
            let _ = decode(&frame.into());
        }
    }
}
