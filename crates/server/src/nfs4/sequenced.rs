//! Minor version 0: runs the requests of an owner one after the other, and each only once.

use protocol::nfs4::{Failure, Op, ResOp, Stateid, Status};
use tokio::time::Instant;

use super::compound::Compound;
use crate::state::Tables;
use crate::state::owners::{OwnerKind, OwnerName, Turn};
use crate::state::stateids::Kind;
use crate::state::turns::Answer;

/// An answer to the compound's user.
pub(super) fn answer(compound: &Compound<'_>, result: ResOp) -> Answer {
    Answer { result, current: compound.current.clone(), to: compound.principal() }
}

/// Executes a request of an owner that has made one before, or replays the last answer. In minor versions
/// with sessions it only executes the request.
pub(crate) async fn sequenced<O: Op<ResOp = ResOp>>(
    compound: &mut Compound<'_>,
    (stateid, kind, seqid): (Stateid, OwnerKind, u32),
    wrap: fn(Result<O::Ok, O::Failure>) -> ResOp,
    run: impl AsyncFnOnce(&mut Compound<'_>) -> Result<O::Ok, O::Failure>,
) -> Result<O::Ok, O::Failure>
where
    Result<O::Ok, O::Failure>: Clone,
{
    if compound.minor > 0 {
        return run(compound).await;
    }
    let shared = compound.shared;
    let name = owner_of(compound, &shared.state.tables(), stateid, kind)?;
    let _turn = shared.state.turns.take(&name).await;
    let turn = shared.state.tables().owners.begin(&name, seqid, Instant::now())?;
    if let Turn::Replay(answer) = turn {
        return replay::<O>(compound, answer);
    }
    enter(compound, &name);
    let result = run(compound).await;
    let status = result.as_ref().map(|_| ()).map_err(Failure::status);
    let answer = answer(compound, wrap(result.clone()));
    shared.state.tables().owners.finish(&name, seqid, status, answer);
    result
}

/// Replays the last answer, if it answered the same operation of the same user.
pub(crate) fn replay<O: Op<ResOp = ResOp>>(
    compound: &mut Compound<'_>,
    answer: Answer,
) -> Result<O::Ok, O::Failure> {
    if answer.to != compound.principal() {
        return Err(Status::BadSeqid.into());
    }
    let result = O::result(answer.result).ok_or(Status::BadSeqid)?;
    compound.current = answer.current;
    result
}

/// From here on the compound acts for the owner's client, and renews its lease.
pub(crate) fn enter(compound: &mut Compound<'_>, name: &OwnerName) {
    let holder = {
        let mut tables = compound.shared.state.tables();
        tables.clients.renew(name.client, Instant::now());
        tables.clients.confirmed(name.client).map(|client| client.holder)
    };
    compound.set_holder(holder);
}

/// The owner of a request that carries a state id, whatever the seqid.
fn owner_of(
    compound: &Compound<'_>,
    tables: &Tables,
    stateid: Stateid,
    kind: OwnerKind,
) -> Result<OwnerName, Status> {
    let Tables { stateids, owners, .. } = tables;
    if let Some(key) = stateids.parse(stateid) {
        match (stateids.get(key).map(|held| (&held.kind, held.client)), kind) {
            (Some((Kind::Open { owner, .. }, client)), OwnerKind::Open)
            | (Some((Kind::Lock { owner, .. }, client)), OwnerKind::Lock) => {
                compound.is_ours(tables, client)?;
                return Ok(OwnerName { client, kind, name: owner.clone() });
            }
            (None, OwnerKind::Open) => {
                if let Some(name) = owners.closer(key) {
                    compound.is_ours(tables, name.client)?;
                    return Ok(name.clone());
                }
            }
            _ => {}
        }
    }
    compound.any_state(tables, stateid)?;
    Err(Status::BadStateid)
}
