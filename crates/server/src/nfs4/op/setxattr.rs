//! SETXATTR.

use protocol::nfs4::{SetxattrArgs, Status, XattrChangedOk};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: SetxattrArgs,
) -> Result<XattrChangedOk, Status> {
    Err(Status::NotSupp)
}
