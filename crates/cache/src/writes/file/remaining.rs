//! The writes that are not durable at the origin: what a journal must hold of a file.

use bytes::Bytes;
use vfs::Principal;

use super::Writes;

impl Writes {
    /// Is a truncation in flight?
    pub fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// The number of the latest write or reply.
    pub fn number(&self) -> u64 {
        self.events
    }

    /// The number of the oldest write that is not durable at the origin, or of the attributes that wait.
    /// `None` if nothing remains, and while a truncation is in flight.
    pub fn oldest_number(&self) -> Option<u64> {
        if self.cut.is_some() {
            return None;
        }
        let dirty = self.dirty.iter().map(|(_, run)| run.tag.first);
        let in_flight = self.in_flight.iter().map(|write| write.mark.first);
        let unstable = self.unstable.iter().map(|(_, run)| run.tag.mark.first);
        dirty.chain(in_flight).chain(unstable).chain(self.pending.iter().map(|pending| pending.first)).min()
    }

    /// All bytes that are not durable at the origin, with their writers, oldest first. Where pieces overlap,
    /// the later one counts. `None` while a truncation is in flight.
    pub fn remaining(&self) -> Option<Vec<(&Principal, u64, Bytes)>> {
        if self.cut.is_some() {
            return None;
        }
        let unstable = self.unstable.iter().map(|(at, run)| (&run.tag.mark.writer, at, run.bytes.clone()));
        let in_flight =
            self.in_flight.iter().map(|write| (&write.mark.writer, write.offset, write.bytes.clone()));
        let dirty =
            self.dirty.iter().map(|(at, run)| (&run.tag.writer, at, Bytes::copy_from_slice(&run.bytes)));
        let all = unstable.chain(in_flight).chain(dirty);
        Some(all.map(|(writer, at, bytes)| (&writer.principal, at, bytes)).collect())
    }
}
