//! The attributes with which files were last seen, by their `modifyrev`.
//!
//! Some answers give only the `modifyrev` of a file, for example an ACCESS with a lease. If the client has
//! seen the file at that `modifyrev`, it knows the other attributes and need not ask. The table is bounded,
//! and evicts entries in the order of insertion.

use std::collections::{HashMap, VecDeque};

use vfs::{Attributes, Handle};

/// Most files in the table.
const FILES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seen {
    files: HashMap<Handle, Attributes>,
    order: VecDeque<Handle>,
}

impl Seen {
    /// Notes the attributes in a reply. If another reply has overtaken it, this one has a lower `modifyrev`
    /// and is ignored.
    pub(super) fn note(&mut self, handle: &Handle, attributes: &Attributes) {
        if let Some(known) = self.files.get_mut(handle) {
            if attributes.change >= known.change {
                *known = *attributes;
            }
            return;
        }
        if self.order.len() >= FILES_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.files.remove(&first);
        }
        self.order.push_back(*handle);
        self.files.insert(*handle, *attributes);
    }

    /// The attributes of a file at this `modifyrev`, if known.
    pub(super) fn at(&self, handle: &Handle, rev: u64) -> Option<Attributes> {
        self.files.get(handle).copied().filter(|known| known.change == rev)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u32) -> Handle {
        Handle::new(&number.to_be_bytes()).unwrap()
    }

    fn at(change: u64) -> Attributes {
        let zeros = [&[0, 0, 0, 1][..], &[0; 88]].concat();
        let fattr: protocol::nqnfs::Fattr = xdr::from_bytes(zeros.into()).unwrap();
        Attributes { change, ..crate::nqnfs::convert::attributes(&fattr) }
    }

    #[test]
    fn what_was_overtaken_is_not_taken_back() {
        let mut seen = Seen::default();
        seen.note(&file(1), &at(5));
        seen.note(&file(1), &at(4));
        assert!(seen.at(&file(1), 4).is_none() && seen.at(&file(1), 5).is_some());
        seen.note(&file(1), &at(6));
        assert!(seen.at(&file(1), 5).is_none() && seen.at(&file(2), 6).is_none());
    }

    #[test]
    fn there_is_a_bound() {
        let mut seen = Seen::default();
        (0..10_000).for_each(|number| seen.note(&file(number), &at(1)));
        assert_eq!((seen.files.len(), seen.order.len()), (FILES_MAX, FILES_MAX));
        assert!(seen.at(&file(0), 1).is_none() && seen.at(&file(9_999), 1).is_some());
    }
}
