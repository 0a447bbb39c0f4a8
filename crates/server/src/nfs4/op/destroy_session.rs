//! DESTROY_SESSION.

use protocol::nfs4::{DestroySessionArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: DestroySessionArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
