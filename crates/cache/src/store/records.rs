//! The record of an object in the index.

use std::sync::Arc;

use bytes::Bytes;
use vfs::{AccessMask, Credential, Principal};

use super::codec::{Reader, Writer};
use super::objects::FileId;
use crate::object::Kept;
use crate::ranges::RangeSet;
use crate::rights::Right;

const VERSION: u8 = 1;
/// A credential with more groups is not kept across a restart.
const GROUPS_MAX: usize = 64;

/// What the index remembers of an object.
#[derive(Clone, Debug)]
pub struct Record {
    /// In which running of the machine it was written.
    pub boot: u64,
    /// When the object was last used, in uses of the cache.
    pub used: u64,
    /// Its known state.
    pub kept: Kept,
    /// To whom the origin allowed what.
    pub rights: Vec<Right>,
    /// The target of a symbolic link.
    pub link: Option<Bytes>,
    /// Number of its listing, and whether that is young.
    pub listing: Option<(u64, bool)>,
    /// Its data.
    pub data: Option<DataRecord>,
}

/// What the index remembers of an object's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataRecord {
    /// Where it is.
    pub file: FileId,
    /// Bytes of disk that it uses.
    pub allocated_bytes: u64,
    /// What is there.
    pub valid: RangeSet,
    /// What of it is good until the next open only.
    pub young: RangeSet,
    /// It has reached the disk itself.
    pub synced: bool,
}

impl Record {
    /// For the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u64(self.boot);
        writer.u64(self.used);
        writer.attributes(&self.kept.attributes);
        writer.u64(self.kept.epoch);
        writer.bool(self.kept.settled);
        let keep =
            |right: &&Right| !matches!(&right.principal, Principal::Unix(c) if c.groups.len() > GROUPS_MAX);
        writer.u32(self.rights.iter().filter(keep).count() as u32);
        for right in self.rights.iter().filter(keep) {
            encode_right(&mut writer, right);
        }
        writer.bool(self.link.is_some());
        writer.bytes(self.link.as_deref().unwrap_or_default());
        writer.bool(self.listing.is_some());
        let (listing, young) = self.listing.unwrap_or_default();
        writer.u64(listing);
        writer.bool(young);
        if let Some(data) = &self.data {
            writer.u128(data.file.0);
            writer.u64(data.allocated_bytes);
            writer.ranges(&data.valid);
            writer.ranges(&data.young);
            writer.bool(data.synced);
        }
        writer.finish()
    }

    /// From the index.
    pub fn decode(value: &[u8]) -> Option<Record> {
        let mut reader = Reader::new(value, VERSION)?;
        let (boot, used) = (reader.u64()?, reader.u64()?);
        let kept = Kept { attributes: reader.attributes()?, epoch: reader.u64()?, settled: reader.bool()? };
        let rights = (0..reader.u32()?).map(|_| decode_right(&mut reader)).collect::<Option<_>>()?;
        let linked = reader.bool()?;
        let target = Bytes::copy_from_slice(reader.bytes()?);
        let listed = reader.bool()?;
        let listing = (reader.u64()?, reader.bool()?);
        let data = if reader.is_empty() { None } else { Some(decode_data(&mut reader)?) };
        let (link, listing) = (linked.then_some(target), listed.then_some(listing));
        Some(Record { boot, used, kept, rights, link, listing, data })
    }
}

fn decode_data(reader: &mut Reader) -> Option<DataRecord> {
    Some(DataRecord {
        file: FileId(reader.u128()?),
        allocated_bytes: reader.u64()?,
        valid: reader.ranges()?,
        young: reader.ranges()?,
        synced: reader.bool()?,
    })
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
    writer.bool(right.young);
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
        young: reader.bool()?,
        learnt: reader.timestamp()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::{Caller, Timestamp};

    #[test]
    fn records_come_back() {
        let right = |principal| Right {
            principal,
            granted: Some(AccessMask::READ),
            proven: AccessMask::LOOKUP,
            young: false,
            learnt: Timestamp::new(5, 6),
        };
        let mut valid = RangeSet::default();
        valid.insert(4096..9000);
        let data = DataRecord {
            file: FileId(1 << 77),
            allocated_bytes: 8192,
            valid,
            young: RangeSet::default(),
            synced: true,
        };
        let many = Caller::unix(1, 2, &[9; GROUPS_MAX + 1]).principal;
        let mut record = Record {
            boot: 1,
            used: 2,
            kept: Kept { attributes: crate::testing::attributes(9000, 44), epoch: 3, settled: true },
            rights: vec![
                right(Principal::Machine),
                right(Caller::unix(1, 2, &[3, 4]).principal),
                right(many),
            ],
            link: Some(Bytes::from_static(b"target")),
            listing: Some((12, false)),
            data: Some(data.clone()),
        };
        let back = Record::decode(&record.encode()).unwrap();
        assert_eq!(back.rights, record.rights[..2]);
        assert_eq!((back.boot, back.used, &back.link, back.listing), (1, 2, &record.link, Some((12, false))));
        assert_eq!(back.kept.attributes, record.kept.attributes);
        assert_eq!((back.kept.epoch, back.kept.settled), (3, true));
        assert_eq!(back.data, Some(data));
        record.data = None;
        record.link = None;
        record.listing = None;
        let back = Record::decode(&record.encode()).unwrap();
        assert!(back.data.is_none() && back.link.is_none() && back.listing.is_none());
    }
}
