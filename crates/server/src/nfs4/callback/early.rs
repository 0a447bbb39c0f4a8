//! What is said of a lease before the OPEN that grants it has come back from the file system.
//!
//! A pure table, and a bounded one: an OPEN that is given up never asks.

use std::collections::{HashMap, VecDeque};

use vfs::{LeaseId, Recall};

use crate::exports::ExportId;

/// More than this are not in flight; the oldest is forgotten.
const EARLY_MAX: usize = 4096;

/// What was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It is recalled.
    Recall(Recall),
    /// It is no more.
    Revoked,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Early {
    words: HashMap<(ExportId, LeaseId), Word>,
    order: VecDeque<(ExportId, LeaseId)>,
}

impl Early {
    /// Keeps what was said; the last word counts.
    pub(crate) fn keep(&mut self, export: ExportId, lease: LeaseId, word: Word) {
        if self.words.insert((export, lease), word).is_none() {
            self.order.push_back((export, lease));
        }
        if self.order.len() > EARLY_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.words.remove(&oldest);
        }
    }

    /// What was said of this lease, which is known from now on.
    pub(crate) fn take(&mut self, export: ExportId, lease: LeaseId) -> Option<Word> {
        let word = self.words.remove(&(export, lease))?;
        self.order.retain(|key| *key != (export, lease));
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_the_oldest_is_forgotten() {
        let mut early = Early::default();
        let export = ExportId(1);
        let recall = Recall {
            id: LeaseId(0),
            handle: vfs::Handle::new(b"f").unwrap(),
            keep: None,
            deadline: tokio::time::Instant::now(),
        };
        early.keep(export, LeaseId(0), Word::Recall(recall));
        early.keep(export, LeaseId(0), Word::Revoked);
        assert_eq!(early.take(export, LeaseId(0)), Some(Word::Revoked));
        assert_eq!(early.take(export, LeaseId(0)), None);
        for number in 0..=EARLY_MAX as u64 {
            early.keep(export, LeaseId(number), Word::Revoked);
        }
        assert_eq!((early.words.len(), early.order.len()), (EARLY_MAX, EARLY_MAX));
        assert_eq!(early.take(export, LeaseId(0)), None);
    }
}
