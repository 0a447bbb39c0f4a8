//! READLINK.

use protocol::nfs4::{ReadlinkOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, (): ()) -> Result<ReadlinkOk, Status> {
    Err(Status::NotSupp)
}
