//! The contexts of users with the origin, made when a user calls first and when the last one has ended.
//!
//! A context that cannot be made fails the calls of its user alone, and is tried again after a while: the
//! user may have got a ticket. A user never calls with a ticket of another user ([`tickets`]).

mod tickets;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use gss::{Initiator, Library};
use parking_lot::Mutex;
use rpc::message::Refusal;
use rpc::rpcsec_gss::Protection;
use rpc::rpcsec_gss::initiator::{Beginning, Context, Progress};
use rpc::rpcsec_gss::wire::{CREDPROBLEM, CTXPROBLEM};
use rpc::{CallError, Link, NoContext, Outgoing, Patience};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use vfs::Principal;
use xdr::Encoder;

use crate::pulse::Pulse;

pub use tickets::Tickets;

/// How long no other context is tried after one could not be made.
const PAUSE: Duration = Duration::from_secs(5);
/// Contexts of users that are made at once.
const MAKING_MAX: usize = 4;
/// Users whose contexts are kept.
const USERS_MAX: usize = 4096;
/// Tokens of one context, and attempts to make one. The server refuses a token that it has got twice.
const TOKENS_MAX: usize = 8;
const ATTEMPTS: usize = 3;

/// The owner of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// This machine, and its root.
    Machine,
    /// A user.
    User(u32),
}

impl Who {
    /// The owner of the contexts of a principal. Root has those of the machine, as with the kernel's client.
    pub(crate) fn of(principal: &Principal) -> Who {
        match principal {
            Principal::Machine => Who::Machine,
            Principal::Unix(unix) if unix.uid == 0 => Who::Machine,
            Principal::Unix(unix) => Who::User(unix.uid),
        }
    }
}

/// See the module.
pub(crate) struct Kerberos {
    library: Library,
    /// The server's principal, as `nfs@host`.
    target: String,
    protection: Protection,
    tickets: Tickets,
    users: Mutex<HashMap<Who, Arc<User>>>,
    /// The library asks the KDC, which may not answer. The state of all users depends on the machine's
    /// context, so it does not wait for those of users.
    of_machine: Arc<Semaphore>,
    of_users: Arc<Semaphore>,
}

/// The context of one user.
#[derive(Debug, Default)]
struct User {
    made: Mutex<Option<Made>>,
    /// Held while a context is made. The last failure, and when that was.
    making: tokio::sync::Mutex<Option<(Instant, NoContext)>>,
}

#[derive(Clone, Debug)]
struct Made {
    context: Arc<Context>,
    ends: Instant,
}

impl User {
    fn context(&self) -> Option<Arc<Context>> {
        let made = self.made.lock().clone()?;
        (Instant::now() < made.ends).then_some(made.context)
    }
}

impl fmt::Debug for Kerberos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kerberos({} of {})", self.protection, self.target)
    }
}

impl Kerberos {
    /// Contexts with the `nfs` service of a host.
    ///
    /// # Errors
    /// If this machine has no Kerberos library.
    pub(crate) fn new(host: &str, protection: Protection, tickets: Tickets) -> Result<Kerberos, gss::Error> {
        let library = Library::open()?;
        let (target, users) = (format!("nfs@{host}"), Mutex::default());
        let [of_machine, of_users] = [1, MAKING_MAX].map(|count| Arc::new(Semaphore::new(count)));
        Ok(Kerberos { library, target, protection, tickets, users, of_machine, of_users })
    }

    /// How arguments and results are protected.
    pub(crate) fn protection(&self) -> Protection {
        self.protection
    }

    /// The context of a user. Makes one over the link if there is none.
    ///
    /// # Errors
    /// `Context` if there is no ticket, or the server does not take it. As [`Link::call`] otherwise.
    pub(crate) async fn context(
        &self,
        who: Who,
        on: (&Link, &Pulse),
        program: (u32, u32),
        patience: Patience,
    ) -> Result<Arc<Context>, CallError> {
        let user = self.user(who);
        if let Some(context) = user.context() {
            return Ok(context);
        }
        let making = self.make_once(who, &user, on, program, patience);
        match patience {
            Patience::Hard => making.await,
            Patience::Until(limit) => timeout_at(limit, making).await.unwrap_or(Err(CallError::TimedOut)),
        }
    }

    /// Makes the context of a user, unless another call has made it meanwhile or has just failed to.
    async fn make_once(
        &self,
        who: Who,
        user: &User,
        on: (&Link, &Pulse),
        program: (u32, u32),
        patience: Patience,
    ) -> Result<Arc<Context>, CallError> {
        let mut failed = user.making.lock().await;
        if let Some(context) = user.context() {
            return Ok(context);
        }
        if let Some((when, why)) = &*failed
            && when.elapsed() < PAUSE
        {
            return Err(CallError::Context(why.clone()));
        }
        let mut made = self.make(who, on, program, patience).await;
        for _ in 1..ATTEMPTS {
            if !matches!(made, Err(NotMade::TokenTwice)) {
                break;
            }
            made = self.make(who, on, program, patience).await;
        }
        match made {
            Ok(context) => {
                let (context, ends) = (Arc::new(context), Instant::now());
                let ends = ends + context.lifetime();
                *user.made.lock() = Some(Made { context: context.clone(), ends });
                *failed = None;
                Ok(context)
            }
            Err(NotMade::Call(error)) => Err(error),
            Err(NotMade::TokenTwice) => Err(CallError::Closed),
            Err(NotMade::Because(why)) => {
                if failed.as_ref().is_none_or(|(_, before)| *before != why) {
                    tracing::warn!(?who, "no Kerberos context with {}: {why}", self.target);
                }
                *failed = Some((Instant::now(), why.clone()));
                Err(CallError::Context(why))
            }
        }
    }

    /// The server does not know the context any more.
    pub(crate) fn forget(&self, who: Who, context: &Arc<Context>) {
        let user = self.user(who);
        user.made.lock().take_if(|made| Arc::ptr_eq(&made.context, context));
    }

    fn user(&self, who: Who) -> Arc<User> {
        let mut users = self.users.lock();
        if users.len() >= USERS_MAX && !users.contains_key(&who) {
            // A user who calls again gets another context.
            users.retain(|_, user| Arc::strong_count(user) > 1 || user.context().is_some());
            let any = users.keys().find(|who| **who != Who::Machine).copied();
            if users.len() >= USERS_MAX
                && let Some(any) = any
            {
                users.remove(&any);
            }
        }
        users.entry(who).or_default().clone()
    }

    async fn make(
        &self,
        who: Who,
        (link, pulse): (&Link, &Pulse),
        (program, version): (u32, u32),
        patience: Patience,
    ) -> Result<Context, NotMade> {
        let permits = if who == Who::Machine { &self.of_machine } else { &self.of_users };
        // The semaphores are never closed.
        let permit = permits.clone().acquire_owned().await.map_err(|_| CallError::Closed)?;
        let (library, tickets, target) = (self.library, self.tickets.clone(), self.target.clone());
        let begin = move || {
            // The library goes on if the caller does not wait any more.
            let _permit = permit;
            tickets.begin(who, &|source| {
                let initiator = Initiator::new(&library, source)?;
                Beginning::new(&initiator, &target)
            })
        };
        let (mut beginning, mut token) = blocking(begin).await?.map_err(NotMade::Because)?;
        for _ in 0..TOKENS_MAX {
            let mut encoder = Encoder::with_capacity(token.len() + 8);
            encoder.opaque(&token);
            let (credential, arguments) = (beginning.credential(), encoder.finish());
            let outgoing = Outgoing { program, version, procedure: 0, credential, arguments };
            let answer = match pulse.follow(link.call(outgoing, patience)).await {
                Ok(answer) => answer,
                Err(CallError::Refused(Refusal::Auth(status @ (CREDPROBLEM | CTXPROBLEM)))) => {
                    let why = format!("the server lost the context at once ({status})");
                    return Err(NotMade::Because(NoContext::because(&why)));
                }
                Err(CallError::Refused(Refusal::Auth(status))) => {
                    let why =
                        format!("the server takes no Kerberos (authentication error {status}); try sec=sys");
                    return Err(NotMade::Because(NoContext::because(&why)));
                }
                Err(error) => return Err(error.into()),
            };
            let (twice, verifier, results) = (answer.retransmitted, answer.verifier, answer.results);
            let progress = blocking(move || beginning.answered(&verifier, results)).await?;
            match progress {
                Ok(Progress::Made(context)) => return Ok(context),
                Ok(Progress::Again(again, next)) => (beginning, token) = (again, next),
                Err(_) if twice => return Err(NotMade::TokenTwice),
                Err(error) => return Err(NotMade::Because(NoContext::of(&error, &error.to_string()))),
            }
        }
        let why = format!("the server wants more than {TOKENS_MAX} tokens");
        Err(NotMade::Because(NoContext::because(&why)))
    }
}

/// Why a context was not made.
#[derive(Debug)]
enum NotMade {
    /// There was no answer.
    Call(CallError),
    /// The server has got a token twice, which it takes for an attack.
    TokenTwice,
    /// Another reason.
    Because(NoContext),
}

impl From<CallError> for NotMade {
    fn from(error: CallError) -> NotMade {
        NotMade::Call(error)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, CallError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| CallError::Closed)
}
