//! RENAME.

use protocol::nfs4::{RenameArgs, RenameOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: RenameArgs,
) -> Result<RenameOk, Status> {
    Err(Status::NotSupp)
}
