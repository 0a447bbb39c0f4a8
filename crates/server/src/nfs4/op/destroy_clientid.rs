//! DESTROY_CLIENTID (RFC 8881, section 18.50).

use protocol::nfs4::{DestroyClientidArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: DestroyClientidArgs,
) -> Result<(), Status> {
    let peer = compound.maker();
    let gone = {
        let mut tables = compound.shared.state.tables();
        let maker = tables.clients.maker(args.clientid).ok_or(Status::StaleClientid)?;
        if !maker.is_reached_by(&peer) {
            return Err(Status::StaleClientid);
        }
        if maker.principal != peer.principal {
            return Err(Status::WrongCred);
        }
        if tables.sessions.has(args.clientid) || tables.has_state(args.clientid) {
            return Err(Status::ClientidBusy);
        }
        tables.clients.remove(args.clientid)
    };
    if let Some(gone) = gone {
        compound.shared.release(gone).await;
    }
    Ok(())
}
