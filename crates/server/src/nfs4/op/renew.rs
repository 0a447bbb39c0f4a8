//! RENEW.

use protocol::nfs4::{RenewArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: RenewArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
