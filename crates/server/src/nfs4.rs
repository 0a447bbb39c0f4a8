//! NFS v4.0, 4.1 and 4.2 (RFC 7530, 8881, 7862 and 8276) over `vfs::FileSystem`s.
//!
//! [`compound`] takes a COMPOUND apart and runs its operations, each of which is a file of [`op`]. What a client is,
//! holds and is called back about is [`state`]'s.

mod attributes;
mod callback;
mod compound;
mod convert;
mod directory;
mod kind;
mod known;
mod op;
mod owners;
mod place;
mod pseudo;
mod security;
mod setting;
mod state;
mod walk;

use std::sync::Arc;

use protocol::nfs4::Procedure;
use rpc::message::Refusal;
use rpc::service::Outcome;

use crate::front::{Front, reply};
pub(crate) use known::Knowledge;
pub(crate) use pseudo::Pseudo;
pub(crate) use state::State;
pub use state::StateOptions;

/// The largest READ and WRITE.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;

/// Answers one call.
pub(crate) async fn answer(front: Arc<Front>, call: rpc::Call) -> Outcome {
    match Procedure::try_from(call.header.procedure) {
        Ok(Procedure::Null) => reply(&call, &()),
        Ok(Procedure::Compound) => compound::answer(&front, &call).await,
        Err(_) => Refusal::ProcedureUnavailable.into(),
    }
}
