//! Established contexts: they protect messages, and know the peer.

use crate::Error;
use crate::cfx::Messages;
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

/// An established context.
pub struct Context {
    messages: Protection,
    /// The library's context beside our keys, to compare.
    #[cfg(test)]
    library: Option<Mutex<SecurityContext>>,
    peer: String,
    local: Option<String>,
    lifetime: Duration,
}

/// The means to protect messages.
enum Protection {
    /// Keys of our own.
    Own(Box<Messages>),
    /// The library, one call at a time.
    Library(Mutex<SecurityContext>),
}

impl Context {
    pub(crate) fn established<T>(context: SecurityContext, outcome: Outcome) -> Result<Step<T>, Error> {
        let (context, keys) = context.with_keys()?;
        let context = Mutex::new(context);
        let (messages, library) = match keys.as_ref().and_then(Messages::new) {
            Some(messages) => (Protection::Own(Box::new(messages)), Some(context)),
            None => (Protection::Library(context), None),
        };
        #[cfg(not(test))]
        drop(library);
        let lifetime = match outcome.lifetime {
            INDEFINITE => LIFETIME_MAX,
            seconds => Duration::from_secs(seconds.into()).min(LIFETIME_MAX),
        };
        let (peer, local) = (outcome.peer.text()?, outcome.peer.local());
        let context = Context {
            messages,
            #[cfg(test)]
            library,
            peer,
            local,
            lifetime,
        };
        Ok(Step::Done { token: Some(outcome.token).filter(|token| !token.is_empty()), context })
    }

    /// A signature of `message` (at most 1 GiB), without the message.
    pub fn mic(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        match &self.messages {
            Protection::Own(messages) => Ok(messages.mic(message)),
            Protection::Library(context) => context.lock().mic(message),
        }
    }

    /// Checks a signature that the peer made of `message`. Messages may come in any order and repeatedly.
    pub fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        match &self.messages {
            Protection::Own(messages) => messages.verify_mic(message, mic),
            Protection::Library(context) => context.lock().verify_mic(message, mic),
        }
    }

    /// A token with the message and its signature, encrypted if `private`. The message has at most 1 GiB.
    pub fn wrap(&self, message: &[u8], private: bool) -> Result<Vec<u8>, Error> {
        match &self.messages {
            Protection::Own(messages) => messages.wrap(message, private),
            Protection::Library(context) => context.lock().wrap(message, private),
        }
    }

    /// The message of the peer's token, and true if it was encrypted. The caller refuses a message that
    /// should have been encrypted and was not.
    pub fn unwrap(&self, token: &[u8]) -> Result<(Vec<u8>, bool), Error> {
        match &self.messages {
            Protection::Own(messages) => messages.unwrap(token),
            Protection::Library(context) => context.lock().unwrap(token),
        }
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

#[cfg(test)]
mod tests {
    use super::{Context, Protection, Step};
    use crate::cfx::Messages;
    use crate::sys::SecurityContext;
    use crate::{Acceptor, Initiator, Library, Source};
    use lab::with_realm;

    impl Context {
        fn both(&self) -> (&Messages, impl std::ops::DerefMut<Target = SecurityContext>) {
            let Protection::Own(own) = &self.messages else { panic!("AES") };
            (own, self.library.as_ref().unwrap().lock())
        }
    }

    /// Messages of `from` to `to`, with our keys at one end and the library at the other.
    fn speak(from: &Context, to: &Context) {
        let ((from, mut from_library), (to, mut to_library)) = (from.both(), to.both());
        for length in [0, 1, 15, 16, 17, 31, 32, 33, 1000, 65_537] {
            let message: Vec<u8> = (0..length).map(|at: u32| at as u8).collect();
            to_library.verify_mic(&message, &from.mic(&message)).unwrap();
            to.verify_mic(&message, &from_library.mic(&message).unwrap()).unwrap();
            for private in [true, false] {
                let token = from.wrap(&message, private).unwrap();
                assert!(
                    to_library.unwrap(&token).unwrap() == (message.clone(), private),
                    "{length} {private}"
                );
                let token = from_library.wrap(&message, private).unwrap();
                assert!(to.unwrap(&token).unwrap() == (message.clone(), private), "{length} {private}");
            }
            // Nobody takes its own tokens for those of the peer.
            assert!(from.verify_mic(&message, &from.mic(&message)).is_err());
            assert!(from.unwrap(&from.wrap(&message, true).unwrap()).is_err());
        }
    }

    #[test]
    fn our_keys_and_the_library_understand_each_other() {
        with_realm("context::tests::our_keys_and_the_library_understand_each_other", |realm| {
            realm.add_user("alice", "a secret");
            realm.add_service("nfs/localhost");
            let library = Library::open().unwrap();
            let keys = Acceptor::new(&library, Some(&realm.keytab(&["nfs/localhost"]))).unwrap();
            let tickets = Source::Cache(format!("FILE:{}", realm.tickets("alice").display()));
            let initiator = Initiator::new(&library, &tickets).unwrap().begin("nfs@localhost").unwrap();
            let Step::Continue { token, next } = initiator.step(None).unwrap() else { panic!("a token") };
            let Step::Done { token, context: acceptor } = keys.begin().step(&token).unwrap() else {
                panic!("it is established")
            };
            let Step::Done { context: initiator, .. } = next.step(token.as_deref()).unwrap() else {
                panic!("it is established")
            };
            speak(&initiator, &acceptor);
            speak(&acceptor, &initiator);
        });
    }
}
