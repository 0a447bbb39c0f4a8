//! WANT_DELEGATION (RFC 8881, section 18.49). Delegations are granted only by OPEN.

use protocol::nfs4::{OpenDelegation, Status, WantDelegationArgs};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _: &mut Compound<'_>,
    _: WantDelegationArgs,
) -> Result<OpenDelegation, Status> {
    Err(Status::NotSupp)
}
