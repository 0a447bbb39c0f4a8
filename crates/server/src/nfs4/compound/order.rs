//! The order of operations in a compound (RFC 8881, sections 2.10.6.1 and 18.46.3).

use protocol::nfs4::{Operation, Status};

use super::Compound;

/// May this operation occur at this position and in this minor version?
pub(super) fn check(compound: &Compound<'_>, operation: Operation) -> Result<(), Status> {
    if compound.minor == 0 || operation == Operation::Illegal {
        return Ok(());
    }
    match (operation, compound.position) {
        (Operation::Sequence, 0) => Ok(()),
        (Operation::Sequence, _) => Err(Status::SequencePos),
        (Operation::BindConnToSession, 1..) => Err(Status::NotOnlyOp),
        (operation, 0) if !stands_alone(operation) => Err(Status::OpNotInSession),
        (_, 0) if compound.operations > 1 => Err(Status::NotOnlyOp),
        (operation, _) if operation.is_minor0_only() => Err(Status::NotSupp),
        _ => Ok(()),
    }
}

/// Operations that need no session. Without one, such an operation must be the only one.
fn stands_alone(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ExchangeId
            | Operation::CreateSession
            | Operation::DestroySession
            | Operation::BindConnToSession
            | Operation::DestroyClientid
    )
}
