//! RELEASE_LOCKOWNER.

use protocol::nfs4::{ReleaseLockownerArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ReleaseLockownerArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
