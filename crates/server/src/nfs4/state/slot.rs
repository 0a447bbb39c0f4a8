//! What a compound holds of its session while it runs, and what is kept of its reply.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use protocol::nfs4::{CompoundResHeader, Operation, ResOp, Sessionid, Status};
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::front::Front;

/// A slot of a session with a request running.
pub(crate) struct Slot {
    pub(crate) session: Sessionid,
    pub(crate) number: u32,
    /// The most bytes in the reply, its RPC header counted.
    pub(crate) reply_bytes_max: u32,
    /// The most bytes in it if it is to be cached whole (`cachethis`).
    pub(crate) cached_bytes_max: Option<u32>,
    pub(crate) front: Arc<Front>,
    pub(crate) completed: bool,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.number)
    }
}

impl Slot {
    /// The reply is made: its results from the compound's status on.
    pub(crate) fn complete(mut self, body: &Message) {
        let reply = if self.cached_bytes_max.is_some() { copied(body) } else { uncached(body) };
        self.completed = true;
        self.front.state.tables().sessions.complete(self.session, self.number, reply);
    }
}

impl Drop for Slot {
    /// The compound was given up: nobody knows how far it came.
    fn drop(&mut self) {
        if !self.completed {
            self.front.state.tables().sessions.complete(self.session, self.number, None);
        }
    }
}

/// The reply in a buffer of its size: the one that it was made in may be twice as large.
fn copied(body: &Message) -> Option<Message> {
    let first =
        if body.more.is_empty() { Bytes::copy_from_slice(&body.first) } else { body.to_bytes().ok()? };
    Some(Message { first, more: Vec::new() })
}

/// What a retry of a compound gets that was not to be cached: SEQUENCE, and then RETRY_UNCACHED_REP. SEQUENCE alone is
/// always worth keeping.
fn uncached(body: &Message) -> Option<Message> {
    let mut decoder = Decoder::new(body.first.clone());
    let CompoundResHeader { tag, results, .. } = CompoundResHeader::decode(&mut decoder).ok()?;
    if results == 1 {
        return Some(body.clone());
    }
    let sequence = ResOp::decode(&mut decoder).ok()?;
    let next = Operation::from_number(decoder.u32().ok()?)?;
    let status = Status::RetryUncachedRep;
    let mut encoder = Encoder::with_capacity(96);
    CompoundResHeader { status: Err(status), tag, results: 2 }.encode(&mut encoder);
    sequence.encode(&mut encoder);
    ResOp::failed(next, status).encode(&mut encoder);
    Some(encoder.finish())
}
