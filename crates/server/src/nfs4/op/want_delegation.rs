//! WANT_DELEGATION.

use protocol::nfs4::{OpenDelegation, Status, WantDelegationArgs};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: WantDelegationArgs,
) -> Result<OpenDelegation, Status> {
    Err(Status::NotSupp)
}
