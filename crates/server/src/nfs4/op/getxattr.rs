//! GETXATTR.

use protocol::nfs4::{GetxattrOk, Status, XattrArgs};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: XattrArgs,
) -> Result<GetxattrOk, Status> {
    Err(Status::NotSupp)
}
