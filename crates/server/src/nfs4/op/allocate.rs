//! ALLOCATE.

use protocol::nfs4::{AllocateArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: AllocateArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
