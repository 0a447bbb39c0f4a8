//! The group of a directory, and its row in the index.

use vfs::Name;

use crate::store::codec::{Reader, Writer};

const VERSION: u8 = 1;
/// Names in a group.
pub(super) const NAMES_MAX: usize = 256;
/// Bytes of all names of a group.
const NAMES_MAX_BYTES: usize = 16 << 10;
/// A name that was expected in vain so often is dropped.
const VAIN_MAX: u8 = 2;

/// A file that was opened with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Its name.
    pub name: Name,
    /// How often it was expected in vain since it was last opened.
    pub vain: u8,
}

/// The files of a directory that were opened together, in the order of their first open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub(super) list: Vec<Companion>,
}

impl Group {
    /// A group of these files, as many as fit.
    pub(super) fn new(files: impl Iterator<Item = Companion>) -> Group {
        let mut bytes = 0;
        let fits = |file: &Companion| {
            bytes += file.name.as_bytes().len();
            bytes <= NAMES_MAX_BYTES
        };
        let files = files.filter(|file| file.vain < VAIN_MAX).take(NAMES_MAX);
        Group { list: files.take_while(fits).collect() }
    }

    /// Does it tell anything? Nobody expects one file.
    pub(super) fn is_of_use(&self) -> bool {
        self.list.len() > 1
    }

    /// Encodes the group for the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u32(self.list.len() as u32);
        for file in &self.list {
            writer.bytes(file.name.as_bytes());
            writer.u8(file.vain);
        }
        writer.finish()
    }

    /// Decodes a row of the index. A row that does not decode counts as missing.
    pub fn decode(value: &[u8]) -> Option<Group> {
        let mut reader = Reader::new(value, VERSION)?;
        let count = reader.u32()? as usize;
        if count > NAMES_MAX {
            return None;
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(Companion { name: Name::new(reader.bytes()?).ok()?, vain: reader.u8()? });
        }
        reader.is_empty().then_some(Group { list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn companion() -> impl Strategy<Value = Companion> {
        let name =
            prop::collection::vec(1u8.., 1..255).prop_filter_map("no name", |bytes| Name::new(&bytes).ok());
        (name, 0u8..4).prop_map(|(name, vain)| Companion { name, vain })
    }

    proptest! {
        #[test]
        fn groups_come_back(files in prop::collection::vec(companion(), 0..400)) {
            let group = Group::new(files.into_iter());
            prop_assert!(group.list.len() <= NAMES_MAX);
            prop_assert!(group.list.iter().map(|file| file.name.as_bytes().len()).sum::<usize>() <= NAMES_MAX_BYTES);
            prop_assert!(group.list.iter().all(|file| file.vain < VAIN_MAX));
            prop_assert_eq!(Group::decode(&group.encode()), Some(group));
        }

        #[test]
        fn damage_is_found(
            files in prop::collection::vec(companion(), 0..20),
            at in any::<prop::sample::Index>(),
            noise in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut row = Group::new(files.into_iter()).encode();
            let at = at.index(row.len());
            row[at] ^= 0x40;
            prop_assert_eq!(Group::decode(&row), None);
            prop_assert_eq!(Group::decode(&row[..at]), None);
            // Bytes with a right checksum that no version of this program has written.
            let mut writer = Writer::new(VERSION);
            noise.iter().for_each(|byte| writer.u8(*byte));
            if let Some(group) = Group::decode(&writer.finish()) {
                prop_assert!(group.list.len() <= NAMES_MAX);
            }
        }
    }
}
