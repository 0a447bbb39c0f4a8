//! Names in the index: the object that a name in a directory leads to, or a negative entry.
//!
//! A positive entry is valid as long as no other client has changed the **child**. Removing, renaming or
//! replacing a name moves the ctime or the link count of the object that the name led to (Lever 2001). A
//! negative entry is valid as long as no other client has changed the **directory**. The epoch in the entry
//! expresses both conditions. Our own changes of names edit the entries.
//!
//! Under a **lease on the directory**, only the directory's epoch counts. A name that was seen in that epoch
//! exists, whatever has happened to the child since.

use vfs::{Handle, Name};

use crate::store::codec::{Reader, Writer};
use crate::store::{Batch, Table};

/// The largest depth of nested directories that is followed.
pub const DEPTH_MAX: usize = 256;
const VERSION: u8 = 2;

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// To this child, while the child has the entry's epoch.
    To(Handle),
    /// No object, while the directory has the entry's epoch.
    Nowhere,
}

/// An entry of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The target.
    pub leads: Leads,
    /// The epoch in which the entry is valid.
    pub epoch: u64,
    /// Learnt in a racy state: not believed at an open.
    pub racy: bool,
    /// The epoch of the directory in which the name led to the child, if every later change of the directory
    /// would show.
    pub within: Option<u64>,
}

impl NameEntry {
    /// Is the entry valid in a directory of this epoch that no other client changes?
    pub fn holds_within(&self, epoch: u64) -> bool {
        match self.leads {
            Leads::To(_) => self.within == Some(epoch),
            Leads::Nowhere => self.epoch == epoch && !self.racy,
        }
    }

    /// Encodes the entry for the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(VERSION);
        writer.u64(self.epoch);
        writer.bool(self.racy);
        writer.bool(self.within.is_some());
        if let Some(within) = self.within {
            writer.u64(within);
        }
        if let Leads::To(handle) = &self.leads {
            writer.bytes(handle.as_bytes());
        }
        writer.finish()
    }

    /// Decodes an entry of the index.
    pub fn decode(value: &[u8]) -> Option<NameEntry> {
        let mut reader = Reader::new(value, VERSION)?;
        let (epoch, racy) = (reader.u64()?, reader.bool()?);
        let within = if reader.bool()? { Some(reader.u64()?) } else { None };
        let leads = if reader.is_empty() { Leads::Nowhere } else { Leads::To(reader.handle()?) };
        Some(NameEntry { leads, epoch, racy, within })
    }
}

/// The prefix of the keys of everything in a directory.
pub fn directory_prefix(directory: &Handle) -> Vec<u8> {
    let bytes = directory.as_bytes();
    let mut key = Vec::with_capacity(1 + bytes.len() + 32);
    key.push(bytes.len() as u8);
    key.extend_from_slice(bytes);
    key
}

/// The directory in a key with such a prefix.
pub fn directory_of(key: &[u8]) -> Option<Handle> {
    let (length, rest) = key.split_first()?;
    Handle::new(rest.get(..usize::from(*length))?)
}

/// The key of a name.
pub fn name_key(directory: &Handle, name: &Name) -> Vec<u8> {
    let mut key = directory_prefix(directory);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Sets or removes the entry of a name.
pub fn put_name(batch: &mut Batch, directory: &Handle, name: &Name, entry: Option<NameEntry>) {
    let key = name_key(directory, name);
    match entry {
        Some(entry) => batch.put(Table::Names, key, entry.encode()),
        None => batch.remove(Table::Names, key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_keys_do_not_collide() {
        let child = Handle::new(b"child").unwrap();
        for (leads, within) in
            [(Leads::To(child), Some(78)), (Leads::To(child), None), (Leads::Nowhere, None)]
        {
            let entry = NameEntry { leads, epoch: 77, racy: true, within };
            assert_eq!(NameEntry::decode(&entry.encode()), Some(entry));
        }
        let led = NameEntry { leads: Leads::To(child), epoch: 1, racy: true, within: Some(2) };
        assert!(led.holds_within(2) && !led.holds_within(1));
        let absent = NameEntry { leads: Leads::Nowhere, racy: false, within: None, ..led };
        assert!(absent.holds_within(1) && !NameEntry { racy: true, ..absent }.holds_within(1));
        assert_eq!(NameEntry::decode(b"nonsense"), None);
        let key =
            |handle: &[u8], name: &[u8]| name_key(&Handle::new(handle).unwrap(), &Name::new(name).unwrap());
        assert_ne!(key(b"a", b"bc"), key(b"ab", b"c"));
    }
}
