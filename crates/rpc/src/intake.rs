//! The receive side of a connection: bytes received and not handed on yet, and their charge.
//!
//! If a record is larger than the buffer of a quiet connection, its peer is charged before space is made for
//! it. The charge then follows the record. The buffer is small until one read fills it. A large buffer is
//! charged too, so that a peer that already holds its share does not get one.

use std::sync::Arc;

use bytes::Bytes;

use crate::account::{Lease, Share};
use crate::record::{Assembler, Error};

/// Space for one read on a quiet connection. Neither this buffer nor a record of this size is charged.
const QUIET_BYTES: usize = 16 << 10;
/// Space for one read on a connection whose reads fill the buffer.
const READ_BYTES: usize = 128 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) assembler: Assembler,
    /// `None` if no peer is charged, because the connection receives the answers to our own calls.
    share: Option<Arc<Share>>,
    /// Charge for the record being received.
    record: Option<Lease>,
    /// Charge for the large buffer.
    buffer: Option<Lease>,
    read_bytes: usize,
}

impl Intake {
    /// An intake for records of at most `bound` bytes.
    pub(crate) fn new(bound: usize, share: Option<Arc<Share>>) -> Intake {
        let read_bytes = if share.is_some() { QUIET_BYTES } else { READ_BYTES };
        Intake { assembler: Assembler::new(bound), share, record: None, buffer: None, read_bytes }
    }

    /// The next complete record, with its lease if it was charged.
    pub(crate) fn take(&mut self) -> Result<Option<(Bytes, Option<Lease>)>, Error> {
        Ok(self.assembler.take()?.map(|record| (record, self.record.take())))
    }

    /// The bytes to lease before there may be space for the current record. `None` if no lease is needed.
    pub(crate) fn to_lease(&self) -> Option<(&Arc<Share>, usize)> {
        let begun = self.assembler.begun();
        let leased = self.record.as_ref().map_or(QUIET_BYTES, Lease::bytes);
        self.share.as_ref().filter(|_| begun > leased).map(|share| (share, begun))
    }

    /// Stores the lease that [`Intake::to_lease`] asked for.
    pub(crate) fn leased(&mut self, lease: Lease) {
        self.record = Some(lease);
    }

    /// Is a record being received that has been charged?
    pub(crate) fn holds_lease(&self) -> bool {
        self.record.is_some()
    }

    /// Makes space for one read, and returns its size in bytes.
    pub(crate) fn reserve(&mut self) -> usize {
        self.assembler.reserve(self.read_bytes);
        self.assembler.buffer.capacity() - self.assembler.buffer.len()
    }

    /// A read has filled the available space: lease the large buffer if the share allows it.
    pub(crate) fn filled(&mut self) {
        if self.read_bytes < READ_BYTES
            && let Some(lease) = self.share.as_ref().and_then(|share| share.try_lease(READ_BYTES))
        {
            (self.buffer, self.read_bytes) = (Some(lease), READ_BYTES);
        }
    }
}
