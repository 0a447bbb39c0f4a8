//! CLONE.

use protocol::nfs4::{CloneArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: CloneArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
