//! A call with protection, for as long as its caller waits. Each time it is sent it has another number, so
//! that the server takes it, and the same xid, so that the reply cache knows it. A reply belongs to any of
//! the numbers.

use std::sync::Arc;

use parking_lot::Mutex;
use xdr::{Decoder, Message};

use super::{Context, Error, Sent};
use crate::rpcsec_gss::Protection;
use crate::rpcsec_gss::body::compute;

/// A reply is believed for the last so many times that its call was sent.
const SENDS_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Protected {
    context: Arc<Context>,
    /// Program, version and procedure.
    procedure: (u32, u32, u32),
    xid: u32,
    protection: Protection,
    arguments: Message,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The message that was computed and not sent yet.
    ready: Option<Message>,
    sent: Vec<Sent>,
    sends: u32,
    /// Why it cannot be sent again.
    failure: Option<Arc<str>>,
}

impl Protected {
    /// A call to be sent.
    pub fn new(
        context: Arc<Context>,
        procedure: (u32, u32, u32),
        xid: u32,
        protection: Protection,
        arguments: Message,
    ) -> Arc<Protected> {
        let state = Mutex::default();
        Arc::new(Protected { context, procedure, xid, protection, arguments, state })
    }

    /// Its xid.
    pub fn xid(&self) -> u32 {
        self.xid
    }

    /// The program.
    pub fn program(&self) -> u32 {
        self.procedure.0
    }

    /// The procedure.
    pub fn procedure(&self) -> u32 {
        self.procedure.2
    }

    /// How often it was sent.
    pub fn sends(&self) -> u32 {
        self.state.lock().sends
    }

    /// Why it cannot be sent again.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.state.lock().failure.clone()
    }

    /// Computes the first message, and returns its bytes.
    pub(crate) async fn prepare(call: &Arc<Protected>) -> Result<usize, Error> {
        let again = call.clone();
        let encode = move || again.encode();
        let bytes = call.arguments.len();
        let message = compute(bytes, call.protection, encode).await.ok_or(Error::OutOfStep)??;
        let bytes = message.len();
        call.state.lock().ready = Some(message);
        Ok(bytes)
    }

    /// May the server have dropped the call because later ones overtook it? Then it must be sent again: over
    /// one connection nothing else tells. The server's reply cache, or the slot of the session, takes care
    /// that it runs once.
    pub(crate) fn is_behind(&self) -> bool {
        self.state.lock().sent.last().is_some_and(|sent| self.context.is_behind(*sent))
    }

    /// The message to send now.
    pub(crate) fn message(&self) -> Option<Message> {
        let ready = {
            let mut state = self.state.lock();
            state.sends += 1;
            let is_behind = state.sent.last().is_some_and(|sent| self.context.is_behind(*sent));
            state.ready.take().filter(|_| !is_behind)
        };
        let failed = |error: &Error| self.state.lock().failure = Some(error.to_string().into());
        ready.or_else(|| self.encode().inspect_err(failed).ok())
    }

    fn encode(&self) -> Result<Message, Error> {
        let (sent, message) =
            self.context.call(self.procedure, self.xid, self.protection, self.arguments.clone())?;
        let mut state = self.state.lock();
        if state.sent.len() == SENDS_MAX {
            state.sent.remove(0);
        }
        state.sent.push(sent);
        Ok(message)
    }

    /// Takes the reply, from its status on.
    pub(crate) async fn reply(call: &Arc<Protected>, rest: Decoder) -> Result<Decoder, Error> {
        let again = call.clone();
        let (bytes, protection) = (rest.remaining(), call.protection);
        let open = move || again.open(&rest);
        compute(bytes, protection, open).await.ok_or(Error::OutOfStep)?
    }

    fn open(&self, rest: &Decoder) -> Result<Decoder, Error> {
        let sent = self.state.lock().sent.clone();
        let mut result = Err(Error::OutOfStep);
        for sent in sent.into_iter().rev() {
            result = self.context.reply(sent, rest.clone());
            if !matches!(result, Err(Error::Gss(_))) {
                return result;
            }
        }
        result
    }
}
