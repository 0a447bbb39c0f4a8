//! Calls to the server, repeated while it says NQNFS_TRYLATER, and its one call to us, EVICTED.

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

use super::leases::{Asked, Effect, Grant, Leases, ReturnAll};
use super::{NqnfsClient, convert, plain};
use crate::transport::credential;

/// The first pause after NQNFS_TRYLATER. Each further one is twice as long.
const TRYLATER_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const TRYLATER_MAX: Duration = Duration::from_secs(2);
/// How long a renewal may take.
const RENEWAL: Duration = Duration::from_secs(4);
/// How long to wait for a VACATED before names are looked up without a lease.
const VACATING_MAX: Duration = Duration::from_secs(1);
/// How long to wait for the server at the end.
const RETURN_ALL_WAIT: Duration = Duration::from_secs(2);
/// The term to ask for, in seconds.
const TERM: u32 = nqnfs::TERM_DEFAULT;

/// The grant in a server's answer, if it is one.
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
    /// Makes a call that may carry a lease request, and returns its results.
    pub(super) async fn call<C, A, T>(&self, caller: &Caller, args: &Leased<A>) -> Result<Granted<T>>
    where
        C: Call<Args = Leased<A>, Results = Reply<T>>,
        A: Sync,
        T: Decode,
    {
        succeeded(self.ask::<C>(caller, args).await?)
    }

    /// The same, for a call on one file. If the server says that the file's lease has ended (NQNFS_EXPIRED),
    /// the lease is lost. The caller may then repeat the call without it.
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

    /// Makes a call, and repeats it until the answer is not NQNFS_TRYLATER or the caller's deadline passes.
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
        // Send one VACATED until it is answered. A second one for the same eviction, with another xid, could
        // be executed too late.
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
                    CallError::TimedOut
                    | CallError::TooLarge(_)
                    | CallError::Closed
                    | CallError::Context(_) => Status::Io.into(),
                })
            }
        }
    }

    /// Notes that the layer above uses a file.
    pub(super) fn used(&self, handle: &Handle) {
        self.leases.lock().used(Instant::now(), handle);
    }

    /// Converts and remembers attributes.
    pub(super) fn learn(&self, handle: &Handle, fattr: &nqnfs::Fattr) -> vfs::Attributes {
        let attributes = convert::attributes(fattr);
        self.seen.lock().note(handle, &attributes);
        attributes
    }

    /// The attributes of a file at this `modifyrev`: remembered ones, or those of a GETATTR.
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

    /// Sends WRITE. If it does not push data written under a write lease, it says so by asking for a write
    /// lease of the shortest term. A recovering server then delays the write until no client relies on a
    /// lease from before its restart.
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

    /// Sends GETLEASE. Returns the lease, if granted, and the attributes, which were read under it.
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

    /// Sends ACCESS for all these rights, with a request for a lease. Returns the lease, and the `modifyrev`
    /// at which it was granted or refused, if it was requested.
    ///
    /// # Errors
    /// `Access` if the caller lacks any of the rights.
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

    /// Makes a call that may bring a lease, and repeats it while the server says NQNFS_TRYLATER. `args`
    /// builds the arguments with or without a lease request, and `promise` finds the lease in the results.
    /// The term counts from when the last attempt was sent. So a lease that took long to get is not over when
    /// it arrives.
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
            let asked = kind.and_then(|kind| Some((kind, Asking::begin(self, handle)?)));
            let answer = self.once::<C>(caller, &args(asked.is_some())).await.and_then(|results| {
                C::Results::decode(&mut results.clone()).map_err(|error| self.nonsense.heard(C::NAME, error))
            });
            match answer? {
                Plain::Ok(ok) => {
                    let promise = promise(&ok);
                    let granted = |kind| promise.and_then(|promise| grant(kind, promise));
                    let lease = asked.and_then(|(kind, asking)| asking.answered(granted(kind)));
                    return Ok((lease, ok));
                }
                Plain::Fail(Stat::Trylater, ()) => {
                    drop(asked);
                    pauses.pause(caller).await?;
                }
                Plain::Fail(Stat::Expired, ()) => {
                    drop(asked);
                    self.with(|leases, _| leases.expired(handle));
                    return Err(Status::Delay.into());
                }
                Plain::Fail(status, ()) => return Err(convert::status(status).into()),
            }
        }
    }

    /// Sends CREATE or MKDIR with a request for a lease on the new object. Returns the object, and what the
    /// answer says about the lease.
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

    /// Ends the mount: tells the server at once what was returned since [`Leases::leave`], if the server
    /// answers soon.
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
        let _ = tokio::time::timeout(RETURN_ALL_WAIT, said).await;
    }

    /// Runs an event on the leases, and carries out its effects.
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

    /// Sends VACATED until the server answers.
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

    /// Waits briefly until the server has answered a VACATED of the file that is in flight. After that, a
    /// lease may be asked for again.
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

    /// Passes a callback to the layer above. The channel has space for nearly all leases at once. If it is
    /// full, a task waits for space.
    fn tell(self: &Arc<NqnfsClient>, callback: Callback) {
        if let Err(tokio::sync::mpsc::error::TrySendError::Full(callback)) = self.up.try_send(callback) {
            let up = self.up.clone();
            tokio::spawn(async move { drop(up.send(callback).await) });
        }
    }
}

/// The result of a CREATE or MKDIR that asked for a lease.
pub(super) struct Made {
    pub(super) handle: Handle,
    pub(super) attributes: vfs::Attributes,
    /// Whether the object is new, if the server says.
    pub(super) new: Option<bool>,
    /// A lease also means that the creator may read and write the object.
    pub(super) lease: Option<Lease>,
}

/// The pauses after NQNFS_TRYLATER.
struct Pauses(Duration);

impl Pauses {
    fn new() -> Pauses {
        Pauses(TRYLATER_MIN)
    }

    /// Waits, each time twice as long.
    ///
    /// # Errors
    /// `Delay` if the caller's deadline passes.
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

/// A request in flight for a lease. If it is dropped, no answer came.
struct Asking<'c> {
    client: &'c Arc<NqnfsClient>,
    handle: &'c Handle,
    asked: Asked,
}

impl<'c> Asking<'c> {
    /// The request is about to be sent. `None` if no lease may be asked for now.
    fn begin(client: &'c Arc<NqnfsClient>, handle: &'c Handle) -> Option<Asking<'c>> {
        let asked = client.with(|leases, now| leases.ask(now, handle))?;
        Some(Asking { client, handle, asked })
    }

    /// Notes the answer: a lease, or none.
    fn answered(self, granted: Option<Grant>) -> Option<Lease> {
        let Asking { client, handle, asked } = self;
        std::mem::forget(self);
        client.with(|leases, now| leases.answered(now, handle, asked, granted))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.client.with(|leases, now| leases.unanswered(now, self.handle));
    }
}

/// A WRITE in flight. Dropping it notes the end of the WRITE, however it ends.
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

/// Leasehold itself as the caller, with a deadline.
fn machine(deadline: Instant) -> Caller {
    Caller { principal: Principal::Machine, deadline: Some(deadline), ..Caller::machine() }
}

/// Renews leases and reports those that end, until the export is dropped.
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

/// Answers the server's calls.
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
    /// Does the layer above listen for callbacks?
    pub(super) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Acquire) && !self.up.is_closed()
    }
}
