//! NVERIFY (RFC 8881, section 18.15).

use protocol::nfs4::{Status, VerifyArgs};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: VerifyArgs) -> Result<(), Status> {
    if super::verify::are_same(compound, &args.obj_attributes).await? { Err(Status::Same) } else { Ok(()) }
}
