//! REMOVEXATTR.

use protocol::nfs4::{Status, XattrArgs, XattrChangedOk};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: XattrArgs,
) -> Result<XattrChangedOk, Status> {
    Err(Status::NotSupp)
}
