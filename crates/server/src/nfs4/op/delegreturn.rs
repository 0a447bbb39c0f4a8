//! DELEGRETURN.

use protocol::nfs4::{DelegreturnArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: DelegreturnArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
