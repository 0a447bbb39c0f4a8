//! NFS v4.0, 4.1 and 4.2 (RFC 7530, 8881, 7862 and 8276) over `vfs::FileSystem`s.
//!
//! [`compound`] decodes a COMPOUND and runs its operations; each operation is a file of [`op`].
//! [`crate::state`] keeps the clients and what they hold. [`callbacks`] passes the callbacks of file systems on
//! to them, over the routes of [`crate::callback`].

mod attributes;
pub(crate) mod callbacks;
mod compound;
mod convert;
mod directory;
mod io_basis;
mod kind;
mod known;
mod named;
mod op;
mod owners;
mod place;
mod security;
mod sequenced;
mod setting;
mod walk;

use std::sync::Arc;

use protocol::nfs4::{ArgOp, CompoundHeader, Procedure};
use rpc::message::Refusal;
use rpc::service::{Asked, Outcome};
use vfs::Timestamp;
use xdr::Decode;

use crate::exports::pseudo::Pseudo;
use crate::shared::{Shared, reply};
use known::Knowledge;

/// What version 4 keeps for itself, over what all versions share.
#[derive(Debug)]
pub(crate) struct Nfs4Front {
    shared: Arc<Shared>,
    /// The directories above exports.
    pseudo: Pseudo,
    known: Knowledge,
}

impl Nfs4Front {
    /// `made`: the time of the start, as the times of the directories above exports.
    pub(crate) fn new(shared: Arc<Shared>, made: Timestamp) -> Nfs4Front {
        Nfs4Front { pseudo: Pseudo::new(&shared.exports, made), known: Knowledge::default(), shared }
    }
}

/// The largest READ and WRITE, in bytes.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;

/// True for a call whose second execution would fail or destroy data, if nothing else tells a
/// retransmission from the first. That concerns the operations of minor version 0, which has no sessions,
/// that change names and attributes. The sequence ids of owners protect opens and locks.
pub(crate) fn must_not_repeat(call: &rpc::Call) -> bool {
    let mut decoder = call.arguments.clone();
    let Ok(mut header) = CompoundHeader::decode(&mut decoder) else { return false };
    if header.minorversion != 0 {
        return false;
    }
    while let Some(Ok(operation)) = header.next(&mut decoder) {
        use ArgOp as A;
        if matches!(operation, A::Create(_) | A::Link(_) | A::Remove(_) | A::Rename(_) | A::Setattr(_)) {
            return true;
        }
    }
    false
}

/// An estimate of the memory that a reply takes up, in bytes.
pub(crate) fn reply_bytes(asked: &Asked) -> usize {
    let mut decoder = asked.arguments.clone();
    let Ok(mut header) = CompoundHeader::decode(&mut decoder) else { return 0 };
    let mut bytes = 0;
    while let Some(Ok(operation)) = header.next(&mut decoder) {
        let wanted = match operation {
            ArgOp::Read(args) => args.count,
            ArgOp::ReadPlus(args) => args.count,
            ArgOp::Readdir(args) => args.maxcount,
            _ => 0,
        };
        bytes += wanted.min(TRANSFER_MAX_BYTES) as usize;
    }
    bytes.min(compound::REPLY_BYTES_MAX)
}

/// Answers one call.
pub(crate) async fn answer(front: &Nfs4Front, call: rpc::Call) -> Outcome {
    match Procedure::try_from(call.header.procedure) {
        Ok(Procedure::Null) => reply(&call, &()),
        Ok(Procedure::Compound) => compound::answer(front, &call).await,
        Err(_) => Refusal::ProcedureUnavailable.into(),
    }
}
