//! One compound, from its arguments to its results: a session, a slot, a link, and again, as often as the origin wants
//! to be asked again.
//!
//! What may not happen twice is asked again only if it has not happened: the origin says so (DELAY before the operation
//! that the compound is for, or a refused SEQUENCE, if that is not DELAY), or gives the reply that it has kept for the
//! slot. Where it cannot say, because the session is gone, the answer is marked as one that may be the second: see
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

/// The first pause after DELAY or GRACE; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// So often a request is made again for a state that the origin did not have.
const MENDS_MAX: u32 = 4;

/// What a compound is for, and what may be done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    main: Operation,
    /// It may not happen twice.
    once: bool,
    work: Work,
    /// What it does at the origin must be known: it is waited for beyond the caller's deadline, and given up on a `soft`
    /// mount alone, where the origin may then keep what nobody here knows of until the lease ends.
    run_to_completion: bool,
    /// At least so many bytes come back. What the session does not keep for a resend need not be kept: a server refuses to
    /// carry out what it could not.
    reply_bytes: u32,
    /// If the origin says DELAY for so long, it is `Resource`.
    delays_max: Option<Duration>,
}

impl Plan {
    /// Doing it again does no harm.
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

    /// It may not happen twice.
    pub(super) fn changing(main: Operation) -> Plan {
        Plan { once: true, ..Plan::reading(main) }
    }

    /// It changes what we hold at the origin.
    pub(super) fn stateful(main: Operation) -> Plan {
        Plan { run_to_completion: true, ..Plan::changing(main) }
    }

    /// Its reply has so many bytes.
    pub(super) fn answered_with(self, reply_bytes: u32) -> Plan {
        Plan { reply_bytes, ..self }
    }

    /// It is told whoever asks if the origin says DELAY for longer than this.
    pub(super) fn told_of_delays(self, longer: Duration) -> Plan {
        Plan { delays_max: Some(longer), ..self }
    }

    /// Recalls wait for it.
    pub(super) fn urgent(self) -> Plan {
        Plan { work: Work::Recall, ..self }
    }
}

/// Results, behind those of SEQUENCE.
pub(super) struct Ran {
    pub(super) results: Results,
    /// The compound may have been carried out before the time that they tell of.
    pub(super) again: bool,
}

/// One try.
struct Request<'a> {
    principal: &'a Principal,
    main: Operation,
    operations: Vec<ArgOp>,
    cachethis: bool,
    work: Work,
    /// Until when whoever asks waits: for what the origin has not begun, however lasting.
    asked_until: Option<Instant>,
    /// Until when what the origin may have begun is waited for.
    deadline: Option<Instant>,
    /// When the patience of a `soft` mount ends, whatever it is.
    soft: Option<Instant>,
}

/// What comes of one try.
enum Tried {
    /// Results, behind those of SEQUENCE.
    Answered(CompoundRes),
    /// It was carried out, and the origin does not tell with what result.
    Untold,
    /// The origin will never take it.
    Never(Wire),
    /// There is no such session any more. If it was sent more than once, it may have been carried out.
    NoSession(bool),
}

impl Nfs4Client {
    /// Makes a compound of what `build` says, which is asked anew for each try: states have other names after a
    /// recovery.
    pub(super) async fn run<B>(&self, caller: &Caller, plan: Plan, build: B) -> Result<Ran>
    where
        B: Fn(&State) -> Result<(Vec<ArgOp>, Used)> + Send + Sync,
    {
        let started = Instant::now();
        let soft = self.channel.soft().map(|soft| started + soft);
        let mut again = caller.resent;
        let mut pause = PAUSE_MIN;
        let (mut mends, mut lost) = (0, 0);
        let mut delayed = None;
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
                    let status = compound.status.err();
                    let happened = plan.once && happened(&compound, plan.main);
                    if status == Some(Wire::Moved) {
                        let (operations, _) = build(&self.state.lock())?;
                        self.tell_moved(&session, operations, compound.resarray.len());
                    }
                    match status {
                        Some(Wire::Delay) if !happened => {
                            let since = *delayed.get_or_insert_with(Instant::now);
                            if !again && plan.delays_max.is_some_and(|max| since.elapsed() >= max) {
                                return Err(Status::Resource.into());
                            }
                        }
                        Some(Wire::Grace) if !happened => {}
                        // Behind a SEQUENCE that succeeds: it was carried out, and the reply was not to be kept.
                        Some(Wire::RetryUncachedRep) => {
                            again |= plan.once;
                            self.may_have_strays(&plan);
                        }
                        Some(lost)
                            if convert::lost_state(lost)
                                && !happened
                                && used != Used::Nothing
                                && mends < MENDS_MAX =>
                        {
                            mends += 1;
                            match self.mend(&session, &used, lost).await {
                                Mended::Again => continue,
                                Mended::Lost => return Err(Status::BadStateId.into()),
                            }
                        }
                        _ => {
                            // That it was sent more than once does not matter: the slot has answered it once.
                            return Ok(Ran { results: compound.into_results(), again });
                        }
                    }
                }
                Tried::Never(status) => return Err(convert::status(status).into()),
                Tried::Untold => {
                    again |= plan.once;
                    self.may_have_strays(&plan);
                    lost += 1;
                }
                Tried::NoSession(maybe) => {
                    again |= maybe && plan.once;
                    if maybe {
                        self.may_have_strays(&plan);
                    }
                    self.session_lost(&session);
                    lost += 1;
                }
            }
            // Once at once. An origin that gives sessions and refuses each is not asked as fast as it answers.
            if lost == 1 {
                lost += 1;
                continue;
            }
            rest(pause, caller.deadline, soft).await?;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// It may have been carried out, and nobody will hear what it gave: a delegation that we do not know of goes back when
    /// it is recalled.
    fn may_have_strays(&self, plan: &Plan) {
        if plan.run_to_completion {
            self.strays.store(true, Ordering::Relaxed);
        }
    }

    /// One compound in this session and no other, for recovery and upkeep: for ever, but for the end of the session.
    pub(super) async fn within(
        &self,
        session: &Arc<Session>,
        principal: &Principal,
        main: Operation,
        operations: Vec<ArgOp>,
    ) -> Result<Results, NotMade> {
        let mut pause = PAUSE_MIN;
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
            match self.attempt(session, request).await.map_err(|_| NotMade::NoAnswer)? {
                Tried::Answered(compound) => {
                    // GRACE is no answer to wait for here: who reclaims does so within it.
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

    /// The session, as soon as there is one.
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

    /// One request, in one slot, until the origin says what comes of it. Told to come again, or on another connection, it
    /// keeps the slot, and sends the same under the same sequence id: the origin says DELAY of what it is still carrying out
    /// when that is sent again (RFC 8881, section 2.10.6.2), and whoever had the slot next would be given its results.
    async fn attempt(&self, session: &Arc<Session>, request: Request<'_>) -> Result<Tried> {
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
        let link = self.channel.turn();
        let (principal, main, deadline) = (request.principal, request.main, request.deadline);
        let mut retransmitted = false;
        let mut pause = PAUSE_MIN;
        loop {
            let sending = Sending { principal, args: &args, main, link: Some(link), deadline };
            let sent = Instant::now();
            // Given up, here or in a pause, the slot is in doubt: that is what dropping it means.
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

    /// What SEQUENCE says, and the results behind it.
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

    /// The origin took the request.
    fn answered(&self, slot: Slot, sent: Instant, ok: &SequenceOk, compound: CompoundRes) -> Result<Tried> {
        if !slot.answers(ok) {
            slot.spent();
            return Err(self.channel.nonsense.heard("SEQUENCE", "the answer of another slot"));
        }
        slot.taken(ok);
        self.renewed(sent, ok.status_flags);
        Ok(Tried::Answered(compound))
    }

    /// What a failure of SEQUENCE means (RFC 8881, section 18.46.3).
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
            // The server and we do not agree about the slots: only a new session helps.
            _ => {
                slot.refused();
                tracing::warn!("server {} refuses SEQUENCE: {status}; making a new session", self.server);
                Tried::NoSession(true)
            }
        }
    }

    /// Finds out, slot by slot, what the server has seen of requests that were given up.
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

    /// The failure of a result that could not be taken.
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

    /// When a request left whose SEQUENCE the server took: the lease runs from then. And what it said with it.
    fn renewed(&self, sent: Instant, flags: u32) {
        {
            let mut renewed = self.renewed.lock();
            *renewed = (*renewed).max(sent);
        }
        self.note_renewal(sent);
        // What it says now, whatever it said before: requests that overtake each other are set right by the next.
        if self.flags.swap(flags, Ordering::Relaxed) != flags || flags != 0 {
            self.upkeep.notify_one();
        }
    }
}

/// Was the operation carried out that the compound is for?
fn happened(compound: &CompoundRes, main: Operation) -> bool {
    compound.resarray.iter().any(|result| result.operation() == main && result.status().is_ok())
}

/// Pauses, but not beyond what is left of the time.
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

/// Time is over: the caller's, or that of a `soft` mount.
fn late(deadline: Option<Instant>) -> Error {
    let by_deadline = deadline.is_some_and(|deadline| deadline <= Instant::now());
    if by_deadline { Status::Delay.into() } else { Status::Io.into() }
}

/// The status of a failure, whatever comes with it.
pub(super) fn status_of<F: Failure>(failure: &F) -> Status {
    convert::status(failure.status())
}
