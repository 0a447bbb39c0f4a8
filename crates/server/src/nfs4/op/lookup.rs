//! LOOKUP.

use protocol::nfs4::{LookupArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(_compound: &mut Compound<'_>, _args: LookupArgs) -> Result<(), Status> {
    Err(Status::NotSupp)
}
