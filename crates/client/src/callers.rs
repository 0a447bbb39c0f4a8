//! The users of calls to the origin: AUTH_SYS names them, or Kerberos proves who they are (`sec` of nfs(5)).

use std::sync::Arc;
use std::time::Duration;

use protocol::Call;
use rpc::message::Refusal;
use rpc::rpcsec_gss::initiator::Protected;
use rpc::rpcsec_gss::wire::{CREDPROBLEM, CTXPROBLEM};
use rpc::{Answer, CallError, Credential, Link, NoContext, Outgoing, Patience};
use tokio::time::Instant;
use vfs::Principal;
use xdr::{Decode, Encode, Encoder, Message, Opaque};

use crate::connect::ConnectError;
use crate::kerberos::{Kerberos, Who};
use crate::portmapper::AskError;
use crate::pulse::Pulse;
use crate::transport::{credential, machine_name};
use crate::url::Url;

/// Contexts that one call tries. The server loses them at a restart, and may lose one more meanwhile.
const CONTEXTS_MAX: usize = 3;

/// See the module.
#[derive(Debug)]
pub(crate) struct Callers {
    machine: Opaque<255>,
    kerberos: Option<Arc<Kerberos>>,
}

/// A call without its user.
#[derive(Clone, Debug)]
pub(crate) struct Unsent {
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) arguments: Message,
    /// The origin answers everybody alike, so for a user without a ticket the machine may ask.
    pub(crate) needs_no_right: bool,
}

impl Callers {
    /// Calls with AUTH_SYS, or with Kerberos if it is given.
    pub(crate) fn new(kerberos: Option<Arc<Kerberos>>) -> Callers {
        Callers { machine: machine_name(), kerberos }
    }

    /// The callers that the options of a URL ask for.
    ///
    /// # Errors
    /// If options contradict each other, or there is no Kerberos library.
    pub(crate) fn of(url: &Url) -> Result<Callers, ConnectError> {
        let Some((protection, tickets)) = url.options.kerberos()? else { return Ok(Callers::new(None)) };
        let kerberos = Kerberos::new(&url.host, protection, tickets.clone());
        let lacks = |error: gss::Error| ConnectError::Kerberos {
            host: url.host.clone(),
            why: NoContext::because(&error.to_string()),
        };
        Ok(Callers::new(Some(Arc::new(kerberos.map_err(lacks)?))))
    }

    /// Makes the context of the machine, so that it is known why there is none.
    ///
    /// # Errors
    /// If there is none. If the server does not answer, the first call will tell.
    pub(crate) async fn prepare(
        &self,
        url: &Url,
        on: (&Link, &Pulse),
        program: (u32, u32),
        patience: Patience,
    ) -> Result<(), ConnectError> {
        let Some(kerberos) = &self.kerberos else { return Ok(()) };
        match kerberos.context(Who::Machine, on, program, patience).await {
            Err(CallError::Context(why)) => Err(ConnectError::Kerberos { host: url.host.clone(), why }),
            _ => Ok(()),
        }
    }

    /// Makes one call as the machine.
    ///
    /// # Errors
    /// If there is no answer, or one that does not decode.
    pub(crate) async fn ask<C: Call>(
        &self,
        link: &Link,
        args: &C::Args,
        patience: Duration,
    ) -> Result<C::Results, AskError> {
        let mut encoder = Encoder::new();
        args.encode(&mut encoder);
        let (program, version, procedure) = (C::PROGRAM, C::VERSION, C::NUMBER);
        let call = Unsent { program, version, procedure, arguments: encoder.finish(), needs_no_right: true };
        let patience = Patience::Until(Instant::now() + patience);
        let pulse = Pulse::default();
        match self.call((link, &pulse), &Principal::Machine, call, patience).await {
            Ok(mut answer) => Ok(C::Results::decode(&mut answer.results)?),
            Err(CallError::Refused(refusal)) => Err(AskError::Refused(refusal)),
            Err(CallError::Malformed(error)) => Err(error.into()),
            Err(_) => Err(AskError::NoAnswer),
        }
    }

    /// The name of this machine.
    pub(crate) fn machine(&self) -> &Opaque<255> {
        &self.machine
    }

    /// Makes a call as this user.
    ///
    /// # Errors
    /// As [`Link::call`], and `Context` if the user has no ticket that the server takes.
    pub(crate) async fn call(
        &self,
        on: (&Link, &Pulse),
        principal: &Principal,
        call: Unsent,
        patience: Patience,
    ) -> Result<Answer, CallError> {
        let Some(kerberos) = &self.kerberos else {
            let Unsent { program, version, procedure, arguments, .. } = call;
            let credential = Credential::Sys(credential(principal, self.machine.clone()));
            let outgoing = Outgoing { program, version, procedure, credential, arguments };
            return on.1.follow(on.0.call(outgoing, patience)).await;
        };
        // In memory of its own: calls with AUTH_SYS stay small.
        Box::pin(call_protected(kerberos, on, Who::of(principal), call, patience)).await
    }

    /// Do users need a context?
    pub(crate) fn have_contexts(&self) -> bool {
        self.kerberos.is_some()
    }

    /// Waits until this user has a context.
    ///
    /// # Errors
    /// As [`Callers::call`], before anything was sent.
    pub(crate) async fn ready(
        &self,
        on: (&Link, &Pulse),
        principal: &Principal,
        program: (u32, u32),
        patience: Patience,
    ) -> Result<(), CallError> {
        match &self.kerberos {
            None => Ok(()),
            Some(kerberos) => {
                Box::pin(kerberos.context(Who::of(principal), on, program, patience)).await.map(drop)
            }
        }
    }
}

async fn call_protected(
    kerberos: &Kerberos,
    on: (&Link, &Pulse),
    mut who: Who,
    call: Unsent,
    patience: Patience,
) -> Result<Answer, CallError> {
    let Unsent { program, version, procedure, arguments, needs_no_right } = call;
    let (link, pulse) = on;
    // The reply cache of the server knows the call by its xid, in whatever context.
    let xid = link.xid();
    let mut sent_before = false;
    let mut failure = CallError::Closed;
    for _ in 0..CONTEXTS_MAX {
        let context = match kerberos.context(who, on, (program, version), patience).await {
            Err(CallError::Context(_)) if needs_no_right && who != Who::Machine => {
                who = Who::Machine;
                kerberos.context(who, on, (program, version), patience).await?
            }
            context => context?,
        };
        let procedure = (program, version, procedure);
        let protection = kerberos.protection();
        let call = Protected::new(context.clone(), procedure, xid, protection, arguments.clone());
        let answered = pulse.follow(link.call_protected(call.clone(), patience)).await;
        failure = match answered {
            Ok(mut answer) => {
                answer.retransmitted |= sent_before;
                return Ok(answer);
            }
            Err(
                error @ (CallError::Refused(Refusal::Auth(CREDPROBLEM | CTXPROBLEM)) | CallError::Context(_)),
            ) => error,
            Err(error) => return Err(error),
        };
        // A refusal is about the last time that it was sent. A reply that nobody can verify is about
        // nothing: the call may have run.
        let refused = u32::from(matches!(failure, CallError::Refused(_)));
        sent_before |= call.sends() > refused;
        kerberos.forget(who, &context);
    }
    Err(if sent_before { CallError::Closed } else { failure })
}
