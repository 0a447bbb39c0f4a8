//! BIND_CONN_TO_SESSION.

use protocol::nfs4::{BindConnToSessionArgs, BindConnToSessionOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: BindConnToSessionArgs,
) -> Result<BindConnToSessionOk, Status> {
    Err(Status::NotSupp)
}
