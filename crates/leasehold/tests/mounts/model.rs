//! A model of what a file may hold after a kill: synced data is there, and each later change may be there or
//! not.
//!
//! For each byte, the model knows the value at the last sync and all values written since. The size is any
//! size between the smallest and the largest since that sync, because a growing file may have grown in part.
//! Bytes that were never written are zero.

use std::collections::BTreeSet;
use std::ops::Range;

/// The knowledge about a file.
#[derive(Debug, Default)]
pub struct Model {
    /// The content that programs see.
    now: Vec<u8>,
    /// The values of each byte since the last sync, including the value at the sync.
    may: Vec<BTreeSet<u8>>,
    /// Smallest and largest size since the last sync.
    sizes: (usize, usize),
}

impl Model {
    /// The content that programs see.
    pub fn now(&self) -> &[u8] {
        &self.now
    }

    /// To be called before a write.
    pub fn write(&mut self, at: usize, data: &[u8]) {
        if self.now.len() < at + data.len() {
            self.set_len(at + data.len());
        }
        for (place, byte) in (at..).zip(data) {
            self.now[place] = *byte;
            self.may[place].insert(*byte);
        }
    }

    /// To be called before the size is set. Bytes beyond the new size may read as zeros later, or still have
    /// their old values.
    pub fn set_len(&mut self, size: usize) {
        self.now.resize(size, 0);
        let reach = self.may.len().max(size);
        self.may.resize_with(reach, || BTreeSet::from([0]));
        for may in &mut self.may[size..] {
            may.insert(0);
        }
        self.sizes = (self.sizes.0.min(size), self.sizes.1.max(size));
    }

    /// All changes so far are durable.
    pub fn synced(&mut self) {
        self.may = self.now.iter().map(|byte| BTreeSet::from([*byte])).collect();
        self.sizes = (self.now.len(), self.now.len());
    }

    /// Compares a content with the model.
    ///
    /// # Errors
    /// The difference.
    pub fn check(&self, found: &[u8]) -> Result<(), String> {
        let (least, most) = self.sizes;
        if !(least..=most).contains(&found.len()) {
            return Err(format!(
                "it has {} bytes, and never had less than {least} or more than {most}",
                found.len()
            ));
        }
        let wrong: Vec<usize> = (0..found.len()).filter(|at| !self.may[*at].contains(&found[*at])).collect();
        let Some(first) = wrong.first() else { return Ok(()) };
        let range: Range<usize> = *first..found.len().min(first + 16);
        Err(format!(
            "{} of {} bytes are none that were written there since the last sync, from {first} on: {:?} and not {:?}",
            wrong.len(),
            found.len(),
            &found[range.clone()],
            range.map(|at| &self.may[at]).collect::<Vec<_>>()
        ))
    }
}

#[test]
fn what_was_synced_is_demanded_and_nothing_is_invented() {
    let mut model = Model::default();
    model.write(0, b"abcd");
    model.synced();
    assert!(model.check(b"abcd").is_ok());
    assert!(model.check(b"abc").is_err() && model.check(b"abcx").is_err() && model.check(b"abcde").is_err());
    model.write(2, b"XYZ");
    for found in [&b"abcd"[..], b"abXY", b"abcYZ", b"abXd\0"] {
        assert!(model.check(found).is_ok(), "{found:?}");
    }
    assert!(model.check(b"abc").is_err() && model.check(b"Xbcd").is_err());
    model.set_len(1);
    assert!(model.check(b"a").is_ok() && model.check(b"ab\0d").is_ok() && model.check(b"\0").is_err());
}
