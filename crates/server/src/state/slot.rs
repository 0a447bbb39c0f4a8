//! The slot of a running compound, and the part of its reply that is kept.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use protocol::nfs4::{CompoundResHeader, Operation, ResOp, Sessionid, Status, Tag};
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use super::State;

/// Size of the compound's status, which precedes its tag.
const STATUS_BYTES: usize = 4;

/// A slot of a session with a request running.
pub(crate) struct Slot {
    pub(crate) session: Sessionid,
    pub(crate) number: u32,
    /// The most bytes in the reply, including its RPC header.
    pub(crate) reply_bytes_max: u32,
    /// The most bytes in the reply if it must be cached in full (`cachethis`).
    pub(crate) cached_bytes_max: Option<u32>,
    pub(crate) state: Arc<State>,
    pub(crate) completed: bool,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.number)
    }
}

impl Slot {
    /// The reply is complete: `body` holds the results, from the compound's status on.
    pub(crate) fn complete(mut self, body: &Message) {
        let reply = if self.cached_bytes_max.is_some() { untagged(body) } else { uncached(body) };
        self.completed = true;
        self.state.tables().sessions.complete(self.session, self.number, reply);
    }
}

impl Drop for Slot {
    /// The compound was abandoned, so it is unknown how far it came.
    fn drop(&mut self) {
        if !self.completed {
            self.state.tables().sessions.complete(self.session, self.number, None);
        }
    }
}

/// The part of a reply that is kept: the status, and everything from the count of results on. A retry
/// supplies the tag again. The copy has a buffer of its exact size, because the original buffer may be
/// twice as large.
fn untagged(body: &Message) -> Option<Message> {
    let complete = if body.more.is_empty() { body.first.clone() } else { body.to_bytes().ok()? };
    let (status, behind) = complete.split_first_chunk::<STATUS_BYTES>()?;
    let mut decoder = Decoder::new(complete.slice(STATUS_BYTES..));
    Tag::decode(&mut decoder).ok()?;
    let results = behind.get(behind.len() - decoder.remaining()..)?;
    let first = Bytes::from([status.as_slice(), results].concat());
    Some(Message { first, more: Vec::new() })
}

/// The reply for a retry of a compound that was not to be cached: SEQUENCE, then RETRY_UNCACHED_REP. A
/// reply of SEQUENCE alone is always kept.
fn uncached(body: &Message) -> Option<Message> {
    let mut decoder = Decoder::new(body.first.clone());
    let CompoundResHeader { results, .. } = CompoundResHeader::decode(&mut decoder).ok()?;
    if results == 1 {
        return untagged(body);
    }
    let sequence = ResOp::decode(&mut decoder).ok()?;
    let next = Operation::from_number(decoder.u32().ok()?)?;
    let status = Status::RetryUncachedRep;
    let mut encoder = Encoder::with_capacity(96);
    CompoundResHeader { status: Err(status), tag: Tag::default(), results: 2 }.encode(&mut encoder);
    sequence.encode(&mut encoder);
    ResOp::failed(next, status).encode(&mut encoder);
    untagged(&encoder.finish())
}

/// Writes a kept reply with the tag of the retry.
pub(crate) fn retagged(kept: &Message, tag: &Tag, encoder: &mut Encoder) {
    let (status, results) = kept.first.split_at(kept.first.len().min(STATUS_BYTES));
    encoder.raw(status);
    tag.encode(encoder);
    encoder.raw(results);
}

#[cfg(test)]
mod tests {
    use protocol::nfs4::{CompoundRes, TAG_MAX};
    use xdr::List;

    use super::*;

    /// A reply, from the compound's status on.
    fn reply(tag: &Tag, results: Vec<ResOp>) -> Message {
        let status = results.last().map_or(Ok(()), ResOp::status);
        let reply = CompoundRes { status, tag: tag.clone(), resarray: List::new(results).unwrap() };
        let mut encoder = Encoder::with_capacity(1 << 16);
        reply.encode(&mut encoder);
        encoder.finish()
    }

    #[test]
    fn a_reply_is_kept_without_its_tag_and_given_with_that_of_the_retry() {
        let results = vec![ResOp::Putfh(Ok(())), ResOp::failed(Operation::Getfh, Status::Stale)];
        let long = Tag::new(Bytes::from(vec![b'a'; TAG_MAX])).unwrap();
        let kept = untagged(&reply(&long, results.clone())).unwrap();
        assert_eq!(kept.first.len(), 4 + 4 + 2 * 8);
        let tag = Tag::new(Bytes::from_static(b"again")).unwrap();
        let mut encoder = Encoder::with_capacity(96);
        retagged(&kept, &tag, &mut encoder);
        assert_eq!(encoder.finish().to_bytes().unwrap(), reply(&tag, results).to_bytes().unwrap());
    }
}
