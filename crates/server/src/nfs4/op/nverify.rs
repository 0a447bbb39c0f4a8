//! NVERIFY.

use protocol::nfs4::{Status, VerifyArgs};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: VerifyArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
