//! SEQUENCE.

use protocol::nfs4::{SequenceArgs, SequenceOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SequenceArgs,
) -> Result<SequenceOk, Status> {
    Err(Status::NotSupp)
}
