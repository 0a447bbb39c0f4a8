//! DESTROY_SESSION (RFC 8881, section 18.37).

use protocol::nfs4::{DestroySessionArgs, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: DestroySessionArgs,
) -> Result<(), Status> {
    let is_own = compound.slot.as_ref().is_some_and(|slot| slot.session == args.sessionid);
    if is_own && !compound.is_last() {
        return Err(Status::NotOnlyOp);
    }
    let peer = compound.maker();
    {
        let mut tables = compound.shared.state.tables();
        tables.sessions.check(args.sessionid, &peer)?;
        tables.sessions.destroy(args.sessionid)?;
    }
    compound.shared.callbacks.forget_session(args.sessionid);
    Ok(())
}
