//! LINK.

use protocol::nfs4::{LinkArgs, LinkOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: LinkArgs) -> Result<LinkOk, Status> {
    Err(Status::NotSupp)
}
