//! READLINK (RFC 8881, section 18.24).

use protocol::nfs4::{Linktext, ReadlinkOk, Status};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<ReadlinkOk, Status> {
    if let File::Pseudo(_) = compound.file()? {
        return Err(kind::not_a_link(compound.minor));
    }
    let object = compound.object()?;
    let Object { export, handle, caller } = &object;
    match export.fs().readlink(caller, handle).await {
        Ok((target, _)) => Ok(ReadlinkOk { link: Linktext::new(target).ok_or(Status::ServerFault)? }),
        Err(error) if error.status == vfs::Status::Inval => Err(kind::not_a_link(compound.minor)),
        Err(error) => Err(convert::error(error)),
    }
}
