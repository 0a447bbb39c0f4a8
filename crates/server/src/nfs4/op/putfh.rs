//! PUTFH (RFC 8881, section 18.19). The next operation finds out whether the object still exists.

use protocol::nfs4::{PutfhArgs, Status};

use crate::nfs4::compound::{Compound, File};
use crate::nfs4::convert;
use crate::nfs4::walk::there;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, args: PutfhArgs) -> Result<(), Status> {
    let (front, shared) = (compound.front, compound.shared);
    if let Some(pseudo) = shared.handles.read_pseudo(&args.object) {
        let id = pseudo.map_err(convert::status)?;
        let node = front.pseudo().by_id(id).ok_or(Status::Stale)?;
        compound.set_file(File::Pseudo(node));
        return Ok(());
    }
    let (id, handle) = shared.handles.read(&args.object).map_err(convert::status)?;
    let export = shared.exports.by_id(id).ok_or(Status::Stale)?;
    match compound.caller(&export) {
        Err(Status::WrongSec) if compound.precedes_secinfo() => {}
        other => drop(other?),
    }
    let file = if export.is_absent() { File::Absent(export) } else { File::Object(there(export)?, handle) };
    compound.set_file(file);
    compound.note_put();
    Ok(())
}
