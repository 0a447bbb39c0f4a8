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
mod named;
mod op;
mod owners;
mod place;
mod security;
mod sequenced;
mod setting;
mod walk;

use std::sync::Arc;

use protocol::nfs4::{ArgOp, CompoundHeader, OpenClaim, Procedure, SequenceArgs};
use rpc::message::Refusal;
use rpc::service::{Asked, Outcome, Remember};
use xdr::Decode;

use crate::exports::pseudo::Pseudo;
use crate::shared::{Shared, reply};

/// What version 4 keeps for itself, over what all versions share.
#[derive(Debug)]
pub(crate) struct Nfs4Front {
    shared: Arc<Shared>,
}

impl Nfs4Front {
    pub(crate) fn new(shared: Arc<Shared>) -> Nfs4Front {
        Nfs4Front { shared }
    }

    /// The directories above exports, now.
    fn pseudo(&self) -> Arc<Pseudo> {
        self.shared.exports.tree()
    }
}

/// The largest READ and WRITE, in bytes.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;

/// Remembers a call whose second execution would fail or destroy data.
///
/// That concerns the operations that change names and attributes. The sequence ids of owners, and the
/// verifiers of exclusive creation, protect opens and locks. In a session, the client asks for the reply of
/// such a call to be kept (`sa_cachethis`), so that others need not be looked into.
pub(crate) fn remember(call: &rpc::Call) -> Remember {
    let mut decoder = call.arguments.clone();
    let Ok(mut header) = CompoundHeader::decode(&mut decoder) else { return Remember::No };
    let in_session = header.minorversion > 0;
    if in_session {
        let Some(Ok(ArgOp::Sequence(SequenceArgs { cachethis: true, .. }))) = header.next(&mut decoder)
        else {
            return Remember::No;
        };
    }
    let sessionless = decoder.rest();
    let mut operations = std::iter::from_fn(|| header.next(&mut decoder));
    if !operations.any(|operation| operation.is_ok_and(|operation| changes_names(&operation))) {
        return Remember::No;
    }
    if in_session {
        Remember::InSession { sessionless }
    } else {
        Remember::UntilHeard { sessionless: Some(sessionless) }
    }
}

/// Does the operation change names or attributes?
fn changes_names(operation: &ArgOp) -> bool {
    use ArgOp as A;
    matches!(operation, A::Create(_) | A::Link(_) | A::Remove(_) | A::Rename(_) | A::Setattr(_))
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

/// Is the compound one that calls of others may wait for, or one that keeps state alive? It must do nothing
/// else: a READ does not overtake others because a CLOSE is behind it.
pub(crate) fn is_urgent(asked: &Asked) -> bool {
    use ArgOp as A;
    if asked.procedure == Procedure::Null as u32 {
        return true;
    }
    let mut decoder = asked.arguments.clone();
    let Ok(mut header) = CompoundHeader::decode(&mut decoder) else { return true };
    let (mut gives_back, mut names_file) = (false, false);
    while let Some(operation) = header.next(&mut decoder) {
        // What cannot be decoded is refused, and costs nothing.
        let Ok(operation) = operation else { return true };
        match operation {
            A::Sequence(_) => {}
            A::Putfh(_) | A::Putrootfh(()) | A::Getattr(_) | A::Getfh(()) | A::Access(_) => names_file = true,
            operation if gives_back_or_renews(&operation) || is_due(&operation) => gives_back = true,
            _ => return false,
        }
    }
    // A SEQUENCE alone renews a lease.
    gives_back || !names_file
}

/// Does the operation reclaim what the client held, or open a file under a delegation? Both have a time
/// limit: the grace period, and the recall that others wait for.
fn is_due(operation: &ArgOp) -> bool {
    use OpenClaim as Claim;
    match operation {
        ArgOp::Open(open) => {
            matches!(open.claim, Claim::Previous(_) | Claim::DelegateCur(..) | Claim::DelegCurFh(_))
        }
        ArgOp::Lock(lock) => lock.reclaim,
        _ => false,
    }
}

/// Does the operation give something back, or keep a client or session alive?
fn gives_back_or_renews(operation: &ArgOp) -> bool {
    use ArgOp as A;
    let gives_back = matches!(
        operation,
        A::Close(_)
            | A::Delegpurge(_)
            | A::Delegreturn(_)
            | A::Locku(_)
            | A::OpenDowngrade(_)
            | A::ReleaseLockowner(_)
            | A::FreeStateid(_)
            | A::TestStateid(_)
    );
    let keeps_alive = matches!(
        operation,
        A::Renew(_)
            | A::BackchannelCtl(_)
            | A::BindConnToSession(_)
            | A::CreateSession(_)
            | A::DestroySession(_)
            | A::DestroyClientid(_)
            | A::ExchangeId(_)
            | A::ReclaimComplete(_)
            | A::Setclientid(_)
            | A::SetclientidConfirm(_)
    );
    gives_back || keeps_alive
}

/// Answers one call.
pub(crate) async fn answer(front: &Nfs4Front, call: rpc::Call) -> Outcome {
    match Procedure::try_from(call.header.procedure) {
        Ok(Procedure::Null) => reply(&call, &()),
        Ok(Procedure::Compound) => compound::answer(front, &call).await,
        Err(_) => Refusal::ProcedureUnavailable.into(),
    }
}
