//! DELEGRETURN (RFC 8881, section 18.6).

use protocol::nfs4::{DelegreturnArgs, Status};

use crate::nfs4::compound::Compound;
use crate::state::stateids::{FileKey, Kind};

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: DelegreturnArgs,
) -> Result<(), Status> {
    let object = compound.object()?;
    let stateid = compound.stateid(args.deleg_stateid)?;
    let held = {
        let mut tables = compound.shared.state.tables();
        let held = compound.state(&tables, stateid)?;
        let is_of_file = held.file() == FileKey { export: object.export.id, handle: object.handle };
        if !is_of_file || !matches!(held.kind, Kind::Delegation { .. }) {
            return Err(Status::BadStateid);
        }
        let (key, client) = (held.key, held.client);
        tables.clients.renew(client, tokio::time::Instant::now());
        tables.stateids.remove(key)
    };
    if let Some(held) = held {
        compound.shared.give_back(&held).await;
    }
    Ok(())
}
