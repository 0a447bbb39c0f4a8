//! Callbacks that name a lease before the OPEN that is granted the lease has returned from the file system.
//!
//! A pure, bounded table: an OPEN that is abandoned never asks for its entry.

use std::collections::{HashMap, VecDeque};

use vfs::{LeaseId, Recall};

use crate::exports::ExportId;

/// No more than this are in flight; beyond it the oldest is forgotten.
const EARLY_MAX: usize = 4096;

/// The content of the callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The lease is recalled.
    Recall(Recall),
    /// The lease is revoked.
    Revoked,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Early {
    words: HashMap<(ExportId, LeaseId), Word>,
    order: VecDeque<(ExportId, LeaseId)>,
}

impl Early {
    /// Keeps a callback; a later one for the same lease replaces it.
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

    /// Takes the callback for this lease, which is known from now on.
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
