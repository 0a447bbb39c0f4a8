//! GET_DIR_DELEGATION (RFC 8881, section 18.39). There is never one to be had.

use protocol::nfs4::{GetDirDelegationArgs, GetDirDelegationOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    _: GetDirDelegationArgs,
) -> Result<GetDirDelegationOk, Status> {
    compound.file()?;
    Ok(GetDirDelegationOk::Unavail { will_signal_deleg_avail: false })
}
