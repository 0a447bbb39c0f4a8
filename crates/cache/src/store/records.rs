//! The record of an object in the index.

use std::sync::Arc;

use bytes::Bytes;
use vfs::{AccessMask, Attributes, Credential, Fsid, Handle, Name, Principal, Timestamp};

use super::codec::{Reader, Writer};
use super::objects::FileId;
use crate::listing::KnownListing;
use crate::ranges::RangeSet;
use crate::rights::Right;
use crate::sums::{Sum, Sums};

const VERSION: u8 = 2;
/// The layout of a cache that was made before there were checksums, places and ages.
const VERSION_BEFORE: u8 = 1;
/// A credential with more groups is not kept across a restart.
const GROUPS_MAX: usize = 64;

/// The index entry of an object.
#[derive(Clone, Debug)]
pub struct Record {
    /// The boot of the machine in which it was written.
    pub boot: u64,
    /// The number of the object's last use, in uses of the cache.
    pub used: u64,
    /// The time of the last use by the local clock, in seconds; zero if that is not known.
    pub used_at: i64,
    /// The directory and the name where it was last seen.
    pub place: Option<Place>,
    /// Its known state.
    pub kept: Kept,
    /// The rights that the origin has granted, by credential.
    pub rights: Vec<Right>,
    /// The target of a symbolic link.
    pub link: Option<Bytes>,
    /// Its listing.
    pub listing: Option<KeptListing>,
    /// Its data.
    pub data: Option<DataRecord>,
}

/// The listing of a directory. Its names are values of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptListing {
    /// Its number.
    pub id: u64,
    /// Part of it was read in a racy state.
    pub racy: bool,
    /// It is a guess. See [`KnownListing`].
    pub guessed: bool,
}

impl KeptListing {
    /// The part of a known listing that its directory's record has.
    pub fn of(known: &KnownListing) -> KeptListing {
        KeptListing { id: known.id, racy: known.racy, guessed: known.guessed.is_some() }
    }
}

/// The bits of a [`KeptListing`].
const RACY: u8 = 1;
const GUESSED: u8 = 2;

/// The part of an object's state that the index keeps, without the data.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The known state.
    pub attributes: Attributes,
    /// Its epoch.
    pub epoch: u64,
    /// Every later change of the object is visible in its attributes.
    pub nonracy: bool,
    /// When the call that last showed the state was sent, by the local clock.
    pub confirmed: Timestamp,
}

/// The directory and the name where an object was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: Handle,
    /// The name.
    pub name: Name,
}

/// The value in the table of uses. It tells enough to choose objects without reading every record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UseNote {
    /// It has data on this disk.
    pub has_data: bool,
    /// All of its data is on this disk.
    pub is_complete: bool,
    /// Its file system at the origin.
    pub fsid: Fsid,
}

impl UseNote {
    /// Encodes the note for the index.
    pub fn encode(self) -> Vec<u8> {
        let mut value = vec![u8::from(self.has_data) | u8::from(self.is_complete) << 1];
        value.extend_from_slice(&fsid_key(self.fsid));
        value
    }

    /// Decodes a note of the index. A note that does not decode has no data.
    pub fn decode(value: &[u8]) -> UseNote {
        let flags = value.first().copied().unwrap_or_default();
        let fsid = value.get(1..).and_then(fsid_of).unwrap_or_default();
        UseNote { has_data: flags & 1 != 0, is_complete: flags & 2 != 0, fsid }
    }
}

/// The id of a file system as bytes.
pub fn fsid_key(fsid: Fsid) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&fsid.major.to_be_bytes());
    key[8..].copy_from_slice(&fsid.minor.to_be_bytes());
    key
}

/// The id of a file system from such bytes.
pub fn fsid_of(key: &[u8]) -> Option<Fsid> {
    let (major, minor) = (key.get(..8)?.try_into().ok()?, key.get(8..16)?.try_into().ok()?);
    Some(Fsid { major: u64::from_be_bytes(major), minor: u64::from_be_bytes(minor) })
}

/// The index entry of an object's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRecord {
    /// The data file.
    pub file: FileId,
    /// Bytes of disk that it uses.
    pub allocated_bytes: u64,
    /// The valid ranges.
    pub valid: RangeSet,
    /// Those of them that are valid only until the next open.
    pub racy: RangeSet,
    /// The data is durable on the local disk.
    pub synced: bool,
    /// Checksums of the data.
    pub sums: Sums,
}

impl Record {
    /// Encodes the record for the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u64(self.boot);
        writer.u64(self.used);
        writer.u64(self.used_at as u64);
        writer.bool(self.place.is_some());
        if let Some(place) = &self.place {
            writer.bytes(place.directory.as_bytes());
            writer.bytes(place.name.as_bytes());
        }
        writer.timestamp(self.kept.confirmed);
        writer.attributes(&self.kept.attributes);
        writer.u64(self.kept.epoch);
        writer.bool(self.kept.nonracy);
        let keep =
            |right: &&Right| !matches!(&right.principal, Principal::Unix(c) if c.groups.len() > GROUPS_MAX);
        writer.u32(self.rights.iter().filter(keep).count() as u32);
        for right in self.rights.iter().filter(keep) {
            encode_right(&mut writer, right);
        }
        writer.bool(self.link.is_some());
        writer.bytes(self.link.as_deref().unwrap_or_default());
        writer.bool(self.listing.is_some());
        let listing = self.listing.unwrap_or_default();
        writer.u64(listing.id);
        writer.u8((RACY * u8::from(listing.racy)) | (GUESSED * u8::from(listing.guessed)));
        if let Some(data) = &self.data {
            writer.u128(data.file.0);
            writer.u64(data.allocated_bytes);
            writer.ranges(&data.valid);
            writer.ranges(&data.racy);
            writer.bool(data.synced);
            writer.u32(data.sums.len() as u32);
            for sum in data.sums.iter() {
                writer.u64(sum.range.start);
                writer.u64(sum.range.end);
                writer.u32(sum.crc);
            }
        }
        writer.finish()
    }

    /// Decodes a record of the index.
    pub fn decode(value: &[u8]) -> Option<Record> {
        let new = Reader::new(value, VERSION);
        let is_new = new.is_some();
        let mut reader = new.or_else(|| Reader::new(value, VERSION_BEFORE))?;
        let (boot, used) = (reader.u64()?, reader.u64()?);
        let used_at = if is_new { reader.u64()? as i64 } else { 0 };
        let place = if is_new && reader.bool()? { Some(decode_place(&mut reader)?) } else { None };
        let confirmed = if is_new { reader.timestamp()? } else { Timestamp::default() };
        let attributes = reader.attributes()?;
        let kept = Kept { attributes, epoch: reader.u64()?, nonracy: reader.bool()?, confirmed };
        let rights = (0..reader.u32()?).map(|_| decode_right(&mut reader)).collect::<Option<_>>()?;
        let linked = reader.bool()?;
        let target = Bytes::copy_from_slice(reader.bytes()?);
        let listed = reader.bool()?;
        let (id, bits) = (reader.u64()?, reader.u8()?);
        let listing = KeptListing { id, racy: bits & RACY != 0, guessed: bits & GUESSED != 0 };
        let data = if reader.is_empty() { None } else { Some(decode_data(&mut reader, is_new)?) };
        let (link, listing) = (linked.then_some(target), listed.then_some(listing));
        Some(Record { boot, used, used_at, place, kept, rights, link, listing, data })
    }
}

fn decode_place(reader: &mut Reader) -> Option<Place> {
    Some(Place { directory: reader.handle()?, name: Name::new(reader.bytes()?).ok()? })
}

fn decode_data(reader: &mut Reader, is_new: bool) -> Option<DataRecord> {
    Some(DataRecord {
        file: FileId(reader.u128()?),
        allocated_bytes: reader.u64()?,
        valid: reader.ranges()?,
        racy: reader.ranges()?,
        synced: reader.bool()?,
        sums: if is_new { decode_sums(reader)? } else { Sums::default() },
    })
}

fn decode_sums(reader: &mut Reader) -> Option<Sums> {
    let sum = |reader: &mut Reader| Some(Sum { range: reader.u64()?..reader.u64()?, crc: reader.u32()? });
    let sums = (0..reader.u32()?).map(|_| sum(reader)).collect::<Option<Vec<_>>>()?;
    Some(Sums::restored(sums.into_iter()))
}

fn encode_right(writer: &mut Writer, right: &Right) {
    match &right.principal {
        Principal::Machine => writer.bool(false),
        Principal::Unix(credential) => {
            writer.bool(true);
            writer.u32(credential.uid);
            writer.u32(credential.gid);
            writer.u32(credential.groups.len() as u32);
            credential.groups.iter().for_each(|group| writer.u32(*group));
        }
    }
    writer.bool(right.granted.is_some());
    writer.u32(right.granted.map_or(0, |granted| granted.bits()));
    writer.u32(right.proven.bits());
    writer.bool(right.racy);
    writer.timestamp(right.learnt);
}

fn decode_right(reader: &mut Reader) -> Option<Right> {
    let principal = if reader.bool()? {
        let (uid, gid) = (reader.u32()?, reader.u32()?);
        let groups = (0..reader.u32()?).map(|_| reader.u32()).collect::<Option<_>>()?;
        Principal::Unix(Arc::new(Credential { uid, gid, groups }))
    } else {
        Principal::Machine
    };
    let (answered, granted) = (reader.bool()?, AccessMask::from_bits_truncate(reader.u32()?));
    Some(Right {
        principal,
        granted: answered.then_some(granted),
        proven: AccessMask::from_bits_truncate(reader.u32()?),
        racy: reader.bool()?,
        learnt: reader.timestamp()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Caller;

    const LISTING: KeptListing = KeptListing { id: 12, racy: false, guessed: true };

    #[test]
    fn records_come_back() {
        let right = |principal| Right {
            principal,
            granted: Some(AccessMask::READ),
            proven: AccessMask::LOOKUP,
            racy: false,
            learnt: Timestamp::new(5, 6),
        };
        let mut valid = RangeSet::default();
        valid.insert(4096..9000);
        let data = DataRecord {
            file: FileId(1 << 77),
            allocated_bytes: 8192,
            valid,
            racy: RangeSet::default(),
            synced: true,
            sums: Sums::restored([Sum { range: 4096..8192, crc: 77 }].into_iter()),
        };
        let many = Caller::unix(1, 2, &[9; GROUPS_MAX + 1]).principal;
        let mut record = Record {
            boot: 1,
            used: 2,
            used_at: 1_700_000_000,
            place: Some(Place { directory: Handle::new(b"d").unwrap(), name: Name::new(b"f").unwrap() }),
            kept: Kept {
                attributes: crate::testing::attributes(9000, 44),
                epoch: 3,
                nonracy: true,
                confirmed: Timestamp::new(8, 9),
            },
            rights: vec![
                right(Principal::Machine),
                right(Caller::unix(1, 2, &[3, 4]).principal),
                right(many),
            ],
            link: Some(Bytes::from_static(b"target")),
            listing: Some(LISTING),
            data: Some(data.clone()),
        };
        let back = Record::decode(&record.encode()).unwrap();
        assert_eq!(back.rights, record.rights[..2]);
        assert_eq!((back.boot, back.used, &back.link, back.listing), (1, 2, &record.link, Some(LISTING)));
        assert_eq!(back.kept.attributes, record.kept.attributes);
        assert_eq!((back.kept.epoch, back.kept.nonracy), (3, true));
        assert_eq!(
            (back.used_at, &back.place, back.kept.confirmed),
            (record.used_at, &record.place, Timestamp::new(8, 9))
        );
        assert_eq!(back.data, Some(data.clone()));
        record.data = None;
        record.link = None;
        record.listing = None;
        let back = Record::decode(&record.encode()).unwrap();
        assert!(back.data.is_none() && back.link.is_none() && back.listing.is_none());
        let mut before = Writer::new(VERSION_BEFORE);
        before.u64(1);
        before.u64(2);
        before.attributes(&record.kept.attributes);
        before.u64(3);
        before.bool(true);
        before.u32(0);
        before.bool(false);
        before.bytes(b"");
        before.bool(false);
        before.u64(0);
        before.bool(false);
        before.u128(77);
        before.u64(8192);
        before.ranges(&data.valid);
        before.ranges(&data.racy);
        before.bool(true);
        let back = Record::decode(&before.finish()).unwrap();
        assert_eq!((back.used, back.used_at, back.place), (2, 0, None));
        assert_eq!(back.data, Some(DataRecord { file: FileId(77), sums: Sums::default(), ..data }));
        let note = UseNote { has_data: true, is_complete: false, fsid: Fsid { major: 1 << 40, minor: 9 } };
        assert_eq!(UseNote::decode(&note.encode()), note);
        assert_eq!(UseNote::decode(&[]), UseNote::default());
    }
}
