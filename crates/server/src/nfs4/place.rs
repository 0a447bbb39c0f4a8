//! Ranges of the current and the saved file with their stateid basis, for ALLOCATE, DEALLOCATE, COPY and
//! CLONE.

use protocol::nfs4::{Stateid, Status};
use vfs::{Place, Share};

use super::compound::Compound;
use crate::shared::Object;

/// A range of the current file to write.
pub(super) async fn written(
    compound: &mut Compound<'_>,
    stateid: Stateid,
    offset: u64,
    length: u64,
) -> Result<(Object, Place), Status> {
    let mut object = compound.writable()?;
    let stateid = compound.stateid(stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::WRITE).await?;
    within_a_file(offset, length)?;
    let place = Place { handle: object.handle, by, offset };
    Ok((object, place))
}

/// A range of the saved file to read.
pub(super) async fn read(
    compound: &mut Compound<'_>,
    stateid: Stateid,
    offset: u64,
    length: u64,
) -> Result<(Object, Place), Status> {
    let saved = compound.saved_file()?.clone();
    let mut object = compound.object_of(saved)?;
    let stateid = compound.saved_stateid(stateid)?;
    let by = compound.io_basis(&mut object, stateid, Share::READ).await?;
    within_a_file(offset, length)?;
    let place = Place { handle: object.handle, by, offset };
    Ok((object, place))
}

fn within_a_file(offset: u64, length: u64) -> Result<(), Status> {
    match offset.checked_add(length) {
        None => Err(Status::Inval),
        Some(end) if end > i64::MAX as u64 => Err(Status::FBig),
        Some(_) => Ok(()),
    }
}
