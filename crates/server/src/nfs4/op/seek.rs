//! SEEK (RFC 7862, section 15.11).

use protocol::nfs4::{DataContent, SeekArgs, SeekOk, Status};
use vfs::{Extent, Share};

use crate::nfs4::compound::Compound;
use crate::nfs4::kind;
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: SeekArgs) -> Result<SeekOk, Status> {
    let mut object = compound.object()?;
    let stateid = compound.stateid(args.stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::READ).await?;
    let what = match args.what {
        DataContent::Data => Extent::Data,
        DataContent::Hole => Extent::Hole,
        DataContent::Other(_) => return Err(Status::UnionNotSupp),
    };
    let Object { export, handle, caller } = &object;
    let seek = || export.fs().seek(caller, handle, by, args.offset, what);
    match compound.shared.past_courtesy(&object, None, seek).await {
        Ok(sought) => Ok(SeekOk { eof: sought.eof, offset: sought.offset }),
        Err(error) => Err(kind::io_error(&object, error, compound.minor).await),
    }
}
