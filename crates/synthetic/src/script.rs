//! Scripted changes: a sequence that is computed from a seed, for a client to play on the tree.
//!
//! Pure. The changes go the way of every client's changes, so conflicts and recalls are the usual ones. A
//! script takes no memory, however long it is: it removes only names that it has added, oldest first.

use crate::shape::{Shape, mix};

/// One change. Paths are below the root of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set the modification time of a file.
    Touch {
        /// The file.
        path: String,
    },
    /// Replace all bytes of a file.
    Rewrite {
        /// The file.
        path: String,
        /// Its new bytes.
        bytes: Vec<u8>,
    },
    /// Make an empty file. The name is new.
    Add {
        /// The file.
        path: String,
    },
    /// Remove a file that the script has added.
    Remove {
        /// The file.
        path: String,
    },
}

/// An endless sequence of changes of one tree. The same shape and seed give the same sequence.
#[derive(Clone, Debug)]
pub struct Script {
    shape: Shape,
    seed: u64,
    step: u64,
    added: u64,
    removed: u64,
}

impl Script {
    /// The changes with this seed.
    pub fn new(shape: Shape, seed: u64) -> Script {
        Script { shape, seed: mix(seed), step: 0, added: 0, removed: 0 }
    }

    /// A number below `end`, or 0.
    fn choose(&self, salt: u64, end: u32) -> u32 {
        (mix(self.seed ^ mix(self.step) ^ salt) % u64::from(end.max(1))) as u32
    }

    /// The path of the name that the script adds with this number.
    fn path_of(&self, added: u64) -> String {
        let directories = self.shape.directories().max(1);
        let directory = mix(self.seed ^ added) % directories;
        let name = format!("s{:016x}-{added}", self.seed);
        if self.shape.files == 0 {
            return name;
        }
        format!("{}/{name}", self.shape.directory_path(directory as u32))
    }
}

impl Iterator for Script {
    type Item = Change;

    fn next(&mut self) -> Option<Change> {
        self.step += 1;
        let kinds = if self.shape.files == 0 { 2 } else { 4 };
        let path = self.shape.path(self.choose(1, self.shape.files));
        Some(match self.choose(0, kinds) {
            0 if self.removed < self.added => {
                self.removed += 1;
                Change::Remove { path: self.path_of(self.removed - 1) }
            }
            0 | 1 => {
                self.added += 1;
                Change::Add { path: self.path_of(self.added - 1) }
            }
            2 => Change::Touch { path },
            _ => {
                let words = u64::from(self.shape.file_bytes).div_ceil(8);
                let key = mix(self.seed ^ self.step);
                let mut bytes: Vec<u8> = (0..words).flat_map(|word| mix(key ^ word).to_le_bytes()).collect();
                bytes.truncate(self.shape.file_bytes as usize);
                Change::Rewrite { path, bytes }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let shape = Shape::default();
        let of = |seed| Script::new(shape, seed).take(200).collect::<Vec<_>>();
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn every_change_is_possible() {
        for text in ["files=0", "files=1", "files=100,per-directory=7,bytes=3"] {
            let shape: Shape = text.parse().unwrap();
            let paths: HashSet<String> = (0..shape.files).map(|file| shape.path(file)).collect();
            let mut added = HashSet::new();
            let mut counts = [0; 4];
            for change in Script::new(shape, 5).take(1000) {
                match change {
                    Change::Touch { path } => {
                        counts[0] += 1;
                        assert!(paths.contains(&path));
                    }
                    Change::Rewrite { path, bytes } => {
                        counts[1] += 1;
                        assert!(paths.contains(&path) && bytes.len() == shape.file_bytes as usize);
                    }
                    Change::Add { path } => {
                        counts[2] += 1;
                        assert!(!paths.contains(&path) && added.insert(path));
                    }
                    Change::Remove { path } => {
                        counts[3] += 1;
                        assert!(added.remove(&path));
                    }
                }
            }
            assert!(counts[2] > 100 && counts[3] > 100, "{counts:?}");
            assert_eq!(counts[0] > 100 && counts[1] > 100, shape.files > 0, "{counts:?}");
        }
    }
}
