//! The encoding of index values: little-endian integers, byte strings with their length first, and a CRC32C
//! at the end.
//!
//! A value that does not decode counts as missing: [`Reader`] returns `None` and never panics.

use std::ops::Range;

use vfs::{Attributes, Device, FileType, Fsid, Handle, Timestamp};

use crate::ranges::RangeSet;

/// Builds a value.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins a value of this layout.
    pub fn new(version: u8) -> Writer {
        Writer(vec![version])
    }

    /// The value without a checksum.
    pub fn bare(self) -> Vec<u8> {
        self.0
    }

    /// Ends the value with its checksum.
    pub fn finish(mut self) -> Vec<u8> {
        let sum = crc32c::crc32c(&self.0);
        self.0.extend_from_slice(&sum.to_le_bytes());
        self.0
    }

    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    pub fn timestamp(&mut self, time: Timestamp) {
        self.u64(time.seconds as u64);
        self.u32(time.nanoseconds);
    }

    pub fn ranges(&mut self, set: &RangeSet) {
        self.u32(set.len() as u32);
        for range in set.iter() {
            self.u64(range.start);
            self.u64(range.end);
        }
    }

    pub fn attributes(&mut self, attributes: &Attributes) {
        self.u8(type_code(attributes.file_type));
        for word in [attributes.mode, attributes.nlink, attributes.uid, attributes.gid] {
            self.u32(word);
        }
        self.u64(attributes.size);
        self.u64(attributes.used);
        self.u32(attributes.rdev.major);
        self.u32(attributes.rdev.minor);
        self.u64(attributes.fsid.major);
        self.u64(attributes.fsid.minor);
        self.u64(attributes.fileid);
        self.timestamp(attributes.atime);
        self.timestamp(attributes.mtime);
        self.timestamp(attributes.ctime);
        self.u64(attributes.change);
    }
}

/// Decodes a value.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Begins to decode a value, if its checksum is right and it has this layout.
    pub fn new(value: &'a [u8], version: u8) -> Option<Reader<'a>> {
        let (body, sum) = value.split_last_chunk::<4>()?;
        if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
            return None;
        }
        let (first, rest) = body.split_first()?;
        (*first == version).then_some(Reader(rest))
    }

    /// Begins to decode a value that has no checksum of its own, if it has this layout.
    pub fn bare(value: &'a [u8], version: u8) -> Option<Reader<'a>> {
        let (first, rest) = value.split_first()?;
        (*first == version).then_some(Reader(rest))
    }

    /// The bytes that are not decoded yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Is everything decoded?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn bool(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Option<u128> {
        self.take().map(u128::from_le_bytes)
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()? as usize;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }

    pub fn handle(&mut self) -> Option<Handle> {
        Handle::new(self.bytes()?)
    }

    pub fn timestamp(&mut self) -> Option<Timestamp> {
        Some(Timestamp::new(self.u64()? as i64, self.u32()?))
    }

    pub fn ranges(&mut self) -> Option<RangeSet> {
        let mut set = RangeSet::default();
        for _ in 0..self.u32()? {
            let range: Range<u64> = self.u64()?..self.u64()?;
            set.insert(range);
        }
        Some(set)
    }

    pub fn attributes(&mut self) -> Option<Attributes> {
        Some(Attributes {
            file_type: file_type(self.u8()?)?,
            mode: self.u32()?,
            nlink: self.u32()?,
            uid: self.u32()?,
            gid: self.u32()?,
            size: self.u64()?,
            used: self.u64()?,
            rdev: Device { major: self.u32()?, minor: self.u32()? },
            fsid: Fsid { major: self.u64()?, minor: self.u64()? },
            fileid: self.u64()?,
            atime: self.timestamp()?,
            mtime: self.timestamp()?,
            ctime: self.timestamp()?,
            change: self.u64()?,
        })
    }
}

const TYPES: [FileType; 7] = [
    FileType::Regular,
    FileType::Directory,
    FileType::Block,
    FileType::Character,
    FileType::Symlink,
    FileType::Socket,
    FileType::Fifo,
];

fn type_code(file_type: FileType) -> u8 {
    TYPES.iter().position(|there| *there == file_type).unwrap_or_default() as u8
}

fn file_type(code: u8) -> Option<FileType> {
    TYPES.get(usize::from(code)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_come_back() {
        let mut set = RangeSet::default();
        set.insert(3..9);
        set.insert(100..4096);
        let attributes = crate::testing::attributes(77, 5);
        let mut writer = Writer::new(3);
        writer.bool(true);
        writer.u128(1 << 100);
        writer.bytes(b"name");
        writer.ranges(&set);
        writer.attributes(&attributes);
        let value = writer.finish();
        let mut reader = Reader::new(&value, 3).unwrap();
        assert_eq!(reader.bool(), Some(true));
        assert_eq!(reader.u128(), Some(1 << 100));
        assert_eq!(reader.bytes(), Some(&b"name"[..]));
        assert_eq!(reader.ranges(), Some(set));
        assert_eq!(reader.attributes(), Some(attributes));
        assert!(reader.is_empty());
        assert!(Reader::new(&value, 4).is_none());
    }

    proptest! {
        #[test]
        fn damage_is_found(bytes in prop::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>()) {
            let mut writer = Writer::new(1);
            writer.bytes(&bytes);
            let mut value = writer.finish();
            let at = at.index(value.len());
            value[at] ^= 0x10;
            prop_assert!(Reader::new(&value, 1).is_none());
        }
    }
}
