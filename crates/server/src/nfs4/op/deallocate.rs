//! DEALLOCATE (RFC 7862, section 15.4).

use protocol::nfs4::{AllocateArgs, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::{kind, place};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: AllocateArgs) -> Result<(), Status> {
    let (object, at) = place::written(compound, args.stateid, args.offset, args.length).await?;
    let Object { export, caller, .. } = &object;
    let deallocate = || export.fs().deallocate(caller, at, args.length);
    match compound.shared.past_courtesy(&object, None, deallocate).await {
        Ok(_) => Ok(()),
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}
