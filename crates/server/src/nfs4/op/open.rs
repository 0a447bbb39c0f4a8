//! OPEN.

use protocol::nfs4::{OpenArgs, OpenOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: OpenArgs) -> Result<OpenOk, Status> {
    Err(Status::NotSupp)
}
