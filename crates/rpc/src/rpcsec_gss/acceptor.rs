//! The server's end of RPCSEC_GSS (RFC 2203, section 5.3.3): makes contexts, checks calls, and protects
//! replies.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gss::{Accepting, Step};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use xdr::{Encode, Encoder, Message, Opaque};

use super::body::{self, BodyError, compute};
use super::contexts::{Bounds, Contexts, Established};
use super::wire::{CREDPROBLEM, CTXPROBLEM, Claim, InitResult, MAXSEQ, Procedure, TOKEN_MAX_BYTES};
use super::{Protection, Proven, UnixUser, User, window};
use crate::auth::Credential;
use crate::message::{self, AUTH_BADCRED, Refusal};
use crate::service::{Call, Outcome};

/// Finds the user of the system with a name. It may block. A failure of the user database makes no context:
/// the user would be a stranger for as long as the context lasts.
pub type LookUp = Box<dyn Fn(&str) -> io::Result<Option<UnixUser>> + Send + Sync>;

/// Steps of contexts that are computed at once. Each reads the keytab and writes the library's replay cache.
const STEPS_AT_ONCE: usize = 4;
/// Steps of one address that are computed or wait. The next one is lost, as a datagram may be.
const STEPS_OF_PEER: usize = 16;
/// A warning about failed contexts comes at most once in this time.
const WARNINGS: Duration = Duration::from_secs(10);
/// `GSS_S_COMPLETE` and `GSS_S_CONTINUE_NEEDED` of RFC 2744.
const COMPLETE: u32 = 0;
const CONTINUE_NEEDED: u32 = 1;
/// `GSS_S_FAILURE`
const FAILURE: u32 = 13 << 16;

/// Accepts the contexts of clients.
pub struct Acceptor {
    keys: gss::Acceptor,
    look_up: LookUp,
    contexts: Mutex<Contexts>,
    steps: Semaphore,
    /// The steps of each address that are computed or wait.
    waiting: Mutex<HashMap<IpAddr, usize>>,
    warned: Mutex<Option<Instant>>,
}

/// A step that is computed or waits.
struct Waiting<'a> {
    acceptor: &'a Acceptor,
    peer: IpAddr,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.acceptor.waiting.lock();
        if let Some(count) = waiting.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.peer);
            }
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rpcsec_gss::Acceptor")
    }
}

/// The fate of a call.
pub(crate) enum Admission {
    /// It may run. The reply needs this seal.
    Execute(Seal),
    /// It was about a context alone, or must not run.
    Answered(Outcome),
}

impl Acceptor {
    /// Accepts contexts with these keys. `look_up` finds the user whose name the rules of Kerberos give a
    /// principal (`auth_to_local` of krb5.conf(5)).
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(keys: gss::Acceptor, look_up: LookUp) -> Result<Arc<Acceptor>, getrandom::Error> {
        let contexts = Mutex::new(Contexts::new(Bounds::default())?);
        let (steps, waiting, warned) = (Semaphore::new(STEPS_AT_ONCE), Mutex::default(), Mutex::default());
        Ok(Arc::new(Acceptor { keys, look_up, contexts, steps, waiting, warned }))
    }

    /// The number of contexts.
    pub fn contexts(&self) -> usize {
        self.contexts.lock().len()
    }

    /// Checks a call. If it may run, its credential becomes the proven one, and its arguments those without
    /// protection.
    pub(crate) async fn admit(self: &Arc<Acceptor>, call: &mut Call, claim: &Claim) -> Admission {
        let credential = &claim.credential;
        match credential.procedure {
            Procedure::Init | Procedure::ContinueInit => Admission::Answered(self.make(call, claim).await),
            Procedure::Data | Procedure::Destroy => match self.check(claim) {
                Ok(established) => self.take(call, claim, established).await,
                Err(outcome) => Admission::Answered(outcome),
            },
        }
    }

    /// Checks the header of a call. A number that was taken before gets no answer: the client has one, or
    /// sends the call with another number.
    fn check(&self, claim: &Claim) -> Result<Arc<Established>, Outcome> {
        let credential = &claim.credential;
        if credential.sequence >= MAXSEQ {
            return Err(Refusal::Auth(CTXPROBLEM).into());
        }
        let unknown = || Outcome::from(Refusal::Auth(CREDPROBLEM));
        let established = self.contexts.lock().get(&credential.handle, Instant::now()).ok_or_else(unknown)?;
        established.context.verify_mic(&claim.signed, &claim.verifier).map_err(|_| unknown())?;
        if established.take(credential.sequence) { Ok(established) } else { Err(Outcome::Drop) }
    }

    /// Takes the protection off a call, or ends its context.
    async fn take(&self, call: &mut Call, claim: &Claim, established: Arc<Established>) -> Admission {
        let credential = &claim.credential;
        let mut seal = Seal { established, sequence: credential.sequence, protection: credential.protection };
        if credential.procedure == Procedure::Destroy {
            // Linux sends no arguments, and protects nothing, whatever the credential says.
            if call.arguments.remaining() == 0 {
                seal.protection = Protection::None;
            }
            self.contexts.lock().remove(&credential.handle);
            let outcome = Outcome::Reply(call.reply().finish());
            return Admission::Answered(seal.outcome(call.header.xid, outcome).await);
        }
        let arguments = call.arguments.clone();
        let (context, protection, sequence) = (seal.established.clone(), seal.protection, seal.sequence);
        let bytes = arguments.remaining();
        let open = move || body::open(&context.context, protection, sequence, &arguments);
        match compute(bytes, protection, open).await {
            Some(Ok(arguments)) => call.arguments = arguments,
            Some(Err(error)) => {
                tracing::debug!(peer = %call.peer, %error, "the arguments of a call are not as its user sent them");
                return Admission::Answered(seal.refuse(call.header.xid, Refusal::GarbageArguments));
            }
            None => return Admission::Answered(Outcome::Drop),
        }
        let user = seal.established.user.clone();
        call.header.credential = Credential::Proven(Proven { user, protection });
        Admission::Execute(seal)
    }

    /// One step of a context that is being made.
    async fn make(self: &Arc<Acceptor>, call: &Call, claim: &Claim) -> Outcome {
        let credential = &claim.credential;
        if call.header.procedure != 0 {
            return Refusal::Auth(AUTH_BADCRED).into();
        }
        let mut arguments = call.arguments.clone();
        let Ok(token) = arguments.shared(TOKEN_MAX_BYTES) else { return Refusal::GarbageArguments.into() };
        let accepting = if credential.procedure == Procedure::Init {
            self.keys.begin()
        } else {
            let begun = self.contexts.lock().take_begun(&credential.handle);
            let Some(begun) = begun else { return Refusal::Auth(CREDPROBLEM).into() };
            begun
        };
        let Some(_waiting) = self.wait(call.peer.ip().to_canonical()) else { return Outcome::Drop };
        let Ok(_permit) = self.steps.acquire().await else { return Outcome::Drop };
        let acceptor = self.clone();
        let step = tokio::task::spawn_blocking(move || acceptor.step(accepting, &token)).await;
        let Ok((result, signed)) = step else { return Outcome::Drop };
        if let Err(why) = &signed {
            self.warn(call.peer.ip(), why);
        }
        let verifier = signed.ok().flatten();
        let mut encoder = message::success_with(call.header.xid, verifier.as_deref());
        result.encode(&mut encoder);
        Outcome::Reply(encoder.finish())
    }

    fn wait(&self, peer: IpAddr) -> Option<Waiting<'_>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.entry(peer).or_default();
        if *count >= STEPS_OF_PEER {
            return None;
        }
        *count += 1;
        Some(Waiting { acceptor: self, peer })
    }

    fn warn(&self, peer: IpAddr, why: &str) {
        let mut warned = self.warned.lock();
        if warned.is_some_and(|when| when.elapsed() < WARNINGS) {
            return tracing::debug!(%peer, "no Kerberos context with a client: {why}");
        }
        *warned = Some(Instant::now());
        tracing::warn!(%peer, "no Kerberos context with a client: {why}");
    }

    /// Computes a step. Returns the reply and its verifier, which a client wants once the context is made.
    fn step(&self, accepting: Accepting, token: &[u8]) -> (InitResult, Result<Option<Vec<u8>>, String>) {
        let failed = |major, minor, token: &[u8]| InitResult {
            major,
            minor,
            window: 0,
            handle: Opaque::default(),
            token: Opaque::new(token.to_vec()).unwrap_or_default(),
        };
        let now = Instant::now();
        let (handle, major, token, verifier) = match accepting.step(token) {
            Err(error) => {
                let answer = failed(error.major(), error.minor(), error.token().unwrap_or_default());
                return (answer, Err(error.to_string()));
            }
            Ok(Step::Continue { token, next }) => match self.contexts.lock().keep_begun(next, now) {
                Some(handle) => (handle, CONTINUE_NEEDED, token, None),
                None => return (failed(FAILURE, 0, &[]), Err("too many are being made".to_owned())),
            },
            Ok(Step::Done { token, context }) => match context.mic(&window::WINDOW.to_be_bytes()) {
                Ok(mic) => {
                    let user = match self.user_of(&context) {
                        Ok(user) => user,
                        Err(error) => {
                            let why = format!("the user {} cannot be looked up: {error}", context.peer());
                            return (failed(FAILURE, 0, &[]), Err(why));
                        }
                    };
                    let handle = self.contexts.lock().add(Established::new(context, user, now), now);
                    (handle, COMPLETE, token.unwrap_or_default(), Some(mic))
                }
                Err(error) => return (failed(error.major(), error.minor(), &[]), Err(error.to_string())),
            },
        };
        let result = InitResult {
            handle: Opaque::new(handle.to_vec()).unwrap_or_default(),
            major,
            minor: 0,
            window: window::WINDOW,
            token: Opaque::new(token).unwrap_or_default(),
        };
        (result, Ok(verifier))
    }

    fn user_of(&self, context: &gss::Context) -> io::Result<User> {
        let found = context.local_name().map(|name| (self.look_up)(&name)).transpose()?;
        Ok(User { principal: context.peer().to_owned(), unix: found.flatten() })
    }
}

/// Puts the protection of a call on its reply.
#[derive(Debug)]
pub(crate) struct Seal {
    established: Arc<Established>,
    sequence: u32,
    protection: Protection,
}

impl Seal {
    /// The reply for the network. The header of one without protection begins as [`Call::reply`] did.
    pub(crate) async fn outcome(self, xid: u32, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Reply(message) => self.seal(xid, message).await.map_or(Outcome::Drop, Outcome::Reply),
            Outcome::PutOff(message) => self.seal(xid, message).await.map_or(Outcome::Drop, Outcome::PutOff),
            Outcome::Refuse(refusal) => self.refuse(xid, refusal),
            Outcome::Drop => Outcome::Drop,
        }
    }

    async fn seal(self, xid: u32, message: Message) -> Option<Message> {
        let results = message::results(message)?;
        let bytes = results.len();
        let protection = self.protection;
        let seal = move || -> Result<Message, BodyError> {
            let context = &self.established.context;
            let mut encoder = self.begin(xid)?;
            body::seal(context, protection, self.sequence, results, &mut encoder)?;
            Ok(encoder.finish())
        };
        let sealed = compute(bytes, protection, seal).await?;
        sealed.inspect_err(|error| tracing::warn!(%error, "a reply cannot be protected and is not sent")).ok()
    }

    /// A refusal has no results. Its header is signed.
    fn refuse(&self, xid: u32, refusal: Refusal) -> Outcome {
        let Ok(mic) = self.sign() else { return Outcome::Drop };
        Outcome::Reply(message::refuse_with(xid, Some(&mic), refusal))
    }

    fn begin(&self, xid: u32) -> Result<Encoder, gss::Error> {
        Ok(message::success_with(xid, Some(&self.sign()?)))
    }

    fn sign(&self) -> Result<Vec<u8>, gss::Error> {
        self.established.context.mic(&self.sequence.to_be_bytes())
    }
}
