//! One compound, from its arguments to its results. It gets a session, a slot and a link, and is retried as
//! often as the origin asks for it.
//!
//! A non-idempotent compound is retried only if it was not executed, or if the origin returns the reply that
//! it kept for the slot. The origin says that it did not execute the compound in two ways: with DELAY before
//! the compound's main operation, or by refusing SEQUENCE with any status but DELAY. If the session is gone,
//! the origin cannot tell. Then the result is marked as possibly that of a second execution: see
//! `vfs::replay`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::nfs4::{
    ArgOp, CompoundArgs, CompoundError, CompoundRes, Failure, Op, Operation, ResOp, Results, SequenceOk,
    Status as Wire, op,
};
use tokio::time::{Instant, sleep_until, timeout_at};
use vfs::{Caller, Error, Principal, Result, Status};

use super::channel::Sending;
use super::convert;
use super::establish::NotMade;
use super::recovery::Mended;
use super::session::slots::Work;
use super::session::{Session, Slot};
use super::state::{State, Used};
use super::{Nfs4Client, Phase};

/// The first pause after DELAY or GRACE. Each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The least number of DELAYs that mean a lack of capacity: two of them may be seconds apart because the
/// network was slow.
const DELAYS_MIN: u32 = 5;
/// How often a request is retried because the origin did not have the state it named.
const MENDS_MAX: u32 = 4;

/// The purpose of a compound, and how it may be retried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    main: Operation,
    /// It must not be executed twice.
    once: bool,
    work: Work,
    /// The client must learn what the compound did at the origin. So the request continues beyond the
    /// caller's deadline, and only a `soft` mount gives it up. In that case the origin may keep state that
    /// this client does not know of, until the lease ends.
    run_to_completion: bool,
    /// The least size of the reply, in bytes. If the session's reply cache does not take that much, the
    /// request does not ask to cache the reply. A server refuses to execute a request whose reply it cannot
    /// cache.
    reply_bytes: u32,
    /// If the origin says DELAY for this long, and [`DELAYS_MIN`] times, the request fails with `Resource`.
    delays_max: Option<Duration>,
}

impl Plan {
    /// A plan for an idempotent compound.
    pub(super) fn reading(main: Operation) -> Plan {
        Plan {
            main,
            once: false,
            work: Work::Ordinary,
            run_to_completion: false,
            reply_bytes: 0,
            delays_max: None,
        }
    }

    /// A plan for a compound that must not be executed twice.
    pub(super) fn changing(main: Operation) -> Plan {
        Plan { once: true, ..Plan::reading(main) }
    }

    /// A plan for a compound that changes our state at the origin.
    pub(super) fn stateful(main: Operation) -> Plan {
        Plan { run_to_completion: true, ..Plan::changing(main) }
    }

    /// The reply has at least this many bytes.
    pub(super) fn answered_with(self, reply_bytes: u32) -> Plan {
        Plan { reply_bytes, ..self }
    }

    /// If the origin says DELAY for longer than this, the request fails with `Resource`.
    pub(super) fn told_of_delays(self, longer: Duration) -> Plan {
        Plan { delays_max: Some(longer), ..self }
    }

    /// Recalls wait for this request, so it may use the reserved slots.
    pub(super) fn urgent(self) -> Plan {
        Plan { work: Work::Recall, ..self }
    }
}

/// The results after that of SEQUENCE.
pub(super) struct Ran {
    pub(super) results: Results,
    /// The compound may have been executed before the execution that these results describe.
    pub(super) again: bool,
}

/// One attempt.
struct Request<'a> {
    principal: &'a Principal,
    main: Operation,
    operations: Vec<ArgOp>,
    cachethis: bool,
    work: Work,
    /// The caller's deadline. It holds for work that the origin has not begun, even if the plan runs to
    /// completion.
    asked_until: Option<Instant>,
    /// The deadline for work that the origin may have begun.
    deadline: Option<Instant>,
    /// When the patience of a `soft` mount ends, for any work.
    soft: Option<Instant>,
}

/// The result of one attempt.
enum Tried {
    /// The results after that of SEQUENCE.
    Answered(CompoundRes),
    /// The origin executed the request, and does not say with what result.
    Untold,
    /// The origin will never take it.
    Never(Wire),
    /// The session does not exist any more. True if the request may have been executed.
    NoSession(bool),
}

/// The failures of earlier attempts of one request.
struct Met {
    /// The request may have been executed before.
    again: bool,
    /// How often the origin did not have the state that the request named.
    mends: u32,
    /// How often the result was lost.
    lost: u32,
    /// When the origin first said DELAY, and how often it has.
    delayed: Option<(Instant, u32)>,
}

/// What follows from an answer.
enum Next {
    /// It has the results of the request.
    Done,
    /// The request is sent again without a pause.
    AtOnce,
    /// The request is sent again after a pause.
    Later,
}

impl Nfs4Client {
    /// Runs the compound that `build` returns. Each attempt calls `build` again, because a recovery changes
    /// state ids.
    pub(super) async fn run<B>(&self, caller: &Caller, plan: Plan, build: B) -> Result<Ran>
    where
        B: Fn(&State) -> Result<(Vec<ArgOp>, Used)> + Send + Sync,
    {
        let started = Instant::now();
        let soft = self.channel.soft().map(|soft| started + soft);
        let mut met = Met { again: caller.resent, mends: 0, lost: 0, delayed: None };
        let mut pause = PAUSE_MIN;
        loop {
            let session = self.session(caller.deadline, soft).await?;
            let (operations, used) = build(&self.state.lock())?;
            let request = Request {
                principal: &caller.principal,
                main: plan.main,
                operations,
                cachethis: plan.once && plan.reply_bytes <= session.fore.maxresponsesize_cached,
                work: plan.work,
                asked_until: caller.deadline,
                deadline: caller.deadline.filter(|_| !plan.run_to_completion),
                soft,
            };
            match self.attempt(&session, request).await? {
                Tried::Answered(compound) => {
                    if compound.status.err() == Some(Wire::Moved) {
                        let (operations, _) = build(&self.state.lock())?;
                        if self.is_followed(&session, operations, compound.resarray.len()).await {
                            return Err(Status::Delay.into());
                        }
                    }
                    match self.judge(&session, &plan, &used, &compound, &mut met).await? {
                        // Even if the request was sent more than once, the slot executed it only once.
                        Next::Done => return Ok(Ran { results: compound.into_results(), again: met.again }),
                        Next::AtOnce => continue,
                        Next::Later => {}
                    }
                }
                Tried::Never(status) => return Err(convert::status(status).into()),
                Tried::Untold => {
                    met.again |= plan.once;
                    self.may_have_strays(&plan);
                    met.lost += 1;
                }
                Tried::NoSession(maybe) => {
                    met.again |= maybe && plan.once;
                    if maybe {
                        self.may_have_strays(&plan);
                    }
                    self.session_lost(&session);
                    met.lost += 1;
                }
            }
            // Retry the first time without a pause. Pause after that: an origin may grant sessions and refuse
            // each of them at once.
            if met.lost == 1 {
                met.lost += 1;
                continue;
            }
            rest(pause, caller.deadline, soft).await?;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Decides what an answer means for the request: its results, or another attempt.
    async fn judge(
        &self,
        session: &Arc<Session>,
        plan: &Plan,
        used: &Used,
        compound: &CompoundRes,
        met: &mut Met,
    ) -> Result<Next> {
        let Err(status) = compound.status else { return Ok(Next::Done) };
        // After a successful SEQUENCE, this status says: the request was executed, and its reply was not
        // kept.
        if status == Wire::RetryUncachedRep {
            met.again |= plan.once;
            self.may_have_strays(plan);
            return Ok(Next::Later);
        }
        if plan.once && happened(compound, plan.main) {
            return Ok(Next::Done);
        }
        match status {
            Wire::Delay => {
                let (since, times) = met.delayed.get_or_insert_with(|| (Instant::now(), 0));
                *times += 1;
                let is_long = |max| since.elapsed() >= max && *times >= DELAYS_MIN;
                if !met.again && plan.delays_max.is_some_and(is_long) {
                    return Err(Status::Resource.into());
                }
                Ok(Next::Later)
            }
            Wire::Grace => Ok(Next::Later),
            lost if convert::lost_state(lost) && *used != Used::Nothing && met.mends < MENDS_MAX => {
                met.mends += 1;
                match self.mend(session, used, lost).await {
                    Mended::Again => Ok(Next::AtOnce),
                    Mended::Lost => Err(Status::BadStateId.into()),
                }
            }
            _ => Ok(Next::Done),
        }
    }

    /// Notes that a request may have been executed without this client learning the result. If it brought a
    /// delegation that we do not know of, that delegation is returned when the origin recalls it.
    fn may_have_strays(&self, plan: &Plan) {
        if plan.run_to_completion {
            self.strays.store(true, Ordering::Relaxed);
        }
    }

    /// Runs one compound in this session only, for recovery and upkeep. It has no deadline, but ends with the
    /// session or with the patience of a `soft` mount.
    pub(super) async fn within(
        &self,
        session: &Arc<Session>,
        principal: &Principal,
        main: Operation,
        operations: Vec<ArgOp>,
    ) -> Result<Results, NotMade> {
        let mut pause = PAUSE_MIN;
        let mut principal = principal;
        loop {
            let request = Request {
                principal,
                main,
                operations: operations.clone(),
                cachethis: true,
                work: Work::Recall,
                asked_until: None,
                deadline: None,
                soft: None,
            };
            let tried = match self.attempt(session, request).await {
                // The state is the client's. For a user whose ticket has ended, the machine tries.
                Err(error) if error.status == Status::NoTicket && *principal != Principal::Machine => {
                    principal = &Principal::Machine;
                    continue;
                }
                tried => tried.map_err(|_| NotMade::NoAnswer)?,
            };
            match tried {
                Tried::Answered(compound) => {
                    // Do not wait for the end of GRACE: a client reclaims during the grace period.
                    if compound.status != Err(Wire::Delay) || happened(&compound, main) {
                        return Ok(compound.into_results());
                    }
                }
                Tried::Untold => {}
                Tried::Never(status) => return Err(NotMade::Status(status)),
                Tried::NoSession(_) => return Err(NotMade::Status(Wire::BadSession)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The slots of the session, if there is one now.
    pub(super) fn slots_max(&self) -> Option<u32> {
        match &*self.phase.borrow() {
            Phase::Ready(session) => Some(session.slots_max()),
            _ => None,
        }
    }

    /// Waits for a session.
    async fn session(&self, deadline: Option<Instant>, soft: Option<Instant>) -> Result<Arc<Session>> {
        if let Phase::Ready(session) = &*self.phase.borrow() {
            return Ok(session.clone());
        }
        let mut phase = self.phase.subscribe();
        let ready = phase.wait_for(|phase| !matches!(phase, Phase::Recovering));
        let waited = match [deadline, soft].into_iter().flatten().min() {
            Some(limit) => timeout_at(limit, ready).await.map_err(|_| late(deadline))?,
            None => ready.await,
        };
        match waited.as_deref() {
            Ok(Phase::Ready(session)) => Ok(session.clone()),
            _ => Err(Status::Io.into()),
        }
    }

    /// Sends one request in one slot until the origin gives a final answer. If the origin says DELAY or wants
    /// another connection, the request keeps its slot and is sent again under the same sequence id. The
    /// origin also says DELAY to a resent request that it is still executing (RFC 8881, section 2.10.6.2). If
    /// another request took over the slot, it would get the results of this one.
    async fn attempt(&self, session: &Arc<Session>, request: Request<'_>) -> Result<Tried> {
        let limit = [request.deadline, request.soft].into_iter().flatten().min();
        self.channel.ready(request.principal, &request.operations, limit).await?;
        let slot = session.acquire(request.work);
        let slot = match [request.asked_until, request.soft].into_iter().flatten().min() {
            Some(limit) => timeout_at(limit, slot).await.map_err(|_| late(request.asked_until))?,
            None => slot.await,
        };
        let mut all = Vec::with_capacity(request.operations.len() + 1);
        all.push(op::Sequence::with(slot.sequence(request.cachethis)));
        all.extend(request.operations);
        let Some(args) = CompoundArgs::new(self.minor, all) else {
            slot.refused();
            return Err(Status::ServerFault.into());
        };
        let link = self.channel.links().turn();
        let (principal, main, deadline) = (request.principal, request.main, request.deadline);
        let mut retransmitted = false;
        let mut pause = PAUSE_MIN;
        loop {
            let sending = Sending { principal, args: &args, main, link: Some(link), deadline };
            let sent = Instant::now();
            // If the request is given up here or in a pause, dropping the slot marks it as in doubt.
            let answer = self.channel.send(sending).await?;
            retransmitted |= answer.retransmitted;
            match self.sequenced(answer.compound, main)? {
                Ok((ok, compound)) => return self.answered(slot, sent, &ok, compound),
                Err(Wire::Delay) => {}
                Err(Wire::ConnNotBoundToSession) => match self.bind_connection(session, link).await {
                    Ok(()) => continue,
                    Err(NotMade::Status(status @ (Wire::BadSession | Wire::DeadSession))) => {
                        return Ok(self.sequence_failed(slot, status, retransmitted));
                    }
                    Err(_) => {}
                },
                Err(status) => return Ok(self.sequence_failed(slot, status, retransmitted)),
            }
            let until = if retransmitted { request.deadline } else { request.asked_until };
            rest(pause, until, request.soft).await?;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Splits a reply into the result of SEQUENCE and the results after it.
    fn sequenced(
        &self,
        mut compound: CompoundRes,
        main: Operation,
    ) -> Result<Result<(SequenceOk, CompoundRes), Wire>> {
        let mut results = std::mem::take(&mut compound.resarray).into_vec();
        let first = if results.is_empty() { None } else { Some(results.remove(0)) };
        match first {
            Some(ResOp::Sequence(Ok(ok))) => {
                compound.resarray = xdr::List::new(results).unwrap_or_default();
                Ok(Ok((ok, compound)))
            }
            Some(ResOp::Sequence(Err(status))) => Ok(Err(status)),
            other => {
                let received = other.map(|result| result.operation());
                let what = CompoundError::Unexpected { expected: Operation::Sequence, received };
                Err(self.channel.nonsense.heard(main.name(), what))
            }
        }
    }

    /// Handles a request that the origin accepted.
    fn answered(&self, slot: Slot, sent: Instant, ok: &SequenceOk, compound: CompoundRes) -> Result<Tried> {
        if !slot.answers(ok) {
            slot.spent();
            return Err(self.channel.nonsense.heard("SEQUENCE", "the answer of another slot"));
        }
        slot.taken(ok);
        self.renewed(sent, ok.status_flags);
        Ok(Tried::Answered(compound))
    }

    /// Handles a failure of SEQUENCE (RFC 8881, section 18.46.3).
    fn sequence_failed(&self, slot: Slot, status: Wire, retransmitted: bool) -> Tried {
        match status {
            Wire::RetryUncachedRep | Wire::SeqFalseRetry => {
                slot.spent();
                Tried::Untold
            }
            Wire::BadSession | Wire::DeadSession => {
                slot.refused();
                Tried::NoSession(retransmitted)
            }
            Wire::ReqTooBig
            | Wire::RepTooBig
            | Wire::RepTooBigToCache
            | Wire::TooManyOps
            | Wire::MinorVersMismatch
            | Wire::BadXdr => {
                slot.refused();
                tracing::warn!("server {} does not take a request: {status}", self.server);
                Tried::Never(status)
            }
            // The server and this client disagree about the slots. Only a new session helps.
            _ => {
                slot.refused();
                tracing::warn!("server {} refuses SEQUENCE: {status}; making a new session", self.server);
                Tried::NoSession(true)
            }
        }
    }

    /// Finds out, slot by slot, whether the server has seen the requests that were given up.
    pub(super) async fn probe_slots(&self, session: &Arc<Session>) {
        loop {
            let slot = session.in_doubt().await;
            let probe = op::Sequence::with(slot.sequence(false));
            let Some(args) = CompoundArgs::new(self.minor, vec![probe]) else { return };
            let (principal, main) = (&Principal::Machine, Operation::Sequence);
            let sending = Sending { principal, args: &args, main, link: None, deadline: None };
            match self
                .channel
                .send(sending)
                .await
                .map(|answer| answer.compound.into_results().take::<op::Sequence>())
            {
                Ok(Ok(_)) => slot.spent(),
                Ok(Err(error)) => match error.status() {
                    Some(Wire::SeqFalseRetry | Wire::RetryUncachedRep) => slot.spent(),
                    Some(Wire::Delay) => {
                        drop(slot);
                        tokio::time::sleep(PAUSE_MIN * 10).await;
                    }
                    _ => {
                        slot.refused();
                        return self.session_lost(session);
                    }
                },
                Err(_) => {
                    drop(slot);
                    tokio::time::sleep(PAUSE_MAX).await;
                }
            }
        }
    }

    /// Converts the failure of a result.
    pub(super) fn failed(&self, error: &CompoundError) -> Error {
        match error.status() {
            Some(status) => convert::status(status).into(),
            None => self.channel.nonsense.heard("COMPOUND", error),
        }
    }

    /// The error for an answer that makes no sense.
    pub(super) fn nonsense(&self, operation: Operation, what: impl std::fmt::Display) -> Error {
        self.channel.nonsense.heard(operation.name(), what)
    }

    /// The next result, or its failure.
    pub(super) fn take<O>(&self, results: &mut Results) -> Result<O::Ok>
    where
        O: Op<ResOp = ResOp>,
    {
        results.take::<O>().map_err(|error| self.failed(&error))
    }

    /// Notes when a request was sent whose SEQUENCE the server accepted, because the lease runs from then.
    /// Notes the flags of the reply too.
    fn renewed(&self, sent: Instant, flags: u32) {
        {
            let mut renewed = self.renewed.lock();
            *renewed = (*renewed).max(sent);
        }
        self.note_renewal(sent);
        // Keep the latest flags, whatever the earlier ones were. If replies overtake each other, the next one
        // corrects the flags.
        if self.flags.swap(flags, Ordering::Relaxed) != flags || flags != 0 {
            self.upkeep.notify_one();
        }
    }
}

/// Was the main operation of the compound executed?
fn happened(compound: &CompoundRes, main: Operation) -> bool {
    compound.resarray.iter().any(|result| result.operation() == main && result.status().is_ok())
}

/// Pauses, but not beyond the deadlines.
async fn rest(pause: Duration, deadline: Option<Instant>, soft: Option<Instant>) -> Result<()> {
    let until = Instant::now() + pause;
    match [deadline, soft].into_iter().flatten().min() {
        Some(limit) if limit <= until => {
            sleep_until(limit).await;
            Err(late(deadline))
        }
        _ => {
            sleep_until(until).await;
            Ok(())
        }
    }
}

/// The error for an expired deadline: the caller's, or that of a `soft` mount.
fn late(deadline: Option<Instant>) -> Error {
    let by_deadline = deadline.is_some_and(|deadline| deadline <= Instant::now());
    if by_deadline { Status::Delay.into() } else { Status::Io.into() }
}

/// The status of a failure, without the data that comes with it.
pub(super) fn status_of<F: Failure>(failure: &F) -> Status {
    convert::status(failure.status())
}
