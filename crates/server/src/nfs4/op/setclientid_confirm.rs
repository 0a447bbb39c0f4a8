//! SETCLIENTID_CONFIRM (RFC 7530, section 16.34).

use protocol::nfs4::{SetclientidConfirmArgs, Status};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::{Scarce, Tables};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SetclientidConfirmArgs,
) -> Result<(), Status> {
    let maker = compound.maker();
    let confirm = || {
        let mut tables = compound.shared.state.tables();
        let Tables { clients, stateids, .. } = &mut *tables;
        let given = (args.clientid, args.setclientid_confirm);
        clients.setclientid_confirm(given, &maker, Instant::now(), |client| stateids.has(client))
    };
    let mut confirmed = confirm();
    if matches!(confirmed, Err(Status::Resource)) && compound.shared.capacity_for(Scarce::Clients).await {
        confirmed = confirm();
    }
    let confirmed = confirmed?;
    if let Some(gone) = confirmed.replaced {
        compound.shared.release(gone).await;
    }
    // The server would call back on a connection of its own, in plain text. A client that uses TLS gets no
    // such calls, and so no delegations.
    if confirmed.callback_changed && compound.call.security() == rpc::TransportSecurity::None {
        compound.shared.callbacks.probe(args.clientid, compound.call.peer);
    }
    Ok(())
}
