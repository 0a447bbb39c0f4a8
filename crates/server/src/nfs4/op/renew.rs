//! RENEW (RFC 7530, section 16.28).

use protocol::nfs4::{RenewArgs, Status};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::stateids::Kind;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: RenewArgs) -> Result<(), Status> {
    let shared = compound.shared;
    let state = &shared.state;
    let mut tables = state.tables();
    let client = compound.minor0_client(&tables, args.clientid)?;
    let is_up = shared.callbacks.is_up(&tables, client);
    let holder = tables.clients.confirmed(args.clientid).map(|client| client.holder);
    tables.clients.renew(args.clientid, Instant::now());
    // A client that cannot be called back must return its delegations.
    let mut held = tables.stateids.of_client(args.clientid);
    if let Some(holder) = holder {
        state.peers.note(compound.call.peer, holder);
    }
    if !is_up && held.any(|held| matches!(held.kind, Kind::Delegation { .. })) {
        return Err(Status::CbPathDown);
    }
    Ok(())
}
