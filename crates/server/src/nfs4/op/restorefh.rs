//! RESTOREFH (RFC 8881, section 18.27; RFC 7530, section 16.29).

use protocol::nfs4::Status;

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    let nothing_saved = if compound.minor == 0 { Status::RestoreFh } else { Status::NoFileHandle };
    compound.current = Some(compound.saved.clone().ok_or(nothing_saved)?);
    Ok(())
}
