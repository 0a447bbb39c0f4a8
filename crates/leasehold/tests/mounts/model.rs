//! What a file may hold after a kill: what was synced is there, and whatever was done since may be there or not.
//!
//! Of each byte the model knows the value that it had at the last sync, and those that it was given since. A size is
//! one that the file had at the sync or since, or anything between: a file that was to grow may have grown in part. What
//! lies where nothing was written is zero.

use std::collections::BTreeSet;
use std::ops::Range;

/// What is known of a file.
#[derive(Debug, Default)]
pub struct Model {
    /// As programs see it.
    now: Vec<u8>,
    /// Which values each byte had since the last sync, that of the sync among them.
    may: Vec<BTreeSet<u8>>,
    /// Least and largest size since the last sync.
    sizes: (usize, usize),
}

impl Model {
    /// As programs see it.
    pub fn now(&self) -> &[u8] {
        &self.now
    }

    /// A write is about to begin.
    pub fn write(&mut self, at: usize, data: &[u8]) {
        if self.now.len() < at + data.len() {
            self.set_len(at + data.len());
        }
        for (place, byte) in (at..).zip(data) {
            self.now[place] = *byte;
            self.may[place].insert(*byte);
        }
    }

    /// The size is about to be set. What is cut off may come back as zeros alone; what it was before may still be there.
    pub fn set_len(&mut self, size: usize) {
        self.now.resize(size, 0);
        let reach = self.may.len().max(size);
        self.may.resize_with(reach, || BTreeSet::from([0]));
        for may in &mut self.may[size..] {
            may.insert(0);
        }
        self.sizes = (self.sizes.0.min(size), self.sizes.1.max(size));
    }

    /// Everything until now is durable.
    pub fn synced(&mut self) {
        self.may = self.now.iter().map(|byte| BTreeSet::from([*byte])).collect();
        self.sizes = (self.now.len(), self.now.len());
    }

    /// Is this what may be found?
    ///
    /// # Errors
    /// What is wrong with it.
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
