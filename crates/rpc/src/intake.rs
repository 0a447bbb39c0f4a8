//! What a connection has received and not yet handed on, and what its peer is charged for that.
//!
//! A record that is larger than the buffer of a quiet connection is charged before there is space for it, and the
//! charge goes on with the record. The buffer is small until a read fills it; a large one is charged, too, so that it
//! is not had by who holds his share already.

use std::sync::Arc;

use bytes::Bytes;

use crate::account::{Lease, Share};
use crate::record::{Assembler, Error};

/// Space for one read on a connection that is quiet. It is not charged, and neither is a record of this size.
const QUIET_BYTES: usize = 16 << 10;
/// Space for one read on a connection whose reads fill it.
const READ_BYTES: usize = 128 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) assembler: Assembler,
    /// `None` if nobody is charged: what comes are answers to our own calls.
    share: Option<Arc<Share>>,
    /// For the record being received.
    record: Option<Lease>,
    /// For the large buffer.
    buffer: Option<Lease>,
    read_bytes: usize,
}

impl Intake {
    /// For records of at most `bound` bytes.
    pub(crate) fn new(bound: usize, share: Option<Arc<Share>>) -> Intake {
        let read_bytes = if share.is_some() { QUIET_BYTES } else { READ_BYTES };
        Intake { assembler: Assembler::new(bound), share, record: None, buffer: None, read_bytes }
    }

    /// The next whole record, and the lease for it if it was charged.
    pub(crate) fn take(&mut self) -> Result<Option<(Bytes, Option<Lease>)>, Error> {
        Ok(self.assembler.take()?.map(|record| (record, self.record.take())))
    }

    /// Bytes that must be leased before there may be space for what comes.
    pub(crate) fn to_lease(&self) -> Option<(&Arc<Share>, usize)> {
        let begun = self.assembler.begun();
        let leased = self.record.as_ref().map_or(QUIET_BYTES, Lease::bytes);
        self.share.as_ref().filter(|_| begun > leased).map(|share| (share, begun))
    }

    /// What [`Intake::to_lease`] asked for.
    pub(crate) fn leased(&mut self, lease: Lease) {
        self.record = Some(lease);
    }

    /// Is a record being received that was charged?
    pub(crate) fn holds_lease(&self) -> bool {
        self.record.is_some()
    }

    /// Makes space for one read, and says how much there is.
    pub(crate) fn reserve(&mut self) -> usize {
        self.assembler.reserve(self.read_bytes);
        self.assembler.buffer.capacity() - self.assembler.buffer.len()
    }

    /// A read has filled the space that there was.
    pub(crate) fn filled(&mut self) {
        if self.read_bytes < READ_BYTES
            && let Some(lease) = self.share.as_ref().and_then(|share| share.try_lease(READ_BYTES))
        {
            (self.buffer, self.read_bytes) = (Some(lease), READ_BYTES);
        }
    }
}
