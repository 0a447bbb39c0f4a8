//! Resuming the state of an earlier incarnation of this client (RFC 8881, sections 8.4.2 and 8.4.3).
//!
//! If the origin still has the client, TEST_STATEID says for each state whether the origin still has it.
//! Before that, the session of the last incarnation is destroyed, so that no late request of it is executed.
//! Afterwards, state that was being given up is given up. An open that an OPEN in flight may have brought is
//! closed. Ranges in doubt are set to what is recorded.
//!
//! If the origin does not have the client any more, it may have restarted. In its grace period it returns
//! what a client held when the origin went down, and refuses a client whose lease had ended. This client
//! reclaims only if the lease certainly lasted until now, by its own clock too. State that cannot be
//! reclaimed is not opened anew: no caller relies on it yet, and a caller that wants it can ask for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::nfs4::{
    CloseArgs, CompoundError, FreeStateidArgs, LockArgs, LockuArgs, NfsLockType,
    OPEN4_SHARE_ACCESS_WANT_NO_DELEG, Op, OpenClaim, Openflag, Operation, Stateid, Status as Wire,
    TestStateidArgs, op,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::Instant;
use vfs::locks::{LockRange, LockRanges};
use vfs::{
    Adopted, AdoptedLease, AdoptedOpen, Caller, Handle, LeaseId, LeaseKind, OpenId, Owner, Principal, Share,
};
use xdr::List;

use super::attributes::put;
use super::durable::record::Opening;
use super::durable::{self, Past};
use super::establish::NotMade;
use super::locks::{lock_type, locker};
use super::opens::open_args;
use super::recovery::Reclaimed;
use super::session::Session;
use super::state::{Delegation, Doubt, Open, latest};
use super::{Nfs4Client, convert};

/// State ids in one TEST_STATEID.
const TESTED_AT_ONCE: usize = 256;
/// Calls in flight at a time.
const AT_ONCE: usize = 16;
/// The pause between two attempts to destroy a session that is busy.
const BUSY: Duration = Duration::from_millis(50);
/// How long the session may be busy.
const BUSY_MAX: Duration = Duration::from_secs(20);
/// The record notes a renewal at most this many times in one lease time.
const RENEWALS: u32 = 8;

impl Nfs4Client {
    /// Takes over the state of the last incarnation, as far as the origin has it.
    pub(super) async fn resume(
        self: &Arc<Nfs4Client>,
        session: &Arc<Session>,
        past: &Past,
    ) -> Result<(), NotMade> {
        // A recall of state that is being taken over must wait until that is done.
        let _in_flight = self.back.opening();
        self.state.lock().skip_names(past.last_name);
        let client = self.client.lock().clone();
        let same_server = past.incarnation.server[..] == client.server[..]
            && past.incarnation.scope[..] == client.scope[..];
        if same_server && client.confirmed && client.id == past.incarnation.clientid {
            self.end_last_session(past.incarnation.session).await?;
            self.go_on(session, past).await?;
        } else if same_server && past.is_within_lease() {
            self.claim(session, past).await?;
        } else {
            tracing::warn!(
                "server {} no longer has what was held there: opens and locks are made anew",
                self.server
            );
            return Ok(());
        }
        self.strays.store(true, Ordering::Relaxed);
        let (opens, leases) = {
            let state = self.state.lock();
            (state.opens().count(), state.leases().count())
        };
        tracing::info!("server {}: went on with {opens} opens and {leases} delegations", self.server);
        Ok(())
    }

    /// Destroys the last incarnation's session. No request of it is executed afterwards.
    async fn end_last_session(&self, session: [u8; 16]) -> Result<(), NotMade> {
        let until = Instant::now() + BUSY_MAX;
        loop {
            match self.destroy_session(session, until).await {
                Ok(()) | Err(NotMade::Status(Wire::BadSession | Wire::DeadSession)) => return Ok(()),
                Err(NotMade::Status(Wire::Delay)) if Instant::now() < until => tokio::time::sleep(BUSY).await,
                Err(NotMade::Status(status)) => {
                    tracing::debug!("the last life's session could not be destroyed: {status}");
                    return Ok(());
                }
                Err(silent) => return Err(silent),
            }
        }
    }

    /// Resumes when the origin still has the client.
    async fn go_on(self: &Arc<Nfs4Client>, session: &Arc<Session>, past: &Past) -> Result<(), NotMade> {
        let good = self.test_all(session, past).await?;
        let is_good = |stateid: &Stateid| good.get(&stateid.other).copied().unwrap_or(false);
        let mut doubtful = Vec::new();
        {
            let mut state = self.state.lock();
            for (id, (open, going)) in &past.opens {
                if !open.stateid.as_ref().is_some_and(is_good) {
                    continue;
                }
                let mut open = open.clone();
                if !open.locks().is_empty() {
                    open.locking_mut().locks.retain(|_, locks| is_good(&locks.stateid));
                }
                if !open.doubts().is_empty() && !going {
                    doubtful.push(*id);
                }
                state.adopt_open(*id, open, *going);
            }
            for (id, (held, going)) in past.leases.iter().filter(|(_, (held, _))| is_good(&held.stateid)) {
                state.adopt_lease(*id, held.clone(), *going);
            }
        }
        for id in doubtful {
            self.settle_doubts(session, id).await?;
        }
        for opening in &past.openings {
            self.end_opening(session, opening).await?;
        }
        self.give_up_the_going(past);
        Ok(())
    }

    /// Gives up, in the background, what the last incarnation was giving up.
    fn give_up_the_going(self: &Arc<Nfs4Client>, past: &Past) {
        let (opens, leases) = {
            let state = self.state.lock();
            let going_open = |id: &OpenId| {
                state.any_open(*id).filter(|(_, going)| *going).map(|(open, _)| (*id, open.clone()))
            };
            let going_lease = |id: &LeaseId| {
                state.any_lease(*id).filter(|(_, going)| *going).map(|(held, _)| (*id, held.clone()))
            };
            let opens: Vec<_> = past.opens.keys().filter_map(going_open).collect();
            let leases: Vec<_> = past.leases.keys().filter_map(going_lease).collect();
            (opens, leases)
        };
        let inner = self.clone();
        tokio::spawn(async move {
            for (id, held) in leases {
                let _ = inner.delegreturn(&Caller::machine(), id, &held).await;
            }
            for (id, open) in opens {
                let _ = inner.close(&Caller::machine(), id, open).await;
            }
        });
    }

    /// Tests everything with TEST_STATEID, and returns which state ids the origin has. Revoked ones are
    /// freed.
    async fn test_all(
        self: &Arc<Nfs4Client>,
        session: &Arc<Session>,
        past: &Past,
    ) -> Result<HashMap<[u8; 12], bool>, NotMade> {
        let opens = past.opens.values().flat_map(|(open, _)| {
            open.stateid.into_iter().chain(open.locks().values().map(|locks| locks.stateid))
        });
        let leases = past.leases.values().map(|(held, _)| held.stateid);
        let all: Vec<Stateid> = opens.chain(leases).map(latest).collect();
        let (mut good, mut tests) = (HashMap::new(), JoinSet::new());
        for some in all.chunks(TESTED_AT_ONCE) {
            if tests.len() >= AT_ONCE
                && let Some(joined) = tests.join_next().await
            {
                good.extend(joined.map_err(|_| NotMade::NoAnswer)??);
            }
            let (inner, session, some) = (self.clone(), session.clone(), some.to_vec());
            tests.spawn(async move { inner.test_some(&session, some).await });
        }
        while let Some(joined) = tests.join_next().await {
            good.extend(joined.map_err(|_| NotMade::NoAnswer)??);
        }
        Ok(good)
    }

    async fn test_some(
        &self,
        session: &Arc<Session>,
        some: Vec<Stateid>,
    ) -> Result<Vec<([u8; 12], bool)>, NotMade> {
        let stateids = List::new(some.clone()).ok_or(NotMade::NoAnswer)?;
        let test = op::TestStateid::with(TestStateidArgs { stateids });
        let principal = &Principal::Machine;
        let mut results = self.within(session, principal, Operation::TestStateid, vec![test]).await?;
        let codes = match results.take::<op::TestStateid>() {
            Ok(ok) => ok.status_codes.into_vec(),
            // A server that cannot answer does not have the state.
            Err(CompoundError::Failed { .. }) => Vec::new(),
            Err(CompoundError::Unexpected { .. }) => return Err(NotMade::NoAnswer),
        };
        let mut codes = codes.into_iter().map(|code| code.into_result().map_err(|(status, ())| status));
        let mut said = Vec::with_capacity(some.len());
        for stateid in some {
            let result = codes.next().unwrap_or(Err(Wire::BadStateid));
            if let Err(Wire::Expired | Wire::AdminRevoked | Wire::DelegRevoked) = result {
                let free = op::FreeStateid::with(FreeStateidArgs { stateid });
                // The origin may have freed it already.
                let _ = self.within(session, principal, Operation::FreeStateid, vec![free]).await?;
            }
            said.push((stateid.other, result.is_ok()));
        }
        Ok(said)
    }

    /// Makes the origin's locks match the record where ranges are in doubt.
    async fn settle_doubts(&self, session: &Arc<Session>, id: OpenId) -> Result<(), NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(()) };
        for (owner, doubt) in open.doubts() {
            let ranges = open.locks().get(owner).map(|locks| locks.ranges.clone()).unwrap_or_default();
            let ranges = if open.locks().contains_key(owner) {
                self.settle_doubt(session, (id, owner), doubt, ranges).await?
            } else {
                self.end_first_lock(session, (&open, owner), doubt).await?;
                ranges
            };
            if let Some(open) = self.state.lock().open_mut(id) {
                let locking = open.locking_mut();
                locking.doubts.remove(owner);
                if let Some(locks) = locking.locks.get_mut(owner) {
                    locks.ranges = ranges;
                }
            }
        }
        Ok(())
    }

    /// Makes the locks of one owner match its recorded ranges, and returns those. Recorded ranges in doubt
    /// are locked again in the recorded mode; an owner that has a range locked in any mode may do that. The
    /// other ranges in doubt are unlocked.
    async fn settle_doubt(
        &self,
        session: &Arc<Session>,
        (id, owner): (OpenId, &Owner),
        doubt: &Doubt,
        mut ranges: LockRanges,
    ) -> Result<LockRanges, NotMade> {
        if doubt.unlocking {
            ranges.unlock(doubt.range.start, doubt.range.end);
        }
        let recorded: Vec<LockRange> = ranges.within(doubt.range).collect();
        for gap in ranges.gaps(doubt.range) {
            self.unlock_range(session, (id, owner), gap).await?;
        }
        for range in recorded {
            if !self.lock_range(session, (id, owner), range).await? {
                ranges.unlock(range.start, range.end);
            }
        }
        Ok(ranges)
    }

    async fn lock_range(
        &self,
        session: &Arc<Session>,
        (id, owner): (OpenId, &Owner),
        range: LockRange,
    ) -> Result<bool, NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(false) };
        let Some(locker) = locker(&open, owner) else { return Ok(false) };
        let args = LockArgs {
            locktype: lock_type(range.kind, false),
            reclaim: false,
            offset: range.start,
            length: range.length(),
            locker,
        };
        let operations = vec![put_handle(&open.handle())?, op::Lock::with(args)];
        let mut results = self.within(session, &open.principal, Operation::Lock, operations).await?;
        match results.take::<op::Putfh>().and_then(|()| results.take::<op::Lock>()) {
            Ok(ok) => {
                if let Some(locks) =
                    self.state.lock().open_mut(id).and_then(|open| open.locking_mut().locks.get_mut(owner))
                {
                    locks.stateid = ok.lock_stateid;
                }
                Ok(true)
            }
            Err(CompoundError::Failed { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn unlock_range(
        &self,
        session: &Arc<Session>,
        (id, owner): (OpenId, &Owner),
        range: LockRange,
    ) -> Result<(), NotMade> {
        let Some(open) = self.state.lock().open(id).cloned() else { return Ok(()) };
        let Some(locks) = open.locks().get(owner) else { return Ok(()) };
        let args = unlock(locks.stateid, range);
        let operations = vec![put_handle(&open.handle())?, op::Locku::with(args)];
        let mut results = self.within(session, &open.principal, Operation::Locku, operations).await?;
        if let Ok(ok) = results.take::<op::Putfh>().and_then(|()| results.take::<op::Locku>())
            && let Some(locks) =
                self.state.lock().open_mut(id).and_then(|open| open.locking_mut().locks.get_mut(owner))
        {
            locks.stateid = ok.lock_stateid;
        }
        Ok(())
    }

    /// Ends a first LOCK of an owner that was in flight. Sending it again yields the state id, if the owner
    /// has one; then everything is unlocked.
    async fn end_first_lock(
        &self,
        session: &Arc<Session>,
        (open, owner): (&Open, &Owner),
        doubt: &Doubt,
    ) -> Result<(), NotMade> {
        let Some(locker) = locker(open, owner) else { return Ok(()) };
        let args = LockArgs {
            locktype: lock_type(doubt.range.kind, false),
            reclaim: false,
            offset: doubt.range.start,
            length: doubt.range.length(),
            locker,
        };
        let operations = vec![put_handle(&open.handle())?, op::Lock::with(args)];
        let mut results = self.within(session, &open.principal, Operation::Lock, operations).await?;
        let taken = results.take::<op::Putfh>().and_then(|()| results.take::<op::Lock>());
        let Ok(ok) = taken else { return Ok(()) };
        let complete = LockRange { start: 0, end: u64::MAX, kind: doubt.range.kind };
        let free = op::FreeStateid::with(FreeStateidArgs { stateid: latest(ok.lock_stateid) });
        let operations =
            vec![put_handle(&open.handle())?, op::Locku::with(unlock(ok.lock_stateid, complete)), free];
        self.within(session, &open.principal, Operation::Locku, operations).await.map(drop)
    }

    /// Ends an OPEN that was in flight. Opening again yields the state id. Then the open is closed, unless it
    /// was held before.
    async fn end_opening(&self, session: &Arc<Session>, opening: &Opening) -> Result<(), NotMade> {
        let claim = match &opening.name {
            Some(name) => OpenClaim::Null(convert::component(name)),
            None => OpenClaim::Fh,
        };
        let shares = Share::READ.into();
        let args =
            open_args(&opening.owner, shares, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, Openflag::Nocreate, claim);
        let operations = vec![put_handle(&opening.handle)?, op::Open::with(args), op::Getfh::with(())];
        let mut results = self.within(session, &opening.principal, Operation::Open, operations).await?;
        let opened = results.take::<op::Putfh>().and_then(|()| results.take::<op::Open>());
        let Ok(opened) = opened else { return Ok(()) };
        let object = results.take::<op::Getfh>()?.object;
        let held = {
            let mut state = self.state.lock();
            let same =
                |open: &Open| open.stateid.is_some_and(|stateid| stateid.other == opened.stateid.other);
            let id = state.opens().find(|(_, open)| same(open)).map(|(id, _)| id);
            id.and_then(|id| state.open_mut(id)).map(|open| open.stateid = Some(opened.stateid)).is_some()
        };
        if held {
            return Ok(());
        }
        let Some(handle) = convert::from_wire(&object) else { return Ok(()) };
        let close = op::Close::with(CloseArgs { seqid: 0, open_stateid: opened.stateid });
        let operations = vec![put_handle(&handle)?, close];
        self.within(session, &opening.principal, Operation::Close, operations).await.map(drop)
    }

    /// Reclaims when the origin does not have the client and the lease has lasted. An origin that restarted
    /// returns what the client held.
    async fn claim(self: &Arc<Nfs4Client>, session: &Arc<Session>, past: &Past) -> Result<(), NotMade> {
        {
            let mut state = self.state.lock();
            for (id, (open, _)) in past.opens.iter().filter(|(_, (_, going))| !going) {
                let mut open = open.clone();
                for (owner, doubt) in open.take_doubts() {
                    if let (true, Some(locks)) = (doubt.unlocking, open.locking_mut().locks.get_mut(&owner)) {
                        locks.ranges.unlock(doubt.range.start, doubt.range.end);
                    }
                }
                state.adopt_open(*id, open, false);
            }
            // Delegations of directories cannot be reclaimed.
            let claimed = |(held, going): &&(Delegation, bool)| !going && !held.directory;
            for (id, (held, _)) in past.leases.iter().filter(|(_, lease)| claimed(lease)) {
                state.adopt_lease(*id, held.clone(), false);
            }
        }
        let plan = self.plan();
        let mut tasks = JoinSet::new();
        for (id, lease) in plan.opens {
            if tasks.len() >= AT_ONCE
                && let Some(joined) = tasks.join_next().await
            {
                self.drop_late(joined)?;
            }
            let (inner, session) = (self.clone(), session.clone());
            tasks.spawn(async move { (id, inner.reclaim_open(&session, id, lease).await) });
        }
        while let Some(joined) = tasks.join_next().await {
            self.drop_late(joined)?;
        }
        for (id, handle) in plan.lone_leases {
            self.reclaim_lease(session, id, handle).await?;
        }
        let mut state = self.state.lock();
        let lost: Vec<OpenId> =
            state.opens().filter(|(_, open)| open.stateid.is_none()).map(|(id, _)| id).collect();
        lost.into_iter().for_each(|id| drop(state.close(id)));
        Ok(())
    }

    /// Drops an open that was reclaimed too late. It is not opened anew here.
    fn drop_late(
        &self,
        joined: Result<(OpenId, Result<Reclaimed, NotMade>), tokio::task::JoinError>,
    ) -> Result<(), NotMade> {
        let (id, reclaimed) = joined.map_err(|_| NotMade::NoAnswer)?;
        if reclaimed? == Reclaimed::TooLate {
            self.state.lock().lose(id);
        }
        Ok(())
    }

    /// The state that was taken over, for the layer above.
    pub(super) fn adopted(&self) -> Adopted {
        let state = self.state.lock();
        let opens = state.opens().map(|(id, open)| AdoptedOpen {
            id,
            handle: open.handle(),
            shares: open.shares,
            had: open.had,
            principal: open.principal.clone(),
            locks: durable::locks_of(open),
        });
        let leases = state.leases().map(|(id, held)| AdoptedLease {
            id,
            handle: held.handle.handle(),
            kind: held.kind,
        });
        Adopted { opens: opens.collect(), leases: leases.collect() }
    }

    /// Returns a delegation that this client does not know.
    pub(super) fn return_stray(&self, handle: Handle, stateid: Stateid, permit: OwnedSemaphorePermit) {
        let Some(inner) = self.myself() else { return };
        let held = Delegation {
            handle: (&handle).into(),
            kind: LeaseKind::Read,
            directory: false,
            stateid,
            principal: Principal::Machine,
            recalled: true,
            change: None,
        };
        // No id of ours is zero.
        let id = LeaseId(0);
        tokio::spawn(async move {
            // A failure needs no action: the origin recalls the delegation again.
            let _ = inner.delegreturn(&Caller::machine(), id, &held).await;
            drop(permit);
        });
    }

    /// See [`crate::Origin::keep_record`].
    pub(super) fn keep_record(&self, path: &std::path::Path) -> std::io::Result<()> {
        let session = match &*self.phase.borrow() {
            super::Phase::Ready(session) => session.id,
            _ => [0; 16],
        };
        let incarnation = self.incarnation(session);
        self.state.keep(path, &incarnation, self.channel.mirror().cloned())
    }

    fn incarnation(&self, session: [u8; 16]) -> durable::record::Incarnation {
        let client = self.client.lock().clone();
        let last_name = self.state.lock().last_name();
        durable::incarnation(
            &self.url,
            &self.identity,
            &client,
            (session, self.export().lease_time, last_name),
        )
    }

    /// Records that the client has another session or client id.
    pub(super) fn note_incarnation(&self, session: &Session) {
        let incarnation = self.incarnation(session.id);
        self.state.change_incarnation(&incarnation);
    }

    /// Notes that a request sent at this time renewed the lease. Only some renewals are recorded.
    pub(super) fn note_renewal(&self, sent: Instant) {
        let due = self.export().lease_time / RENEWALS;
        {
            let mut told = self.told_renewed.lock();
            if told.is_some_and(|told| sent.saturating_duration_since(told) < due) {
                return;
            }
            *told = Some(sent);
        }
        if let Some(now) = durable::uptime() {
            // The record rounds it down to whole seconds.
            self.state.renewed(now.saturating_sub(sent.elapsed()));
        }
    }
}

fn put_handle(handle: &Handle) -> Result<protocol::nfs4::ArgOp, NotMade> {
    put(handle).map_err(|_| NotMade::NoAnswer)
}

fn unlock(stateid: Stateid, range: LockRange) -> LockuArgs {
    LockuArgs {
        locktype: NfsLockType::Write,
        seqid: 0,
        lock_stateid: latest(stateid),
        offset: range.start,
        length: range.length(),
    }
}
