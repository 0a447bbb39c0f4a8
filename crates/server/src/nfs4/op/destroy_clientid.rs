//! DESTROY_CLIENTID.

use protocol::nfs4::{DestroyClientidArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: DestroyClientidArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
