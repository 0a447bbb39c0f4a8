//! TEST_STATEID (RFC 8881, section 18.48).

use protocol::nfs4::{Outcome, Status, TestStateidArgs, TestStateidOk};
use xdr::List;

use crate::nfs4::compound::Compound;
use crate::state::Tables;

pub(in crate::nfs4) async fn answer(
    compound: &mut Compound<'_>,
    args: TestStateidArgs,
) -> Result<TestStateidOk, Status> {
    let tables = compound.shared.state.tables();
    let Tables { stateids, clients, .. } = &*tables;
    let requester = compound.requester(&tables);
    let test = |stateid| {
        let found = stateids.find(stateid, requester, |number| clients.lives(number));
        Outcome::from(found.map(|_| ()))
    };
    let status_codes = args.stateids.iter().map(|stateid| test(*stateid)).collect();
    Ok(TestStateidOk { status_codes: List::new(status_codes).ok_or(Status::ServerFault)? })
}
