//! How large a reply may become: a session negotiates it, minor version 0 has our own bound.

use protocol::nfs4::{Operation, ResOp, Status};
use xdr::{Encode, Encoder};

use super::Compound;
use crate::nfs4::state::Slot;

/// Of a reply without a session: the largest READ, and as much again for what stands beside it.
pub(in crate::nfs4) const UNNEGOTIATED_BYTES: usize = 2 << 20;
/// Results other than those that are measured are never larger.
const RESULT_BYTES_MAX: usize = 64 << 10;

/// Bytes that a whole reply may have.
pub(super) fn negotiated(slot: Option<&Slot>) -> usize {
    slot.map_or(UNNEGOTIATED_BYTES, |slot| {
        let most = slot.reply_bytes_max.min(slot.cached_bytes_max.unwrap_or(u32::MAX));
        (most as usize).min(UNNEGOTIATED_BYTES)
    })
}

/// Nothing is changed whose result could not be told.
pub(super) fn check(capacity: usize, operation: Operation) -> Result<(), Status> {
    if capacity < result_bytes(operation) { Err(Status::RepTooBig) } else { Ok(()) }
}

/// Bytes of the result of an operation that changes something; zero of any other.
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

/// Writes a result, or that there is no room for it.
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

/// A bound of a result's bytes that costs less than to encode it.
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

/// Bytes on the wire of something small.
pub(super) fn encoded_len(value: &impl Encode) -> usize {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.len()
}
