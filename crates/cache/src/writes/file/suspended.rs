//! A file whose write lease was revoked while bytes were delayed: nothing is sent until the origin has been
//! asked whether another client has changed the file.

use bytes::Bytes;
use vfs::{Caller, Principal, Status, Timestamp};

use super::{Runs, Writes};
use crate::journal::Entry;

/// Why nothing of a file is sent.
#[derive(Clone, Debug)]
pub enum Suspended {
    /// Its lease was revoked. The origin is asked whether another client has changed the file.
    Revoked(Revoked),
    /// The origin has refused bytes of it. What waits is about to be put aside.
    Refused,
}

/// The knowledge of the file when the lease ended.
#[derive(Clone, Debug)]
pub struct Revoked {
    /// The change attribute that the file had under the lease.
    pub change: Option<u64>,
    /// Nobody else could change the file before the origin's clock showed this time, if one is known.
    pub until: Option<Timestamp>,
    /// WRITEs that were given up on their way: the origin may have taken them or not.
    pub unsure: Vec<(u64, Bytes)>,
}

impl Writes {
    /// Holds the file. False if nothing waits to be sent, or if that is not certain
    /// because a truncation is in flight.
    pub fn suspend(&mut self, suspended: Suspended) -> bool {
        let waits = !self.dirty.is_empty() || !self.in_flight.is_empty();
        if !waits || self.cut.is_some() || self.suspended.is_some() {
            return false;
        }
        self.hold();
        self.suspended = Some(suspended);
        true
    }

    /// Why nothing is sent, while that is so.
    pub fn suspended(&self) -> Option<&Suspended> {
        self.suspended.as_ref()
    }

    /// The knowledge of the file when its lease ended, until the file may be sent again.
    pub fn revoked(&self) -> Option<&Revoked> {
        match &self.suspended {
            Some(Suspended::Revoked(revoked)) => Some(revoked),
            Some(Suspended::Refused) | None => None,
        }
    }

    /// Is any WRITE on its way?
    pub fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// The writer of the first bytes that wait.
    pub fn first_writer(&self) -> Option<Caller> {
        self.dirty.iter().next().map(|(_, run)| run.tag.writer.clone())
    }

    /// A WRITE was given up on its way. Its bytes wait again.
    pub fn put_off(&mut self, ticket: u64) {
        let Some(at) = self.in_flight.iter().position(|write| write.ticket == ticket) else { return };
        let write = self.in_flight.swap_remove(at);
        self.events += 1;
        if self.gone {
            return;
        }
        self.put_back(write.offset, &write.bytes, &write.mark);
        self.ripe |= !self.dirty.is_empty();
        if let Some(Suspended::Revoked(revoked)) = &mut self.suspended {
            revoked.unsure.push((write.offset, write.bytes));
        }
    }

    /// The file may be sent again.
    pub fn resume(&mut self) {
        if self.suspended.take().is_some() {
            self.release();
        }
    }

    /// The bytes are kept elsewhere, and are not sent. The next caller receives `status`.
    pub fn abandon(&mut self, status: Status) {
        self.dirty = Runs::default();
        self.unstable = Runs::default();
        self.aside = Runs::default();
        self.pending = None;
        self.restored = None;
        // The reply to a COMMIT of these bytes is none of the bytes that come now.
        self.committing = None;
        self.fail(status);
        self.resume();
    }

    /// What a file must hold that is kept instead of these writes: those of an earlier process, and all
    /// bytes that are not durable at the origin, oldest first.
    pub fn remaining_entries(&self) -> Vec<Entry> {
        let earlier = self.restored.as_ref().map(|restored| restored.entries().to_vec());
        let modified = self.modified().unwrap_or_default();
        let write = |(writer, offset, bytes): (&Principal, u64, Bytes)| Entry::Write {
            writer: writer.clone(),
            offset,
            modified,
            bytes,
        };
        let remaining = self.remaining().unwrap_or_default().into_iter().map(write);
        earlier.unwrap_or_default().into_iter().chain(remaining).collect()
    }
}
