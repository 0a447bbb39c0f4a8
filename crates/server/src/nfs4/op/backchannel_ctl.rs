//! BACKCHANNEL_CTL (RFC 8881, section 18.33).

use protocol::nfs4::{BackchannelCtlArgs, Status};

use super::create_session::credential;
use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: BackchannelCtlArgs,
) -> Result<(), Status> {
    let session = compound.slot.as_ref().ok_or(Status::OpNotInSession)?.session;
    let mut tables = compound.shared.state.tables();
    let session = tables.sessions.get_mut(session).ok_or(Status::BadSession)?;
    session.callbacks.program = args.cb_program;
    session.callbacks.credential = credential(&args.sec_parms);
    session.back_down = false;
    Ok(())
}
