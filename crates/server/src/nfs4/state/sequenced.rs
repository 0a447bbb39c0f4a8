//! Minor version 0: an owner's requests one after the other, each carried out once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::nfs4::{Failure, Op, ResOp, Stateid, Status};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use super::Tables;
use super::clients::Principal;
use super::owners::{OwnerKind, OwnerName, Turn};
use super::stateids::Kind;
use crate::nfs4::compound::{Compound, Current};

/// The last answer to an owner.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) result: ResOp,
    /// The current handle after it.
    pub(crate) current: Option<Current>,
    /// The user that it went to.
    pub(crate) to: Principal,
}

impl Answer {
    /// What the compound's user gets.
    pub(crate) fn to(compound: &Compound<'_>, result: ResOp) -> Answer {
        Answer { result, current: compound.current.clone(), to: compound.principal() }
    }
}

/// Which owners have a request running.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<OwnerName, Arc<tokio::sync::Mutex<()>>>>);

/// An owner's turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'t> {
    turns: &'t Turns,
    name: OwnerName,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until no other request of the owner is running.
    pub(crate) async fn take(&self, name: &OwnerName) -> Taken<'_> {
        let turn = self.0.lock().entry(name.clone()).or_default().clone();
        Taken { turns: self, name: name.clone(), guard: Some(turn.lock_owned().await) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut turns = self.turns.0.lock();
        if turns.get(&self.name).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.name);
        }
    }
}

/// Carries out a request of an owner that has made one before, or answers it as the last time. In minor versions with
/// sessions it is simply carried out.
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
    let front = compound.front.clone();
    let name = owner_of(compound, &front.state.tables(), stateid, kind)?;
    let _turn = front.state.turns.take(&name).await;
    let turn = front.state.tables().owners.begin(&name, seqid, Instant::now())?;
    if let Turn::Replay(answer) = turn {
        return replay::<O>(compound, answer);
    }
    enter(compound, &name);
    let result = run(compound).await;
    let status = result.as_ref().map(|_| ()).map_err(Failure::status);
    let answer = Answer::to(compound, wrap(result.clone()));
    front.state.tables().owners.finish(&name, seqid, status, answer);
    result
}

/// The answer of the last time, if it was to the same operation of the same user.
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

/// From here on the compound asks in the name of the owner's client, whose lease it renews.
pub(crate) fn enter(compound: &mut Compound<'_>, name: &OwnerName) {
    let holder = {
        let mut tables = compound.front.state.tables();
        tables.clients.renew(name.client, Instant::now());
        tables.clients.confirmed(name.client).map(|client| client.holder)
    };
    compound.set_holder(holder);
}

/// Whose request it is that brings a state id, whatever its seqid.
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
