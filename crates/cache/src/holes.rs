//! Holes of a file at the origin: bytes that are known without a fetch.
//!
//! A file may be sparse if it uses less space than its size. Before a fetch where a hole may begin, the cache
//! asks the origin for the next data (SEEK, RFC 7862 section 15.11). One answer covers the whole hole,
//! however many fetches read through it. Like the bytes of a READ, the answer belongs to the known state of
//! the file. Attributes come with it, and a change of the file or a write of ours invalidates it.
//!
//! A fetch that ends in data is followed by no SEEK. A fetch that ends in a block of zeros is, because a hole
//! may begin there.
//!
//! Promise: holes

use std::ops::Range;

use vfs::Attributes;

use crate::ranges::BLOCK_BYTES;

/// If the space in use falls short of the size by less than this, no hole is worth a call.
const WORTH_BYTES: u64 = 64 << 10;

/// The known holes of one file.
#[derive(Clone, Debug, Default)]
pub struct Holes {
    /// The hole that the origin reported last, and the stand of the data (`Data::stand`) that it belongs to.
    last: Option<(Range<u64>, (u64, u64))>,
    /// The last fetch ended in data.
    in_data: bool,
}

impl Holes {
    /// May a file with these attributes have holes?
    pub fn may_be_in(known: &Attributes) -> bool {
        known.used.saturating_add(WORTH_BYTES) <= known.size
    }

    /// The rest of the known hole from `offset` on, if there is one for data of this stand.
    pub fn at(&self, offset: u64, stand: (u64, u64)) -> Option<Range<u64>> {
        let (hole, of) = self.last.as_ref()?;
        (*of == stand && hole.contains(&offset)).then_some(offset..hole.end)
    }

    /// Is it worth a call to ask for a hole where the next fetch begins?
    pub fn may_follow(&self) -> bool {
        !self.in_data
    }

    /// The origin has reported a hole, or data if the range is empty.
    pub fn told(&mut self, hole: Range<u64>, stand: (u64, u64)) {
        self.in_data = hole.is_empty();
        if !hole.is_empty() {
            self.last = Some((hole, stand));
        }
    }

    /// These bytes were read: records whether they end in data.
    pub fn read(&mut self, bytes: &[u8]) {
        let last = bytes.len().saturating_sub(BLOCK_BYTES as usize);
        self.in_data = !crate::store::sparse::is_zero(&bytes[last..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_known_from_where_it_was_asked_for_and_for_one_stand_of_the_data() {
        let mut holes = Holes::default();
        assert!(holes.may_follow());
        holes.told(10..30, (1, 1));
        assert_eq!(holes.at(10, (1, 1)), Some(10..30));
        assert_eq!(holes.at(29, (1, 1)), Some(29..30));
        assert_eq!(holes.at(9, (1, 1)), None);
        assert_eq!(holes.at(30, (1, 1)), None);
        assert_eq!(holes.at(10, (1, 2)), None, "a write of ours may have filled it");
    }

    #[test]
    fn data_is_followed_by_no_question_until_zeros_come() {
        let mut holes = Holes::default();
        holes.told(5..5, (0, 0));
        assert!(!holes.may_follow());
        let mut bytes = vec![0; 8192];
        holes.read(&bytes);
        assert!(holes.may_follow());
        bytes[8191] = 1;
        holes.read(&bytes);
        assert!(!holes.may_follow());
        holes.read(&[]);
        assert!(holes.may_follow(), "nothing was there");
    }
}
