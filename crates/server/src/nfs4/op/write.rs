//! WRITE (RFC 8881, section 18.32).

use protocol::nfs4::{Status, WriteArgs, WriteOk};
use vfs::Share;
use xdr::Bulk;

use crate::nfs4::compound::Compound;
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: WriteArgs) -> Result<WriteOk, Status> {
    let mut object = compound.writable()?;
    let Bulk::Bytes(data) = args.data else { return Err(Status::ServerFault) };
    let stateid = compound.stateid(args.stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::WRITE).await?;
    if args.offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Status::FBig);
    }
    let stable = convert::stability(args.stable);
    let Object { export, handle, caller } = &object;
    let write = || export.fs().write(caller, handle, by, args.offset, data.clone(), stable);
    match compound.shared.past_courtesy(&object, None, write).await {
        Ok(written) => {
            compound.shared.count_written(&object, written.count as usize);
            Ok(WriteOk {
                count: written.count,
                committed: convert::stable_how(written.stability),
                writeverf: written.verifier,
            })
        }
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}
