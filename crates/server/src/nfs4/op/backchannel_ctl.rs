//! BACKCHANNEL_CTL.

use protocol::nfs4::{BackchannelCtlArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: BackchannelCtlArgs,
) -> Result<(), Status> {
    Err(Status::NotSupp)
}
