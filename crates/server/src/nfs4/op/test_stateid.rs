//! TEST_STATEID.

use protocol::nfs4::{Status, TestStateidArgs, TestStateidOk};

use crate::nfs4::compound::Compound;

pub(in crate::nfs4) async fn answer(
    _compound: &mut Compound<'_>,
    _args: TestStateidArgs,
) -> Result<TestStateidOk, Status> {
    Err(Status::NotSupp)
}
