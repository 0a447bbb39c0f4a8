//! Established contexts: they protect messages, and know the peer.

use crate::Error;
use crate::sys::{Outcome, SecurityContext};
use parking_lot::Mutex;
use std::fmt;
use std::time::Duration;

/// The lifetime of a context that the library does not bound.
const LIFETIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// `GSS_C_INDEFINITE`.
const INDEFINITE: u32 = u32::MAX;

/// The result of one step of the exchange that establishes a context. `T` is the side that takes it.
#[derive(Debug)]
pub enum Step<T> {
    /// The peer must answer this token.
    Continue {
        /// The token for the peer.
        token: Vec<u8>,
        /// Takes the answer.
        next: T,
    },
    /// The context is established on this side.
    Done {
        /// The last token for the peer, if it waits for one.
        token: Option<Vec<u8>>,
        /// The context.
        context: Context,
    },
}

/// An established context. A mutex inside serializes the calls of one context.
pub struct Context {
    inner: Mutex<SecurityContext>,
    peer: String,
    local: Option<String>,
    lifetime: Duration,
}

impl Context {
    pub(crate) fn established<T>(context: SecurityContext, outcome: Outcome) -> Result<Step<T>, Error> {
        let lifetime = match outcome.lifetime {
            INDEFINITE => LIFETIME_MAX,
            seconds => Duration::from_secs(seconds.into()).min(LIFETIME_MAX),
        };
        let (peer, local) = (outcome.peer.text()?, outcome.peer.local());
        let context = Context { inner: Mutex::new(context), peer, local, lifetime };
        Ok(Step::Done { token: Some(outcome.token).filter(|token| !token.is_empty()), context })
    }

    /// A signature of `message` (at most 1 GiB), without the message.
    pub fn mic(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.inner.lock().mic(message)
    }

    /// Checks a signature that the peer made of `message`. Messages may come in any order and repeatedly.
    pub fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        self.inner.lock().verify_mic(message, mic)
    }

    /// A token with the message and its signature, encrypted if `private`. The message has at most 1 GiB.
    pub fn wrap(&self, message: &[u8], private: bool) -> Result<Vec<u8>, Error> {
        self.inner.lock().wrap(message, private)
    }

    /// The message of the peer's token, and true if it was encrypted. The caller refuses a message that
    /// should have been encrypted and was not.
    pub fn unwrap(&self, token: &[u8]) -> Result<(Vec<u8>, bool), Error> {
        self.inner.lock().unwrap(token)
    }

    /// The principal of the other end, such as `alice@LAB.TEST`. On the initiator's side the realm is empty
    /// if krb5.conf leaves the realm of the host to the KDC.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The local user that the library's rules (`auth_to_local` of krb5.conf) give the peer, if any. It was
    /// looked up when the context was established. Nobody checked that the system has such a user.
    pub fn local_name(&self) -> Option<String> {
        self.local.clone()
    }

    /// How long the context lasts, from when it was established. The library may go on past that; the caller
    /// ends the context.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Context").field("peer", &self.peer).finish_non_exhaustive()
    }
}
