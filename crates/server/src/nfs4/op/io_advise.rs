//! IO_ADVISE (RFC 7862, section 15.5). The cache learns from the reads themselves and ignores hints.

use protocol::nfs4::{Bitmap, IoAdviseArgs, IoAdviseOk, Status};
use vfs::Share;

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: IoAdviseArgs,
) -> Result<IoAdviseOk, Status> {
    let mut object = compound.object()?;
    let stateid = compound.stateid(args.stateid)?;
    compound.io_basis(&mut object, stateid, Share::empty()).await?;
    Ok(IoAdviseOk { hints: Bitmap::EMPTY })
}
