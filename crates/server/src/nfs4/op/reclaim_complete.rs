//! RECLAIM_COMPLETE.

use protocol::nfs4::{ReclaimCompleteArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ReclaimCompleteArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
