//! SETCLIENTID (RFC 7530, section 16.33).

use protocol::nfs4::{SetclientidArgs, SetclientidFailure, SetclientidOk, Status};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::clients::{CallbackAddress, Setclientid};
use crate::state::{Scarce, Tables};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: SetclientidArgs,
) -> Result<SetclientidOk, SetclientidFailure> {
    compound.shared.start_tasks();
    let request = Setclientid {
        ownerid: args.client.ownerid.into_bytes(),
        verifier: args.client.verifier,
        maker: compound.maker(),
        callback: CallbackAddress {
            program: args.callback.cb_program,
            location: args.callback.cb_location,
            ident: args.callback_ident,
        },
    };
    let set = || {
        let mut tables = compound.shared.state.tables();
        let Tables { clients, stateids, .. } = &mut *tables;
        clients.setclientid(request.clone(), Instant::now(), |client| stateids.has(client))
    };
    let mut given = set();
    if matches!(given, Err((Status::Resource, _))) && compound.shared.capacity_for(Scarce::Clients).await {
        given = set();
    }
    match given {
        Ok((clientid, setclientid_confirm)) => Ok(SetclientidOk { clientid, setclientid_confirm }),
        Err((Status::ClidInuse, Some(location))) => Err(SetclientidFailure::ClidInuse(location)),
        Err((status, _)) => Err(status.into()),
    }
}
