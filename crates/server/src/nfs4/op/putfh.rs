//! PUTFH.

use protocol::nfs4::{PutfhArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: PutfhArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
