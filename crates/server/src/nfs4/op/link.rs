//! LINK of the saved file into the current directory (RFC 8881, section 18.9).

use protocol::nfs4::{LinkArgs, LinkOk, Status};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::{convert, kind};
use crate::shared::Object;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: LinkArgs) -> Result<LinkOk, Status> {
    let directory = compound.file()?.clone();
    let file = compound.saved_file()?.clone();
    if let File::Pseudo(_) = file {
        return Err(Status::IsDir);
    }
    let directory = compound.writable_of(directory)?;
    let file = compound.writable_of(file)?;
    let name = convert::name(&args.newname)?;
    compound.shared.state.no_grace()?;
    if file.export.id != directory.export.id {
        return Err(Status::Xdev);
    }
    let Object { export, handle, caller } = &file;
    match export.fs().link(caller, handle, &directory.handle, &name).await {
        Ok(linked) => Ok(LinkOk { cinfo: convert::change_info(&linked.directory) }),
        Err(error) => Err(failure(&file, &directory, error).await),
    }
}

/// Back ends differ in their errors for links to directories, and for a target directory that is none.
async fn failure(file: &Object, directory: &Object, error: vfs::Error) -> Status {
    use vfs::Status as S;
    match error.status {
        S::NotDir | S::Inval | S::Access if !kind::is_directory(directory).await => Status::NotDir,
        S::Perm | S::Inval | S::IsDir if kind::is_directory(file).await => Status::IsDir,
        other => convert::status(other),
    }
}
