//! EXCHANGE_ID.

use protocol::nfs4::{ExchangeIdArgs, ExchangeIdOk, Status};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: ExchangeIdArgs,
) -> Result<ExchangeIdOk, Status> {
    Err(Status::NotSupp)
}
