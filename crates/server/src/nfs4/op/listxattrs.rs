//! LISTXATTRS.

use protocol::nfs4::{ListxattrsArgs, ListxattrsOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ListxattrsArgs,
) -> Result<ListxattrsOk, Status> {
    Err(Status::NotSupp)
}
