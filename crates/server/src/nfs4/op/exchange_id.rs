//! EXCHANGE_ID (RFC 8881, section 18.35).

use protocol::nfs4::{
    EXCHGID4_FLAG_BIND_PRINC_STATEID, EXCHGID4_FLAG_CONFIRMED_R, EXCHGID4_FLAG_SUPP_MOVED_MIGR,
    EXCHGID4_FLAG_SUPP_MOVED_REFER, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, EXCHGID4_FLAG_USE_NON_PNFS,
    EXCHGID4_FLAG_USE_PNFS_DS, EXCHGID4_FLAG_USE_PNFS_MDS, ExchangeIdArgs, ExchangeIdOk, ServerOwner,
    StateProtectArgs, StateProtectOk, Status,
};
use tokio::time::Instant;

use crate::nfs4::compound::Compound;
use crate::state::clients::Exchanged;
use crate::state::{Scarce, Tables};

/// The flags that a client may set. `EXCHGID4_FLAG_SUPP_FENCE_OPS` belongs to copies between servers, which
/// are not supported.
const KNOWN: u32 = EXCHGID4_FLAG_SUPP_MOVED_REFER
    | EXCHGID4_FLAG_SUPP_MOVED_MIGR
    | EXCHGID4_FLAG_BIND_PRINC_STATEID
    | EXCHGID4_FLAG_USE_NON_PNFS
    | EXCHGID4_FLAG_USE_PNFS_MDS
    | EXCHGID4_FLAG_USE_PNFS_DS
    | EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ExchangeIdArgs,
) -> Result<ExchangeIdOk, Status> {
    if args.flags & !KNOWN != 0 {
        return Err(Status::Inval);
    }
    match args.state_protect {
        StateProtectArgs::None => {}
        // Not supported. Linux asks for it under krb5i and krb5p, and then asks again for no protection.
        StateProtectArgs::MachCred(_) => return Err(Status::Inval),
        StateProtectArgs::Ssv(_) => return Err(Status::EncrAlgUnsupp),
    }
    compound.shared.start_tasks();
    let state = &compound.shared.state;
    let exchanged = match exchange(compound, &args) {
        Err(Status::Delay) if compound.shared.capacity_for(Scarce::Clients).await => {
            exchange(compound, &args)?
        }
        exchanged => exchanged?,
    };
    if let Some(gone) = exchanged.replaced {
        compound.shared.release(gone).await;
    }
    let confirmed = if exchanged.confirmed { EXCHGID4_FLAG_CONFIRMED_R } else { 0 };
    Ok(ExchangeIdOk {
        clientid: exchanged.id,
        sequenceid: exchanged.sequence,
        flags: EXCHGID4_FLAG_USE_NON_PNFS | confirmed,
        state_protect: StateProtectOk::None,
        server_owner: ServerOwner { minor_id: 0, major_id: state.server_name() },
        server_scope: state.server_name(),
        server_impl_id: None,
    })
}

fn exchange(compound: &Compound<'_>, args: &ExchangeIdArgs) -> Result<Exchanged, Status> {
    let mut tables = compound.shared.state.tables();
    let Tables { clients, stateids, .. } = &mut *tables;
    clients.exchange_id(
        (args.clientowner.ownerid.clone().into_bytes(), args.clientowner.verifier),
        compound.maker(),
        args.flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A != 0,
        Instant::now(),
        |client| stateids.has(client),
    )
}
