//! A security context of the library: the exchange of tokens that establishes it, then its messages.

use super::{Buffer, Credential, Functions, Handle, KRB5_OID, MESSAGE_MAX, Name, Oid, Output, TOKEN_MAX};
use crate::error::Error;
use std::ffi::c_int;
use std::ptr;

/// `GSS_S_CONTINUE_NEEDED`: the peer must answer.
const CONTINUE_NEEDED: u32 = 1;
/// `GSS_C_MUTUAL_FLAG`: the acceptor proves who it is, too.
const MUTUAL: u32 = 2;
/// `GSS_C_CONF_FLAG` and `GSS_C_INTEG_FLAG`.
const PROTECTED: u32 = 16 | 32;

/// The result of one step of the exchange.
pub(crate) struct Outcome {
    /// The token for the peer. Empty if there is none.
    pub(crate) token: Vec<u8>,
    /// Is the context established?
    pub(crate) done: bool,
    /// Once the context is established: the principal of the peer.
    pub(crate) peer: Name,
    /// Once the context is established: how many seconds it lasts.
    pub(crate) lifetime: u32,
}

/// A context, complete or not. One thread at a time uses it.
pub(crate) struct SecurityContext {
    functions: &'static Functions,
    handle: Handle,
}

// SAFETY: no thread owns a context. It is not `Sync`: each call of it needs `&mut`.
unsafe impl Send for SecurityContext {}

impl SecurityContext {
    pub(crate) fn new(functions: &'static Functions) -> SecurityContext {
        SecurityContext { functions, handle: ptr::null_mut() }
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    pub(super) fn handle_mut(&mut self) -> *mut Handle {
        &raw mut self.handle
    }

    /// The acceptor's next step.
    pub(crate) fn accept(&mut self, credential: &Credential, token: &[u8]) -> Result<Outcome, Error> {
        let what = "cannot accept the context";
        let mut token = token_copy(what, token, TOKEN_MAX)?;
        let input = Buffer::in_place(&mut token);
        let mut output = Output::new(self.functions);
        let (mut minor, mut lifetime, mut peer) = (0, 0, ptr::null_mut());
        // SAFETY: the context is null or the unfinished one of earlier steps, the credential is valid, and
        // the other pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.accept_sec_context)(
                &raw mut minor,
                &raw mut self.handle,
                credential.handle(),
                &raw const input,
                ptr::null(),
                &raw mut peer,
                ptr::null_mut(),
                &raw mut output.buffer,
                ptr::null_mut(),
                &raw mut lifetime,
                ptr::null_mut(),
            )
        };
        let peer = Name::owned(self.functions, peer);
        let token = self.step_token(what, major, minor, &output)?;
        Ok(Outcome { token, done: major & CONTINUE_NEEDED == 0, peer, lifetime })
    }

    /// The initiator's next step. Only the first one has no token.
    pub(crate) fn initiate(
        &mut self,
        credential: &Credential,
        target: &Name,
        token: Option<&[u8]>,
    ) -> Result<Outcome, Error> {
        let what = "cannot initiate the context";
        let mut token = token.map(|token| token_copy(what, token, TOKEN_MAX)).transpose()?;
        let input = token.as_deref_mut().map(Buffer::in_place);
        let mechanism = Oid::of(KRB5_OID);
        let mut output = Output::new(self.functions);
        let (mut minor, mut flags, mut lifetime) = (0, 0, 0);
        // SAFETY: the context is null or the unfinished one of earlier steps, credential and name are valid,
        // and the other pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.init_sec_context)(
                &raw mut minor,
                credential.handle(),
                &raw mut self.handle,
                target.handle(),
                &raw const mechanism,
                MUTUAL | PROTECTED,
                0,
                ptr::null(),
                input.as_ref().map_or(ptr::null(), ptr::from_ref),
                ptr::null_mut(),
                &raw mut output.buffer,
                &raw mut flags,
                &raw mut lifetime,
            )
        };
        let token = self.step_token(what, major, minor, &output)?;
        let done = major & CONTINUE_NEEDED == 0;
        if done && flags & MUTUAL == 0 {
            return Err(Error::here(&format!("{what}: the server did not prove its identity")));
        }
        let peer = if done { self.target(what)? } else { Name::owned(self.functions, ptr::null_mut()) };
        Ok(Outcome { token, done, peer, lifetime })
    }

    /// The token of a step, also that of a failed one.
    fn step_token(&self, what: &str, major: u32, minor: u32, output: &Output) -> Result<Vec<u8>, Error> {
        let checked = self.functions.check(what, major, minor);
        let token = output.copy(TOKEN_MAX);
        checked.map_err(|error| error.with_token(token.clone()))?;
        token.ok_or_else(|| too_long(what))
    }

    /// The acceptor's principal of an established context.
    fn target(&mut self, what: &str) -> Result<Name, Error> {
        let (mut minor, mut target) = (0, ptr::null_mut());
        // SAFETY: the context is established, and the pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.inquire_context)(
                &raw mut minor,
                self.handle,
                ptr::null_mut(),
                &raw mut target,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        let target = Name::owned(self.functions, target);
        self.functions.check(what, major, minor)?;
        Ok(target)
    }

    /// A signature of a message.
    pub(crate) fn mic(&mut self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let what = "cannot sign a message";
        let input = message_buffer(what, message)?;
        let mut output = Output::new(self.functions);
        let mut minor = 0;
        // SAFETY: the context is valid or null, which the library reports; the library only reads the
        // message; the other pointers are to locals that live through the call.
        let major = unsafe {
            (self.functions.get_mic)(&raw mut minor, self.handle, 0, &raw const input, &raw mut output.buffer)
        };
        self.functions.check(what, major, minor)?;
        output.copy(TOKEN_MAX).ok_or_else(|| too_long(what))
    }

    /// Checks a signature. Information about the order of messages is ignored.
    pub(crate) fn verify_mic(&mut self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        let what = "the signature of a message is wrong";
        let mut mic = token_copy(what, mic, TOKEN_MAX)?;
        let (input, token) = (message_buffer(what, message)?, Buffer::in_place(&mut mic));
        let mut minor = 0;
        // SAFETY: as for `mic`.
        let major = unsafe {
            (self.functions.verify_mic)(
                &raw mut minor,
                self.handle,
                &raw const input,
                &raw const token,
                ptr::null_mut(),
            )
        };
        self.functions.check(what, major, minor)
    }

    /// A message with its signature, encrypted if `private`.
    pub(crate) fn wrap(&mut self, message: &[u8], private: bool) -> Result<Vec<u8>, Error> {
        let what = "cannot wrap a message";
        let input = message_buffer(what, message)?;
        let mut output = Output::new(self.functions);
        let (mut minor, mut encrypted): (u32, c_int) = (0, 0);
        // SAFETY: as for `mic`.
        let major = unsafe {
            (self.functions.wrap)(
                &raw mut minor,
                self.handle,
                c_int::from(private),
                0,
                &raw const input,
                &raw mut encrypted,
                &raw mut output.buffer,
            )
        };
        self.functions.check(what, major, minor)?;
        if private && encrypted == 0 {
            return Err(Error::here(&format!("{what}: the context has no encryption")));
        }
        output.copy(message.len() + TOKEN_MAX).ok_or_else(|| too_long(what))
    }

    /// The message of a token, and if it was encrypted. Information about the order of messages is ignored.
    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Result<(Vec<u8>, bool), Error> {
        let what = "a wrapped message is wrong";
        let mut copy = token_copy(what, token, MESSAGE_MAX + TOKEN_MAX)?;
        let input = Buffer::in_place(&mut copy);
        let mut output = Output::new(self.functions);
        let (mut minor, mut encrypted): (u32, c_int) = (0, 0);
        // SAFETY: as for `mic`, except that the library may write to the token, which is a copy.
        let major = unsafe {
            (self.functions.unwrap)(
                &raw mut minor,
                self.handle,
                &raw const input,
                &raw mut output.buffer,
                &raw mut encrypted,
                ptr::null_mut(),
            )
        };
        self.functions.check(what, major, minor)?;
        let message = output.copy(token.len()).ok_or_else(|| too_long(what))?;
        Ok((message, encrypted != 0))
    }
}

impl Drop for SecurityContext {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            let mut minor = 0;
            // SAFETY: the context came from this library and is deleted once; no token is asked for.
            unsafe {
                (self.functions.delete_sec_context)(&raw mut minor, &raw mut self.handle, ptr::null_mut())
            };
        }
    }
}

/// A copy of a token of the peer. The library would not say that an empty one is defective.
fn token_copy(what: &str, token: &[u8], limit: usize) -> Result<Vec<u8>, Error> {
    match token.len() {
        0 => Err(Error::defective(&format!("{what}: the token is empty"))),
        length if length > limit => Err(too_long(what)),
        _ => Ok(token.to_vec()),
    }
}

fn message_buffer(what: &str, message: &[u8]) -> Result<Buffer, Error> {
    if message.len() > MESSAGE_MAX { Err(too_long(what)) } else { Ok(Buffer::input(message)) }
}

fn too_long(what: &str) -> Error {
    Error::defective(&format!("{what}: the token or message is too long"))
}
