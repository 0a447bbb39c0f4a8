//! PUTPUBFH (RFC 8881, section 18.20): the public handle is the root.

use protocol::nfs4::Status;

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(compound: &mut Compound<'_>, (): ()) -> Result<(), Status> {
    super::putrootfh::answer(compound, ()).await
}
