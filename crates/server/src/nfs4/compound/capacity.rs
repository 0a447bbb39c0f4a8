//! Limits the size of a reply. A session negotiates the limit; minor version 0 has a fixed one.

use protocol::nfs4::{Operation, ResOp, Status};
use xdr::{Encode, Encoder};

use super::Compound;
use crate::state::Slot;

/// Bytes of a reply without a session: the largest READ, and as much again for the rest.
pub(in crate::nfs4) const UNNEGOTIATED_BYTES: usize = 2 << 20;
/// Results other than the measured ones are never larger.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Bytes that a complete reply may have.
pub(super) fn negotiated(slot: Option<&Slot>) -> usize {
    slot.map_or(UNNEGOTIATED_BYTES, |slot| {
        let most = slot.reply_bytes_max.min(slot.cached_bytes_max.unwrap_or(u32::MAX));
        (most as usize).min(UNNEGOTIATED_BYTES)
    })
}

/// An operation must not change anything if its result would not fit.
pub(super) fn check(capacity: usize, operation: Operation) -> Result<(), Status> {
    if capacity < result_bytes(operation) { Err(Status::RepTooBig) } else { Ok(()) }
}

/// Bytes of the result of an operation that changes something; zero for any other.
fn result_bytes(operation: Operation) -> usize {
    use Operation as O;
    match operation {
        O::Open => 192,
        O::Create | O::Rename | O::Copy => 64,
        O::Close
        | O::Link
        | O::Lock
        | O::Locku
        | O::OpenConfirm
        | O::OpenDowngrade
        | O::Remove
        | O::Removexattr
        | O::Setattr
        | O::Setxattr
        | O::Write => 40,
        _ => 0,
    }
}

/// Encodes a result, or an error if the result does not fit.
pub(super) fn encode(compound: &Compound<'_>, result: &ResOp, encoder: &mut Encoder) -> Result<(), Status> {
    if at_most(result) <= compound.capacity {
        let status = result.status();
        result.encode(encoder);
        return status;
    }
    let mut alone = Encoder::new();
    result.encode(&mut alone);
    if alone.len() <= compound.capacity {
        encoder.message(alone.finish());
        return result.status();
    }
    let status = compound.too_big(Status::RepTooBig);
    ResOp::failed(result.operation(), status).encode(encoder);
    Err(status)
}

/// An upper bound for a result's bytes that is cheaper than encoding the result.
fn at_most(result: &ResOp) -> usize {
    match result {
        ResOp::Getattr(Ok(ok)) => 8 + ok.obj_attributes.encoded_len(),
        ResOp::Read(Ok(ok)) => 24 + ok.data.len(),
        ResOp::Readdir(Ok(ok)) => {
            24 + ok.entries.iter().map(protocol::nfs4::Entry::encoded_len).sum::<usize>()
        }
        ResOp::ReadPlus(Ok(_)) | ResOp::Getxattr(Ok(_)) | ResOp::Listxattrs(Ok(_)) => usize::MAX,
        _ => RESULT_BYTES_MAX,
    }
}

/// Bytes on the wire of a small value.
pub(super) fn encoded_len(value: &impl Encode) -> usize {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.len()
}
