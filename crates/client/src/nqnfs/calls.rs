//! Calls to the server, again while it says NQNFS_TRYLATER; and its one call to us, EVICTED.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use protocol::nqnfs::{
    self, GetleaseArgs, Granted, LeaseRequest, LeaseResult, Leased, Plain, Procedure, Promise, Reply, Stat,
    call,
};
use protocol::{Call, nqnfs::Cachetype};
use rpc::message::Refusal;
use rpc::service::Answering;
use rpc::{CallError, Credential, Outcome, Outgoing, Patience, Remember, Service};
use tokio::time::{Instant, sleep_until, timeout_at};
use vfs::{AccessMask, Callback, Caller, Handle, Lease, LeaseKind, Principal, Recall, Result, Status};
use xdr::{Decode, Decoder, Encode, Encoder};

use super::leases::{Effect, Grant, Leases, ReturnAll};
use super::{NqnfsClient, convert, plain};
use crate::transport::credential;

/// The first pause after an NQNFS_TRYLATER; each further one is twice as long.
const TRYLATER_MIN: Duration = Duration::from_millis(100);
/// The longest.
const TRYLATER_MAX: Duration = Duration::from_secs(2);
/// How long a renewal is waited for.
const RENEWAL: Duration = Duration::from_secs(4);
/// How long a VACATED is waited for before names are asked for without a lease.
const VACATING_MAX: Duration = Duration::from_secs(1);
/// How long the server is waited for at the end.
const FAREWELL: Duration = Duration::from_secs(2);
/// The term that is asked for, in seconds.
const TERM: u32 = nqnfs::TERM_DEFAULT;

/// What the server promises, if it is a lease.
fn grant(kind: LeaseKind, promise: Promise) -> Option<Grant> {
    let term = Duration::from_secs(promise.duration.into());
    promise.cachable.then_some(Grant { kind, term, change: promise.rev })
}

fn succeeded<T>(reply: Reply<T>) -> Result<Granted<T>> {
    match reply {
        Reply::Ok(granted) => Ok(granted),
        Reply::Fail(status, ()) => Err(convert::status(status).into()),
    }
}

impl NqnfsClient {
    /// Makes a call that may carry a lease, and gives its results.
    pub(super) async fn call<C, A, T>(&self, caller: &Caller, args: &Leased<A>) -> Result<Granted<T>>
    where
        C: Call<Args = Leased<A>, Results = Reply<T>>,
        A: Sync,
        T: Decode,
    {
        succeeded(self.ask::<C>(caller, args).await?)
    }

    /// The same, of one file: if the server says that the lease on it has ended (NQNFS_EXPIRED), it is believed no more, and the
    /// caller may come again without.
    pub(super) async fn call_of<C, A, T>(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        handle: &Handle,
        args: &Leased<A>,
    ) -> Result<Granted<T>>
    where
        C: Call<Args = Leased<A>, Results = Reply<T>>,
        A: Sync,
        T: Decode,
    {
        let reply = self.ask::<C>(caller, args).await?;
        if matches!(reply, Reply::Fail(Stat::Expired, ())) {
            self.with(|leases, _| leases.expired(handle));
        }
        succeeded(reply)
    }

    /// Makes a call until its answer is another than NQNFS_TRYLATER, or the caller's patience ends.
    pub(super) async fn ask<C: Call>(&self, caller: &Caller, args: &C::Args) -> Result<C::Results> {
        let mut pauses = Pauses::new();
        loop {
            let results = self.once::<C>(caller, args).await?;
            let status = results.clone().u32().map(Stat::from);
            if status != Ok(Stat::Trylater) {
                return C::Results::decode(&mut results.clone())
                    .map_err(|error| self.nonsense.heard(C::NAME, error));
            }
            pauses.pause(caller).await?;
        }
    }

    async fn once<C: Call>(&self, caller: &Caller, args: &C::Args) -> Result<Decoder> {
        let mut encoder = Encoder::with_capacity(160);
        args.encode(&mut encoder);
        let outgoing = Outgoing {
            program: C::PROGRAM,
            version: C::VERSION,
            procedure: C::NUMBER,
            credential: Credential::Sys(credential(&caller.principal, self.machine.clone())),
            arguments: encoder.finish(),
        };
        let started = Instant::now();
        // A second VACATED for one eviction, with another xid, could be carried out too late: one is sent until it is answered.
        let soft = self.soft.filter(|_| C::NUMBER != Procedure::Vacated as u32).map(|soft| started + soft);
        let until = [soft, caller.deadline].into_iter().flatten().min();
        let patience = until.map_or(Patience::Hard, Patience::Until);
        self.counting.called(C::NUMBER, outgoing.arguments.len());
        match self.pulse.follow(self.link.call(outgoing, patience)).await {
            Ok(answer) => {
                let bytes = answer.results.remaining();
                self.counting.answered(C::NUMBER, bytes, started.elapsed(), answer.retransmitted);
                Ok(answer.results)
            }
            Err(error) => {
                self.counting.failed(C::NUMBER);
                Err(match error {
                    CallError::TimedOut if until == caller.deadline => Status::Delay.into(),
                    CallError::Refused(Refusal::Auth(_)) => Status::Access.into(),
                    CallError::Refused(Refusal::ProcedureUnavailable) => Status::NotSupp.into(),
                    CallError::Refused(_) | CallError::Malformed(_) => self.nonsense.heard(C::NAME, error),
                    CallError::TimedOut | CallError::TooLarge(_) | CallError::Closed => Status::Io.into(),
                })
            }
        }
    }

    /// The layer above uses the file.
    pub(super) fn used(&self, handle: &Handle) {
        self.leases.lock().used(Instant::now(), handle);
    }

    /// Takes note of attributes.
    pub(super) fn learn(&self, handle: &Handle, fattr: &nqnfs::Fattr) -> vfs::Attributes {
        let attributes = convert::attributes(fattr);
        self.seen.lock().note(handle, &attributes);
        attributes
    }

    /// The file as it is at this `modifyrev`: as it was seen, or asked.
    pub(super) async fn attributes_at(
        &self,
        caller: &Caller,
        handle: &Handle,
        rev: Option<u64>,
    ) -> Result<vfs::Attributes> {
        if let Some(seen) = rev.and_then(|rev| self.seen.lock().at(handle, rev)) {
            return Ok(seen);
        }
        let args = plain(convert::to_wire(handle)?);
        let fattr = self.call::<call::Getattr, _, _>(caller, &args).await?.results;
        Ok(self.learn(handle, &fattr))
    }

    /// WRITE. What is not pushed under a lease for writing says so by asking for one, for the shortest term: a server that
    /// recovers then has it wait until nobody believes in leases of before.
    pub(super) async fn write_data(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        handle: &Handle,
        args: nqnfs::WriteArgs,
    ) -> Result<nqnfs::Fattr> {
        let writing = Writing::begin(self, handle);
        let lease = if writing.pushes { LeaseRequest::None } else { LeaseRequest::Write(1) };
        Ok(self.call_of::<call::Write, _, _>(caller, handle, &Leased { lease, args }).await?.results)
    }

    /// GETLEASE: the lease, if there is one, and the attributes, which were asked for under it.
    pub(super) async fn get_lease(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
    ) -> Result<(Option<Lease>, vfs::Attributes)> {
        let file = convert::to_wire(handle)?;
        let args = |asked: bool| {
            let rw = match kind {
                _ if !asked => Cachetype::None,
                LeaseKind::Write => Cachetype::Write,
                _ => Cachetype::Read,
            };
            GetleaseArgs { file, rw, duration: TERM }
        };
        let promise = |ok: &nqnfs::GetleaseOk| Some(ok.promise);
        let asking = self.ask_with_lease::<call::Getlease, _>(caller, handle, Some(kind), args, promise);
        let (lease, ok) = asking.await?;
        Ok((lease, self.learn(handle, &ok.attributes)))
    }

    /// ACCESS of all that is asked, with a request for a lease: the lease, and at which `modifyrev` it was given or refused, if
    /// it was asked for.
    ///
    /// # Errors
    /// `Access`: the caller has not all of it.
    pub(super) async fn access_with_lease(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        handle: &Handle,
        kind: Option<LeaseKind>,
        asked: AccessMask,
    ) -> Result<(Option<Lease>, Option<u64>)> {
        let rights = convert::rights(handle, asked)?;
        let args = |asked: bool| {
            let lease = match kind {
                Some(LeaseKind::Write) if asked => LeaseRequest::Write(TERM),
                Some(_) if asked => LeaseRequest::Read(TERM),
                _ => LeaseRequest::None,
            };
            Leased { lease, args: rights }
        };
        let promise = |granted: &Granted<()>| match granted.lease {
            LeaseResult::Read(promise) | LeaseResult::Write(promise) => Some(promise),
            LeaseResult::None => None,
        };
        let (lease, granted) =
            self.ask_with_lease::<call::Access, _>(caller, handle, kind, args, promise).await?;
        Ok((lease, promise(&granted).map(|promise| promise.rev)))
    }

    /// A call that may bring a lease, again while the server says NQNFS_TRYLATER. `args` are those with or without a request
    /// for one, `promise` finds it in the results. Each try counts from when it is sent: a lease that was long waited for is
    /// not over when it comes.
    async fn ask_with_lease<C, T>(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        handle: &Handle,
        kind: Option<LeaseKind>,
        args: impl Fn(bool) -> C::Args,
        promise: fn(&T) -> Option<Promise>,
    ) -> Result<(Option<Lease>, T)>
    where
        C: Call<Results = Plain<T>>,
        T: Decode,
    {
        let mut pauses = Pauses::new();
        loop {
            let asked = kind.and_then(|kind| Some((kind, self.with(|leases, now| leases.ask(now, handle))?)));
            let answer = self.once::<C>(caller, &args(asked.is_some())).await.and_then(|results| {
                C::Results::decode(&mut results.clone()).map_err(|error| self.nonsense.heard(C::NAME, error))
            });
            if let (Some((kind, asked)), Ok(Plain::Ok(ok))) = (asked, &answer) {
                let promise = promise(ok);
                let granted = promise.and_then(|promise| grant(kind, promise));
                let lease = self.with(|leases, now| leases.answered(now, handle, asked, granted));
                return answer.and_then(|answer| match answer {
                    Plain::Ok(ok) => Ok((lease, ok)),
                    Plain::Fail(status, ()) => Err(convert::status(status).into()),
                });
            }
            if asked.is_some() {
                self.with(|leases, now| leases.unanswered(now, handle));
            }
            match answer? {
                Plain::Ok(ok) => return Ok((None, ok)),
                Plain::Fail(Stat::Trylater, ()) => pauses.pause(caller).await?,
                Plain::Fail(Stat::Expired, ()) => {
                    self.with(|leases, _| leases.expired(handle));
                    return Err(Status::Delay.into());
                }
                Plain::Fail(status, ()) => return Err(convert::status(status).into()),
            }
        }
    }

    /// CREATE or MKDIR, with a request for a lease on what it makes. Gives what was made, and what the answer says of the
    /// lease.
    pub(super) async fn make_with_lease<C>(
        self: &Arc<NqnfsClient>,
        caller: &Caller,
        args: nqnfs::CreateArgs,
        kind: LeaseKind,
    ) -> Result<Made>
    where
        C: Call<Args = Leased<nqnfs::CreateArgs>, Results = Reply<nqnfs::DirOpOk>>,
    {
        let lease =
            if kind == LeaseKind::Write { LeaseRequest::Write(TERM) } else { LeaseRequest::Read(TERM) };
        let at = self.leases.lock().ask_unknown(Instant::now());
        let granted = self.call::<C, _, _>(caller, &Leased { lease, args }).await?;
        let handle = convert::from_wire(&granted.results.file)?;
        let attributes = self.learn(&handle, &granted.results.attributes);
        let (LeaseResult::Read(promise) | LeaseResult::Write(promise)) = granted.lease else {
            return Ok(Made { handle, attributes, new: None, lease: None });
        };
        let new = Some(promise.cachable || promise.duration > 0);
        let granted = grant(kind, promise);
        let lease = self.with(|leases, now| leases.answered_unknown(now, &handle, at, granted));
        Ok(Made { handle, attributes, new, lease })
    }

    /// The end: what was returned since [`Leases::leave`] is told of at once, if the server answers soon.
    pub(super) async fn return_all(self: &Arc<NqnfsClient>) {
        let Some(ReturnAll { all, each }) = self.leases.lock().return_all() else { return };
        let said = async {
            if all {
                let _ = self.once::<call::Vacated>(&Caller::machine(), &nqnfs::EVERYTHING).await;
                return;
            }
            for handle in each {
                self.clone().vacate(&handle).await;
            }
        };
        let _ = tokio::time::timeout(FAREWELL, said).await;
    }

    /// Does something with what is believed, and what follows from it.
    pub(super) fn with<T>(self: &Arc<NqnfsClient>, event: impl FnOnce(&mut Leases, Instant) -> T) -> T {
        let mut leases = self.leases.lock();
        let before = leases.next_tick();
        let result = event(&mut leases, Instant::now());
        let effects = leases.effects();
        if leases.next_tick() != before {
            self.changed.notify_one();
        }
        drop(leases);
        for effect in effects {
            self.carry_out(effect);
        }
        result
    }

    fn carry_out(self: &Arc<NqnfsClient>, effect: Effect) {
        match effect {
            Effect::Recall(id, handle, deadline) => {
                self.tell(Callback::Recall(Recall { id, handle, keep: None, deadline }));
            }
            Effect::Lost(id, handle) => self.tell(Callback::Revoked { id, handle }),
            Effect::Renew(handle, kind) => {
                let inner = self.clone();
                tokio::spawn(async move {
                    let caller = machine(Instant::now() + RENEWAL);
                    if let Err(error) = inner.get_lease(&caller, &handle, kind).await {
                        tracing::debug!(%error, "a lease was not renewed");
                    }
                });
            }
            Effect::Vacate(handle) => {
                let inner = self.clone();
                tokio::spawn(async move { inner.vacate(&handle).await });
            }
        }
    }

    /// Says VACATED until that is answered.
    async fn vacate(self: Arc<NqnfsClient>, handle: &Handle) {
        let Ok(file) = convert::to_wire(handle) else { return };
        while let Err(error) = self.once::<call::Vacated>(&Caller::machine(), &file).await {
            tracing::debug!(%error, "VACATED was not answered");
            if error.status != Status::Io && error.status != Status::Delay {
                break;
            }
            tokio::time::sleep(TRYLATER_MAX).await;
        }
        self.with(|leases, _| leases.vacated(handle));
        self.vacated.notify_waiters();
    }

    /// Waits, but not for long, until a VACATED of the file has been answered that is on its way: then a lease may be asked
    /// for again.
    pub(super) async fn vacated(&self, handle: &Handle) {
        let limit = Instant::now() + VACATING_MAX;
        loop {
            let answered = self.vacated.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if !self.leases.lock().is_vacating(handle) || timeout_at(limit, answered).await.is_err() {
                return;
            }
        }
    }

    /// Tells the layer above. It has room for all leases at once, or nearly: what finds none is told again by a task.
    fn tell(self: &Arc<NqnfsClient>, callback: Callback) {
        if let Err(tokio::sync::mpsc::error::TrySendError::Full(callback)) = self.up.try_send(callback) {
            let up = self.up.clone();
            tokio::spawn(async move { drop(up.send(callback).await) });
        }
    }
}

/// What a CREATE or MKDIR that asked for a lease has brought.
pub(super) struct Made {
    pub(super) handle: Handle,
    pub(super) attributes: vfs::Attributes,
    /// It was made just now, if the server tells.
    pub(super) new: Option<bool>,
    /// With this, its maker may also read and write it.
    pub(super) lease: Option<Lease>,
}

/// The pauses after NQNFS_TRYLATER.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(TRYLATER_MIN)
    }

    /// Waits; each time twice as long.
    ///
    /// # Errors
    /// `Delay` when the caller's patience is over.
    async fn pause(&mut self, caller: &Caller) -> Result<()> {
        let until = Instant::now() + self.0;
        self.0 = (self.0 * 2).min(TRYLATER_MAX);
        match caller.deadline {
            Some(deadline) if deadline <= until => {
                sleep_until(deadline).await;
                Err(Status::Delay.into())
            }
            _ => {
                sleep_until(until).await;
                Ok(())
            }
        }
    }
}

/// A WRITE under way, to its end however it ends.
struct Writing<'w> {
    inner: &'w NqnfsClient,
    handle: &'w Handle,
    pushes: bool,
}

impl<'w> Writing<'w> {
    fn begin(inner: &'w NqnfsClient, handle: &'w Handle) -> Writing<'w> {
        let pushes = inner.leases.lock().write_begins(Instant::now(), handle);
        Writing { inner, handle, pushes }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.inner.leases.lock().write_ended(Instant::now(), self.handle, self.pushes);
        self.inner.changed.notify_one();
    }
}

/// Leasehold itself, until then.
fn machine(deadline: Instant) -> Caller {
    Caller { principal: Principal::Machine, deadline: Some(deadline), ..Caller::machine() }
}

/// Renews leases and tells of those that end, until nobody has the export any more.
pub(super) async fn keep(inner: Weak<NqnfsClient>) {
    loop {
        let Some(strong) = inner.upgrade() else { return };
        strong.with(Leases::tick);
        let next = strong.leases.lock().next_tick();
        let changed = strong.changed.notified();
        match next {
            Some(at) => tokio::select! {
                () = sleep_until(at) => {}
                () = changed => {}
            },
            None => changed.await,
        }
    }
}

/// What answers the server's calls.
#[derive(Debug, Default)]
pub(super) struct Back(std::sync::OnceLock<Weak<NqnfsClient>>);

impl Back {
    pub(super) fn lead_to(&self, inner: &Arc<NqnfsClient>) {
        let _ = self.0.set(Arc::downgrade(inner));
    }
}

impl Service for Back {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let header = &call.header;
        let outcome = if header.program != nqnfs::PROGRAM {
            Outcome::Refuse(Refusal::ProgramUnavailable)
        } else if header.procedure == Procedure::Null as u32 {
            Outcome::Reply(call.reply().finish())
        } else if header.procedure != Procedure::Evicted as u32 {
            Outcome::Refuse(Refusal::ProcedureUnavailable)
        } else {
            match nqnfs::Handle::decode(&mut call.arguments.clone()) {
                Ok(file) => {
                    if let (Some(inner), Some(handle)) =
                        (self.0.get().and_then(Weak::upgrade), Handle::new(&file))
                    {
                        inner.with(|leases, now| leases.evicted(now, &handle));
                    }
                    Outcome::Reply(call.reply().finish())
                }
                Err(_) => Outcome::Refuse(Refusal::GarbageArguments),
            }
        };
        Box::pin(std::future::ready(outcome))
    }

    fn remember(&self, _call: &rpc::Call) -> Remember {
        Remember::No
    }
}

impl NqnfsClient {
    /// Is there anybody above to be called back?
    pub(super) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire) && !self.up.is_closed()
    }
}
