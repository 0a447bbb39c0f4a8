//! RECLAIM_COMPLETE (RFC 8881, section 18.51).

use protocol::nfs4::{ReclaimCompleteArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: ReclaimCompleteArgs,
) -> Result<(), Status> {
    if args.one_fs {
        // No file system migrates to this server, so there was nothing to reclaim.
        return compound.file().map(|_| ());
    }
    let state = &compound.shared.state;
    let (id, name) = {
        let tables = state.tables();
        let client = tables.client_of(compound.holder()).ok_or(Status::BadSession)?;
        if client.reclaim_complete {
            return Err(Status::CompleteAlready);
        }
        (client.id, client.name.clone())
    };
    state.record(id, name.clone()).await?;
    let ending = {
        let mut tables = state.tables();
        if let Some(client) = tables.clients.confirmed_mut(id) {
            client.reclaim_complete = true;
        }
        tables.grace.complete(&name)
    };
    if ending {
        compound.shared.end_grace().await;
    }
    Ok(())
}
