//! Recovery (RFC 8881, section 8.4): a new session or client id, reclaiming state, and repairing single
//! states.
//!
//! Only one recovery runs at a time. Calls wait for it, and then continue with the new state ids. State that
//! cannot be recovered is lost for good: a delegation is revoked, and an open has no state id from then on.
//! If any lock of an open cannot be reclaimed, the open is lost completely, because its user believes to hold
//! all its locks.

use std::collections::HashSet;
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
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Number of opens reclaimed at once.
const AT_ONCE: usize = 16;

/// The result of repairing a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mended {
    /// The request can be retried.
    Again,
    /// The state is lost.
    Lost,
}

/// The result of reclaiming an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaimed {
    Done,
    /// The origin does not accept reclaims, or not any more.
    TooLate,
}

impl Nfs4Client {
    /// Handles the loss of a session. The first caller starts the recovery.
    pub(super) fn session_lost(&self, lost: &Arc<Session>) {
        self.start_recovery(lost, false);
    }

    /// Handles a restart of the server that kept the session but not the state.
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

    /// Makes one attempt. The next one continues with what this one achieved.
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

    /// Makes a session of the current client id, or of a new one. With a new one, everything must be
    /// reclaimed.
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
        // A server that still has the client also has its state.
        *reclaim |= !(fresh.confirmed && fresh.id == client.id);
        *self.client.lock() = super::establish::Client { sequence, ..fresh };
        self.note_incarnation(&session);
        Ok(Arc::new(session))
    }

    /// Reclaims opens with their delegations and locks, then delegations without an open. Then it says
    /// RECLAIM_COMPLETE, and opens anew what came too late.
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

    /// What to reclaim: every open, and with the first open of a file the delegation of that file.
    pub(super) fn plan(&self) -> ToReclaim {
        let state = self.state.lock();
        let mut taken = HashSet::new();
        let mut opens = Vec::new();
        for (id, open) in state.opens().filter(|(_, open)| open.stateid.is_some()) {
            let with = state.lease_of(&open.handle()).map(|(lease, _)| lease);
            opens.push((id, with.filter(|lease| taken.insert(*lease))));
        }
        let lone = state.leases().filter(|(id, _)| !taken.contains(id));
        let lone_leases = lone.map(|(id, held)| (id, held.handle.handle())).collect();
        ToReclaim { opens, lone_leases }
    }

    pub(super) async fn reclaim_open(
        &self,
        session: &Arc<Session>,
        id: OpenId,
        lease: Option<LeaseId>,
    ) -> Result<Reclaimed, NotMade> {
        // If it was closed meanwhile, there is nothing to do.
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(Reclaimed::Done) };
        let kind = lease.and_then(|lease| self.state.lock().lease(lease).map(|held| held.kind));
        let claim = OpenClaim::Previous(delegation_type(kind));
        match self.open_again(session, &open, claim).await? {
            Ok((stateid, delegation)) => {
                if let Some(open) = self.state.lock().open_mut(id) {
                    open.stateid = Some(stateid);
                }
                if let Some(lease) = lease {
                    self.reclaimed(lease, &open.handle(), &open.principal, &delegation);
                }
                self.reclaim_locks(session, id).await
            }
            Err(status) => {
                if let Some(lease) = lease {
                    self.revoked(lease, false);
                }
                if status == Wire::NoGrace && open.locks().values().all(|locks| locks.ranges.is_empty()) {
                    return Ok(Reclaimed::TooLate);
                }
                tracing::warn!("server {}: an open could not be reclaimed: {status}", self.server);
                self.state.lock().lose(id);
                Ok(Reclaimed::Done)
            }
        }
    }

    /// Enters the delegation that a reclaim brought.
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
            // Its kind has changed, or it is not held any more. So it is a new delegation, which no caller
            // asked for.
            self.revoked(lease, false);
            self.delegated(handle, principal, came, Want::None);
        } else if recall {
            self.recall(lease);
        }
    }

    async fn reclaim_locks(&self, session: &Arc<Session>, id: OpenId) -> Result<Reclaimed, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(Reclaimed::Done) };
        if open.locks().is_empty() {
            return Ok(Reclaimed::Done);
        }
        if let Some(open) = self.state.lock().open_mut(id) {
            open.forget_locks();
        }
        for (owner, held) in open.locks() {
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
                    vec![put(&open.handle()).map_err(|_| NotMade::NoAnswer)?, op::Lock::with(args)];
                let mut results = self.within(session, &open.principal, Operation::Lock, operations).await?;
                let taken = results.take::<op::Putfh>().and_then(|()| results.take::<op::Lock>());
                match taken {
                    Ok(ok) => {
                        if let Some(open) = self.state.lock().open_mut(id) {
                            let locks = open.locking_mut().locks.entry(owner.clone());
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

    /// Reclaims a delegation without an open: opens the file and closes it again.
    pub(super) async fn reclaim_lease(
        &self,
        session: &Arc<Session>,
        id: LeaseId,
        handle: Handle,
    ) -> Result<(), NotMade> {
        let Some(held) = self.state.lock().lease(id).cloned() else { return Ok(()) };
        let access = if held.kind == LeaseKind::Write { Share::READ | Share::WRITE } else { Share::READ };
        let open = Open::new(&handle, self.back.passing_owner(), access.into(), held.principal.clone());
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

    /// Opens anew what could not be reclaimed. Other clients may have had the file meanwhile, but the share
    /// is held again.
    async fn reopen(&self, session: &Arc<Session>, id: OpenId) -> Result<bool, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(true) };
        match self.open_again(session, &open, OpenClaim::Fh).await? {
            Ok((stateid, _)) => {
                if let Some(open) = self.state.lock().open_mut(id) {
                    open.stateid = Some(stateid);
                    open.forget_locks();
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

    /// Opens a file by its handle. The inner error is the origin's answer to OPEN.
    pub(super) async fn open_again(
        &self,
        session: &Arc<Session>,
        open: &Open,
        claim: OpenClaim,
    ) -> Result<Result<(Stateid, OpenDelegation), Wire>, NotMade> {
        let want = match claim {
            OpenClaim::Fh => OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            // `leasehold serve` grants space for delayed writes only with a delegation that was asked for.
            OpenClaim::Previous(OpenDelegationType::Write) => OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG,
            _ => 0,
        };
        let args = open_args(&open.owner, open.shares, want, Openflag::Nocreate, claim);
        let operations = vec![put(&open.handle()).map_err(|_| NotMade::NoAnswer)?, op::Open::with(args)];
        let mut results = self.within(session, &open.principal, Operation::Open, operations).await?;
        match results.take::<op::Putfh>().and_then(|()| results.take::<op::Open>()) {
            Ok(ok) => Ok(Ok((ok.stateid, ok.delegation))),
            Err(error) => again_or(&error).map(Err),
        }
    }

    /// Repairs a state that the origin said it does not have.
    pub(super) async fn mend(&self, session: &Arc<Session>, used: &Used, said: Wire) -> Mended {
        let result = match used {
            Used::Nothing => return Mended::Lost,
            Used::Open(id) => self.mend_open(session, *id, said).await,
            Used::Lock(id, owner) => {
                let lock = |open: &Open| open.locks().get(owner).map(|locks| locks.stateid);
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
                // The session has failed; the next attempt notices that too.
                Mended::Again
            }
        }
    }

    async fn mend_open(&self, session: &Arc<Session>, id: OpenId, said: Wire) -> Result<bool, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(false) };
        if self.is_good(session, open.stateid, said).await? {
            return Ok(true);
        }
        if open.locks().values().any(|locks| !locks.ranges.is_empty()) {
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

    /// Tests a state id with TEST_STATEID, and frees it if it was revoked.
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
            // The origin may have freed it already.
            let _ = self.within(session, principal, Operation::FreeStateid, vec![free]).await?;
        }
        Ok(false)
    }

    /// Finds out which state was revoked.
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

/// The work of a recovery.
pub(super) struct ToReclaim {
    pub(super) opens: Vec<(OpenId, Option<LeaseId>)>,
    pub(super) lone_leases: Vec<(LeaseId, Handle)>,
}

type Joined = Result<Result<(OpenId, Reclaimed), NotMade>, tokio::task::JoinError>;

/// The open, if its reclaim came too late.
fn too_late(joined: Joined) -> Result<Option<OpenId>, NotMade> {
    let (id, reclaimed) = joined.map_err(|_| NotMade::NoAnswer)??;
    Ok((reclaimed == Reclaimed::TooLate).then_some(id))
}

/// The origin's status, or an error if the answer is nonsense.
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
