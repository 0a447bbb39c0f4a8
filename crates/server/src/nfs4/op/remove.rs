//! REMOVE, of files and of directories (RFC 8881, section 18.25).

use protocol::nfs4::{RemoveArgs, RemoveOk, Status};
use vfs::{Name, Wcc};

use crate::nfs4::compound::Compound;
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: RemoveArgs,
) -> Result<RemoveOk, Status> {
    let object = compound.writable()?;
    let name = convert::name(&args.target)?;
    compound.shared.state.no_grace()?;
    match remove(&object, &name).await {
        Ok(wcc) => Ok(RemoveOk { cinfo: convert::change_info(&wcc) }),
        Err(error) => Err(kind::directory_error(&object, error, Status::NotDir).await),
    }
}

/// Most names are those of files, so this tries `remove` first. An origin of another kind returns `Perm`
/// for a directory.
async fn remove(Object { export, handle, caller }: &Object, name: &Name) -> vfs::Result<Wcc> {
    let failed = match export.fs().remove(caller, handle, name).await {
        Ok(wcc) => return Ok(wcc),
        Err(failed) => failed,
    };
    let is_dir = match failed.status {
        vfs::Status::IsDir => true,
        vfs::Status::Perm => {
            let looked = export.fs().lookup(caller, handle, name, vfs::Want::None).await;
            looked.is_ok_and(|looked| looked.node.attributes.is_some_and(|attributes| attributes.is_dir()))
        }
        _ => false,
    };
    if is_dir { export.fs().rmdir(caller, handle, name).await } else { Err(failed) }
}
