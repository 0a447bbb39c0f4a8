//! OPEN_DOWNGRADE.

use protocol::nfs4::{OpenDowngradeArgs, OpenStateidOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: OpenDowngradeArgs,
) -> Result<OpenStateidOk, Status> {
    Err(Status::NotSupp)
}
