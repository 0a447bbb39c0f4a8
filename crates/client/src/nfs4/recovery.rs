//! Recovery (RFC 8881, section 8.4): a new session, a new client id, what was held reclaimed, and single states mended.
//!
//! One recovery at a time; calls wait for it and then go on with the states' new names. What cannot be got back is lost
//! for good: a delegation is revoked, an open is without a state id from then on. An open that had locks which could
//! not be got back is lost as a whole, for whoever goes on with it believes to have them.

use std::sync::Arc;
use std::time::Duration;

use protocol::nfs4::{
    CompoundError, FreeStateidArgs, LockArgs, OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
    OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, Op, OpenClaim, OpenDelegation, OpenDelegationType, Openflag,
    Operation, Stateid, Status as Wire, TestStateidArgs, op,
};
use tokio::task::JoinSet;
use vfs::{Handle, LeaseId, LeaseKind, OpenId, Principal, Share, Want};
use xdr::List;

use super::attributes::put;
use super::establish::NotMade;
use super::locks::{lock_type, locker};
use super::opens::open_args;
use super::session::Session;
use super::state::{Locks, Open, Used, latest};
use super::{Nfs4Client, Phase};

/// The first pause between two attempts; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// So many opens are reclaimed at once.
const AT_ONCE: usize = 16;

/// What came of mending a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mended {
    /// Try again.
    Again,
    /// It is gone.
    Lost,
}

/// What came of reclaiming an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaimed {
    Done,
    /// The origin takes no reclaims (any more).
    TooLate,
}

impl Nfs4Client {
    /// This session is no more. Whoever notices first starts the recovery.
    pub(super) fn session_lost(&self, lost: &Arc<Session>) {
        self.start_recovery(lost, false);
    }

    /// The server has restarted and kept the session, but not what was held.
    pub(super) fn reclaim_wanted(&self, session: &Arc<Session>) {
        self.start_recovery(session, true);
    }

    fn start_recovery(&self, lost: &Arc<Session>, keep: bool) {
        let started = self.phase.send_if_modified(|phase| {
            let ours = matches!(phase, Phase::Ready(session) if Arc::ptr_eq(session, lost));
            if ours {
                *phase = Phase::Recovering;
            }
            ours
        });
        if let (true, Some(inner)) = (started, self.myself()) {
            let session = keep.then(|| lost.clone());
            tokio::spawn(async move { inner.recover(session).await });
        }
    }

    async fn recover(self: Arc<Nfs4Client>, mut session: Option<Arc<Session>>) {
        tracing::info!("server {}: recovering the session", self.server);
        let mut reclaim = session.is_some();
        let mut pause = PAUSE_MIN;
        while matches!(*self.phase.borrow(), Phase::Recovering) {
            match self.restore(&mut session, &mut reclaim).await {
                Ok(session) => {
                    self.flags.store(0, std::sync::atomic::Ordering::Relaxed);
                    self.phase.send_if_modified(|phase| {
                        let waiting = matches!(phase, Phase::Recovering);
                        if waiting {
                            *phase = Phase::Ready(session);
                        }
                        waiting
                    });
                    self.upkeep.notify_one();
                    tracing::info!("server {}: recovered", self.server);
                    return;
                }
                Err(error) => tracing::debug!(?error, "recovery goes on"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One attempt. What it achieves is kept for the next one.
    async fn restore(
        self: &Arc<Nfs4Client>,
        made: &mut Option<Arc<Session>>,
        reclaim: &mut bool,
    ) -> Result<Arc<Session>, NotMade> {
        let session = match made.take() {
            Some(session) => session,
            None => self.new_session(reclaim).await?,
        };
        if *reclaim {
            self.fsids.forget();
            self.reclaim_everything(&session).await?;
            *reclaim = false;
        }
        Ok(session)
    }

    /// A session of the client id that there is, or of a new one, and then everything must be reclaimed.
    pub(super) async fn new_session(&self, reclaim: &mut bool) -> Result<Arc<Session>, NotMade> {
        let client = self.client.lock().clone();
        match self.create_session(&client, None).await {
            Ok(session) => {
                self.client.lock().sequence = client.sequence.wrapping_add(1);
                self.note_incarnation(&session);
                return Ok(Arc::new(session));
            }
            Err(NotMade::Status(Wire::Delay)) => return Err(NotMade::Status(Wire::Delay)),
            Err(NotMade::Status(status)) => {
                tracing::info!("server {}: {status} to the client id; making a new one", self.server);
            }
            Err(error) => return Err(error),
        }
        let fresh = self.exchange_id(None).await?;
        let session = self.create_session(&fresh, None).await?;
        let sequence = fresh.sequence.wrapping_add(1);
        // A server that still has the client has what it holds.
        *reclaim |= !(fresh.confirmed && fresh.id == client.id);
        *self.client.lock() = super::establish::Client { sequence, ..fresh };
        self.note_incarnation(&session);
        Ok(Arc::new(session))
    }

    /// Opens with their delegations and locks, then delegations that have no open; then the end of it is told, and
    /// what came too late is opened anew.
    async fn reclaim_everything(self: &Arc<Nfs4Client>, session: &Arc<Session>) -> Result<(), NotMade> {
        self.lose_directories();
        let plan = self.plan();
        let mut late = Vec::new();
        let mut tasks = JoinSet::new();
        for (id, delegation) in plan.opens {
            if tasks.len() >= AT_ONCE
                && let Some(joined) = tasks.join_next().await
            {
                late.extend(too_late(joined)?);
            }
            let (inner, session) = (self.clone(), session.clone());
            tasks.spawn(async move {
                inner.reclaim_open(&session, id, delegation).await.map(|reclaimed| (id, reclaimed))
            });
        }
        while let Some(joined) = tasks.join_next().await {
            late.extend(too_late(joined)?);
        }
        for (id, handle) in plan.lone_leases {
            self.reclaim_lease(session, id, handle).await?;
        }
        self.reclaim_complete(session).await?;
        for id in late {
            self.reopen(session, id).await?;
        }
        Ok(())
    }

    /// What is to be reclaimed: each open, the first of a file with the delegation of the file.
    pub(super) fn plan(&self) -> ToReclaim {
        let state = self.state.lock();
        let mut leases: Vec<(LeaseId, Handle)> = state.leases().map(|(id, held)| (id, held.handle)).collect();
        let mut opens = Vec::new();
        for (id, open) in state.opens().filter(|(_, open)| open.stateid.is_some()) {
            let with = leases.iter().position(|(_, handle)| *handle == open.handle);
            opens.push((id, with.map(|at| leases.swap_remove(at).0)));
        }
        ToReclaim { opens, lone_leases: leases }
    }

    pub(super) async fn reclaim_open(
        &self,
        session: &Arc<Session>,
        id: OpenId,
        lease: Option<LeaseId>,
    ) -> Result<Reclaimed, NotMade> {
        // Closed meanwhile: nothing to do.
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(Reclaimed::Done) };
        let kind = lease.and_then(|lease| self.state.lock().lease(lease).map(|held| held.kind));
        let claim = OpenClaim::Previous(delegation_type(kind));
        match self.open_again(session, &open, claim).await? {
            Ok((stateid, delegation)) => {
                if let Some(open) = self.state.lock().open_mut(id) {
                    open.stateid = Some(stateid);
                }
                if let Some(lease) = lease {
                    self.reclaimed(lease, &open.handle, &open.principal, &delegation);
                }
                self.reclaim_locks(session, id).await
            }
            Err(status) => {
                if let Some(lease) = lease {
                    self.revoked(lease, false);
                }
                if status == Wire::NoGrace && open.locks.values().all(|locks| locks.ranges.is_empty()) {
                    return Ok(Reclaimed::TooLate);
                }
                tracing::warn!("server {}: an open could not be reclaimed: {status}", self.server);
                self.state.lock().lose(id);
                Ok(Reclaimed::Done)
            }
        }
    }

    /// What became of a delegation.
    fn reclaimed(&self, lease: LeaseId, handle: &Handle, principal: &Principal, came: &OpenDelegation) {
        let (stateid, kind, recall) = match came {
            OpenDelegation::Read(read) | OpenDelegation::ReadAttrsDeleg(read) => {
                (read.stateid, LeaseKind::Read, read.recall)
            }
            OpenDelegation::Write(write) | OpenDelegation::WriteAttrsDeleg(write) => {
                (write.stateid, LeaseKind::Write, write.recall)
            }
            OpenDelegation::None | OpenDelegation::NoneExt(_) => return self.revoked(lease, false),
        };
        let same = {
            let mut state = self.state.lock();
            state.lease_mut(lease).is_some_and(|held| {
                let same = held.kind == kind;
                held.stateid = stateid;
                held.change = None;
                same
            })
        };
        if !same {
            // Another kind than was held, or not held any more: it is a new one, which nobody asked for.
            self.revoked(lease, false);
            self.delegated(handle, principal, came, Want::None);
        } else if recall {
            self.recall(lease);
        }
    }

    async fn reclaim_locks(&self, session: &Arc<Session>, id: OpenId) -> Result<Reclaimed, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(Reclaimed::Done) };
        if let Some(open) = self.state.lock().open_mut(id) {
            open.locks.clear();
        }
        for (owner, held) in &open.locks {
            for range in held.ranges.iter() {
                let Some(now) = self.state.lock().open(id).cloned() else { return Ok(Reclaimed::Done) };
                let Some(locker) = locker(&now, owner) else { return Ok(Reclaimed::Done) };
                let args = LockArgs {
                    locktype: lock_type(range.kind, false),
                    reclaim: true,
                    offset: range.start,
                    length: range.length(),
                    locker,
                };
                let operations =
                    vec![put(&open.handle).map_err(|_| NotMade::NoAnswer)?, op::Lock::with(args)];
                let mut results = self.within(session, &open.principal, Operation::Lock, operations).await?;
                let taken = results.take::<op::Putfh>().and_then(|()| results.take::<op::Lock>());
                match taken {
                    Ok(ok) => {
                        if let Some(open) = self.state.lock().open_mut(id) {
                            let locks = open.locks.entry(owner.clone());
                            let fresh = || Locks { stateid: ok.lock_stateid, ranges: held.ranges.clone() };
                            locks.or_insert_with(fresh).stateid = ok.lock_stateid;
                        }
                    }
                    Err(error) => {
                        again_or(&error)?;
                        tracing::warn!("server {}: a lock could not be reclaimed: {error}", self.server);
                        self.state.lock().lose(id);
                        return Ok(Reclaimed::Done);
                    }
                }
            }
        }
        Ok(Reclaimed::Done)
    }

    /// A delegation without an open is reclaimed by an open that is closed again.
    pub(super) async fn reclaim_lease(
        &self,
        session: &Arc<Session>,
        id: LeaseId,
        handle: Handle,
    ) -> Result<(), NotMade> {
        let Some(held) = self.state.lock().lease(id).cloned() else { return Ok(()) };
        let access = if held.kind == LeaseKind::Write { Share::READ | Share::WRITE } else { Share::READ };
        let shares = (access, Share::empty());
        let open = Open::new(handle, self.back.passing_owner(), shares, held.principal.clone());
        let claim = OpenClaim::Previous(delegation_type(Some(held.kind)));
        match self.open_again(session, &open, claim).await? {
            Ok((open_stateid, delegation)) => {
                self.reclaimed(id, &handle, &held.principal, &delegation);
                let close = op::Close::with(protocol::nfs4::CloseArgs { seqid: 0, open_stateid });
                let operations = vec![put(&handle).map_err(|_| NotMade::NoAnswer)?, close];
                self.within(session, &held.principal, Operation::Close, operations).await?;
            }
            Err(_) => self.revoked(id, false),
        }
        Ok(())
    }

    /// Opens anew what could not be reclaimed: others may have had the file meanwhile, but the share is had again.
    async fn reopen(&self, session: &Arc<Session>, id: OpenId) -> Result<bool, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(true) };
        match self.open_again(session, &open, OpenClaim::Fh).await? {
            Ok((stateid, _)) => {
                if let Some(open) = self.state.lock().open_mut(id) {
                    open.stateid = Some(stateid);
                    open.locks.clear();
                }
                Ok(true)
            }
            Err(status) => {
                tracing::warn!("server {}: an open was lost: {status}", self.server);
                self.state.lock().lose(id);
                Ok(false)
            }
        }
    }

    /// OPEN of a file by its handle. The inner failure is the origin's answer to it.
    pub(super) async fn open_again(
        &self,
        session: &Arc<Session>,
        open: &Open,
        claim: OpenClaim,
    ) -> Result<Result<(Stateid, OpenDelegation), Wire>, NotMade> {
        let want = match claim {
            OpenClaim::Fh => OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            // `serve` tells of space for delayed writes only where the delegation is asked for.
            OpenClaim::Previous(OpenDelegationType::Write) => OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG,
            _ => 0,
        };
        let args = open_args(&open.owner, (open.access, open.deny), want, Openflag::Nocreate, claim);
        let operations = vec![put(&open.handle).map_err(|_| NotMade::NoAnswer)?, op::Open::with(args)];
        let mut results = self.within(session, &open.principal, Operation::Open, operations).await?;
        match results.take::<op::Putfh>().and_then(|()| results.take::<op::Open>()) {
            Ok(ok) => Ok(Ok((ok.stateid, ok.delegation))),
            Err(error) => again_or(&error).map(Err),
        }
    }

    /// The origin says that it does not have a state that a request named.
    pub(super) async fn mend(&self, session: &Arc<Session>, used: &Used, said: Wire) -> Mended {
        let result = match used {
            Used::Nothing => return Mended::Lost,
            Used::Open(id) => self.mend_open(session, *id, said).await,
            Used::Lock(id, owner) => {
                let lock = |open: &Open| open.locks.get(owner).map(|locks| locks.stateid);
                let stateid = self.state.lock().open(*id).and_then(lock);
                match self.is_good(session, stateid, said).await {
                    Ok(false) => {
                        self.state.lock().lose(*id);
                        Ok(false)
                    }
                    other => other,
                }
            }
            Used::Lease(id) => self.mend_lease(session, *id, said).await.map(|()| true),
        };
        match result {
            Ok(true) => Mended::Again,
            Ok(false) => Mended::Lost,
            Err(_) => {
                // The session is what is wrong; the next try notices, too.
                Mended::Again
            }
        }
    }

    async fn mend_open(&self, session: &Arc<Session>, id: OpenId, said: Wire) -> Result<bool, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(false) };
        if self.is_good(session, open.stateid, said).await? {
            return Ok(true);
        }
        if open.locks.values().any(|locks| !locks.ranges.is_empty()) {
            self.state.lock().lose(id);
            return Ok(false);
        }
        self.reopen(session, id).await
    }

    async fn mend_lease(&self, session: &Arc<Session>, id: LeaseId, said: Wire) -> Result<(), NotMade> {
        let Some(stateid) = self.state.lock().lease(id).map(|held| held.stateid) else { return Ok(()) };
        if !self.is_good(session, Some(stateid), said).await? {
            self.revoked(id, false);
        }
        Ok(())
    }

    /// TEST_STATEID; one that was revoked is freed.
    async fn is_good(
        &self,
        session: &Arc<Session>,
        stateid: Option<Stateid>,
        said: Wire,
    ) -> Result<bool, NotMade> {
        let Some(stateid) = stateid.map(latest) else { return Ok(false) };
        let stateids = List::new(vec![stateid]).unwrap_or_default();
        let test = op::TestStateid::with(TestStateidArgs { stateids });
        let principal = &Principal::Machine;
        let mut results = self.within(session, principal, Operation::TestStateid, vec![test]).await?;
        let outcome = match results.take::<op::TestStateid>() {
            Ok(ok) => ok
                .status_codes
                .first()
                .map_or(Err(said), |code| code.into_result().map_err(|(status, ())| status)),
            Err(CompoundError::Failed { .. }) => Err(said),
            Err(CompoundError::Unexpected { .. }) => return Err(NotMade::NoAnswer),
        };
        let Err(status) = outcome else { return Ok(true) };
        if [status, said]
            .iter()
            .any(|it| matches!(it, Wire::Expired | Wire::AdminRevoked | Wire::DelegRevoked))
        {
            let free = op::FreeStateid::with(FreeStateidArgs { stateid });
            // It may be gone already.
            let _ = self.within(session, principal, Operation::FreeStateid, vec![free]).await?;
        }
        Ok(false)
    }

    /// Some state was revoked; which, is found out.
    pub(super) async fn sweep(&self, session: &Arc<Session>) {
        let leases: Vec<LeaseId> = self.state.lock().leases().map(|(id, _)| id).collect();
        for id in leases {
            if self.mend_lease(session, id, Wire::DelegRevoked).await.is_err() {
                return;
            }
        }
        let opens: Vec<OpenId> =
            self.state.lock().opens().filter(|(_, open)| open.stateid.is_some()).map(|(id, _)| id).collect();
        for id in opens {
            if self.mend_open(session, id, Wire::Expired).await.is_err() {
                return;
            }
        }
    }
}

/// What a recovery has to do.
pub(super) struct ToReclaim {
    pub(super) opens: Vec<(OpenId, Option<LeaseId>)>,
    pub(super) lone_leases: Vec<(LeaseId, Handle)>,
}

type Joined = Result<Result<(OpenId, Reclaimed), NotMade>, tokio::task::JoinError>;

/// The open, if it came too late.
fn too_late(joined: Joined) -> Result<Option<OpenId>, NotMade> {
    let (id, reclaimed) = joined.map_err(|_| NotMade::NoAnswer)??;
    Ok((reclaimed == Reclaimed::TooLate).then_some(id))
}

/// A failure that is the origin's answer; nonsense is none.
fn again_or(error: &CompoundError) -> Result<Wire, NotMade> {
    error.status().ok_or(NotMade::NoAnswer)
}

fn delegation_type(kind: Option<LeaseKind>) -> OpenDelegationType {
    match kind {
        None | Some(LeaseKind::Timeout) => OpenDelegationType::None,
        Some(LeaseKind::Read) => OpenDelegationType::Read,
        Some(LeaseKind::Write) => OpenDelegationType::Write,
    }
}
