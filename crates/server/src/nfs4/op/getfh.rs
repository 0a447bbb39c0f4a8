//! GETFH.

use protocol::nfs4::{GetfhOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, (): ()) -> Result<GetfhOk, Status> {
    Err(Status::NotSupp)
}
