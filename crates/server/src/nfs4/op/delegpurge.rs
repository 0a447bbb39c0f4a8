//! DELEGPURGE (RFC 8881, section 18.5). No delegation outlives its client incarnation, so there is none to
//! purge.

use protocol::nfs4::{DelegpurgeArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_: &mut Compound<'_>, _: DelegpurgeArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
