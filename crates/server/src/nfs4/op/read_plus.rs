//! READ_PLUS.

use protocol::nfs4::{ReadPlusArgs, ReadPlusOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ReadPlusArgs,
) -> Result<ReadPlusOk, Status> {
    Err(Status::NotSupp)
}
