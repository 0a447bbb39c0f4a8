//! SETCLIENTID_CONFIRM (RFC 7530, section 16.34).

use protocol::nfs4::{SetclientidConfirmArgs, Status};
use tokio::time::Instant;

use crate::nfs4::callback;
use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SetclientidConfirmArgs,
) -> Result<(), Status> {
    let maker = compound.maker();
    let confirmed = compound.front.state.tables().clients.setclientid_confirm(
        args.clientid,
        args.setclientid_confirm,
        &maker,
        Instant::now(),
    )?;
    if let Some(gone) = confirmed.replaced {
        compound.front.release(gone).await;
    }
    if confirmed.callback_changed {
        callback::probe(compound.front, args.clientid, compound.call.peer);
    }
    Ok(())
}
