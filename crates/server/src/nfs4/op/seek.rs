//! SEEK.

use protocol::nfs4::{SeekArgs, SeekOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: SeekArgs) -> Result<SeekOk, Status> {
    Err(Status::NotSupp)
}
