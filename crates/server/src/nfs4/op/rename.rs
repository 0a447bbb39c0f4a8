//! RENAME from the saved directory into the current one (RFC 8881, section 18.26).

use protocol::nfs4::{RenameArgs, RenameOk, Status};

use crate::nfs4::compound::Compound;
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: RenameArgs,
) -> Result<RenameOk, Status> {
    let target_file = compound.file()?.clone();
    let source_file = compound.saved_file()?.clone();
    let source = compound.writable_of(source_file)?;
    let target = compound.writable_of(target_file)?;
    let (oldname, newname) = (convert::name(&args.oldname)?, convert::name(&args.newname)?);
    compound.shared.state.no_grace()?;
    if source.export.id != target.export.id {
        return Err(Status::Xdev);
    }
    let Object { export, handle, caller } = &source;
    match export.fs().rename(caller, handle, &oldname, &target.handle, &newname).await {
        Ok(renamed) => Ok(RenameOk {
            source_cinfo: convert::change_info(&renamed.from),
            target_cinfo: convert::change_info(&renamed.to),
        }),
        Err(error) => Err(failure(&source, &target, error).await),
    }
}

/// A directory and a file cannot replace each other; v4 returns EXIST for that. NOTDIR is for a source or
/// target directory that is none.
async fn failure(source: &Object, target: &Object, error: vfs::Error) -> Status {
    use vfs::Status as S;
    if matches!(error.status, S::NotDir | S::Inval | S::Access) {
        for object in [source, target] {
            if !kind::is_directory(object).await {
                return Status::NotDir;
            }
        }
    }
    match error.status {
        S::IsDir | S::NotDir => Status::Exist,
        other => convert::status(other),
    }
}
