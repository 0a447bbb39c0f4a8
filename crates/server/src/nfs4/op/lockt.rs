//! LOCKT (RFC 8881, section 18.11).

use protocol::nfs4::{LockFailure, LocktArgs, Status};
use vfs::Lock;

use super::lock::{check_range, lock_kind};
use crate::nfs4::compound::Compound;
use crate::nfs4::{convert, kind};
use crate::state::names;
use crate::state::owners::OwnerKind;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: LocktArgs) -> Result<(), LockFailure> {
    compound.file()?;
    check_range(args.offset, args.length)?;
    let shared = compound.shared;
    if compound.minor == 0 {
        let mut tables = shared.state.tables();
        let holder = compound.minor0_client(&tables, args.owner.clientid)?.holder;
        tables.clients.renew(args.owner.clientid, tokio::time::Instant::now());
        drop(tables);
        compound.set_holder(Some(holder));
    }
    if shared.state.in_lock_grace() {
        return Err(Status::Grace.into());
    }
    let object = compound.object()?;
    let fs = &object.export.fs();
    let attributes = fs.getattr(&object.caller, &object.handle).await.map_err(convert::error)?;
    if let Some(status) = kind::not_a_file(attributes.file_type, compound.minor) {
        return Err(status.into());
    }
    let holder = object.caller.holder.ok_or(Status::ServerFault)?;
    let lock = Lock {
        owner: names::owner(holder, OwnerKind::Lock, &args.owner.owner),
        kind: lock_kind(args.locktype),
        offset: args.offset,
        length: args.length,
    };
    let mut found = fs.test(&object.caller, &object.handle, &lock).await.map_err(convert::error)?;
    if let Some(holder) = found.as_ref().and_then(|other| names::holder(&other.owner))
        && shared.expire_if_courtesy(holder).await
    {
        found = fs.test(&object.caller, &object.handle, &lock).await.map_err(convert::error)?;
    }
    match found {
        None => Ok(()),
        Some(other) => Err(LockFailure::Denied(names::denied(&shared.state, &other))),
    }
}
