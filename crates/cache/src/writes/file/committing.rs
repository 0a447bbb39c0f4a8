//! The COMMIT of a file. At most one is in flight.
//!
//! Each has a number. Its reply counts only while the bytes that it covers are here: they may have been put
//! aside meanwhile.

use vfs::{Caller, Status, Verifier};

use super::Writes;

/// A COMMIT that is about to be sent.
#[derive(Clone, Debug)]
pub struct CommitInFlight {
    /// Its number. No other COMMIT of any file has it.
    pub number: u64,
    /// In whose name it is sent.
    pub writer: Caller,
}

impl Writes {
    /// The caller is about to send a COMMIT. None if nothing is unstable, or if a COMMIT is in flight.
    pub fn begin_commit(&mut self) -> Option<CommitInFlight> {
        if self.committing.is_some() {
            return None;
        }
        let writer = self.unstable.iter().next()?.1.tag.mark.writer.clone();
        self.events += 1;
        self.committing = Some(self.events);
        Some(CommitInFlight { number: self.events, writer })
    }

    /// Is this COMMIT in flight, and does it say something of the bytes that are here?
    pub fn is_committing(&self, number: u64) -> bool {
        self.committing == Some(number)
    }

    /// The reply to a COMMIT has come. Bytes that were written under another verifier become dirty again.
    pub fn end_commit(&mut self, number: u64, result: Result<Verifier, Status>) {
        if !self.is_committing(number) {
            return;
        }
        self.committing = None;
        for at in self.committed(number) {
            let Some(run) = self.unstable.take(at) else { continue };
            if result.is_ok_and(|verifier| verifier != run.tag.verifier) {
                self.put_back(at, &run.bytes, &run.tag.mark);
            }
        }
        if let Err(status) = result {
            self.fail(status);
        }
        self.ripe |= !self.dirty.is_empty();
        self.doubtful &= !self.unstable.is_empty();
    }

    /// The offsets of the unstable runs that the COMMIT with this number covers.
    fn committed(&self, number: u64) -> Vec<u64> {
        self.unstable.iter().filter(|(_, run)| run.tag.answered <= number).map(|(at, _)| at).collect()
    }

    /// The COMMIT was refused, and its bytes shall not be lost by that. They wait again. False if it covers
    /// none any more, or if they cannot wait because a truncation is in flight.
    pub fn put_off_commit(&mut self, number: u64) -> bool {
        let covered = self.committed(number);
        if !self.is_committing(number) || covered.is_empty() || self.cut.is_some() {
            return false;
        }
        self.committing = None;
        for at in covered {
            if let Some(run) = self.unstable.take(at) {
                self.put_back(at, &run.bytes, &run.tag.mark);
            }
        }
        self.doubtful &= !self.unstable.is_empty();
        self.ripe |= !self.dirty.is_empty();
        true
    }
}
