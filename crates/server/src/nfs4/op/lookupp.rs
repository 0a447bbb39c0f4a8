//! LOOKUPP.

use protocol::nfs4::Status;

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    Err(Status::NotSupp)
}
