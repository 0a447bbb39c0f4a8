//! READ (RFC 8881, section 18.22).

use protocol::nfs4::{ReadArgs, ReadOk, Status};
use vfs::Share;

use crate::bulk::bulk;
use crate::nfs4::compound::Compound;
use crate::nfs4::{TRANSFER_MAX_BYTES, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: ReadArgs) -> Result<ReadOk, Status> {
    let mut object = compound.object()?;
    let stateid = compound.stateid(args.stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::READ).await?;
    let count = args.count.min(TRANSFER_MAX_BYTES);
    // Beyond the largest possible file size there is nothing to read.
    let offset = args.offset.min(i64::MAX as u64 - u64::from(count));
    let Object { export, handle, caller } = &object;
    let read = || export.fs().read(caller, handle, by, offset, count);
    match compound.shared.past_courtesy(&object, None, read).await {
        Ok(read) => {
            compound.shared.count_read(&object, read.data.len());
            Ok(ReadOk { eof: read.eof, data: bulk(read.data) })
        }
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}
