//! READ.

use protocol::nfs4::{ReadArgs, ReadOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: ReadArgs) -> Result<ReadOk, Status> {
    Err(Status::NotSupp)
}
