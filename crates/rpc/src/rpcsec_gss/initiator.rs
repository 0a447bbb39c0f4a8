//! The client's end of RPCSEC_GSS (RFC 2203, section 5): makes a context, and protects calls with it. Bytes
//! in, bytes out: the caller sends calls and hands in replies.

mod protected;

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use gss::{Initiating, Step};
use xdr::{Decode, Decoder, Encoder, Message, Opaque};

use super::body::{self, BodyError};
use super::wire::{GssCredential, InitResult, MAXSEQ, Procedure, Protection};
use super::{Claim, RPCSEC_GSS, wire};
use crate::auth::Credential;
use crate::message::{self, CallHeader, Refusal};

pub use protected::Protected;

/// Why a context cannot be made, or a reply cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library's error.
    #[error(transparent)]
    Gss(#[from] gss::Error),
    /// The protection of results.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A reply that does not decode.
    #[error(transparent)]
    Xdr(#[from] xdr::Error),
    /// The server does not take the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The server makes no context.
    #[error("the server makes no context: major status {major}, minor status {minor}")]
    Declined {
        /// `gss_major`
        major: u32,
        /// `gss_minor`
        minor: u32,
    },
    /// The server and the library do not agree whether the context is made.
    #[error("the server and the Kerberos library disagree on the state of the context")]
    OutOfStep,
    /// The context has given out all numbers.
    #[error("the context has no sequence numbers left")]
    Exhausted,
}

impl Error {
    /// Has a ticket expired?
    pub fn is_expired(&self) -> bool {
        matches!(self, Error::Gss(error) if error.is_expired())
    }

    /// Did no KDC answer? One may answer later.
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Error::Gss(error) if error.is_no_answer())
    }
}

/// A context that is being made.
#[derive(Debug)]
pub struct Beginning {
    step: Initiating,
    credential: GssCredential,
}

/// The state after a reply to a call of [`Beginning`].
#[derive(Debug)]
pub enum Progress {
    /// Another call with this token.
    Again(Beginning, Vec<u8>),
    /// The context is made.
    Made(Context),
}

impl Beginning {
    /// Begins with a service, as `nfs@host`. Returns the token for the first call.
    ///
    /// # Errors
    /// If there is no ticket and none can be got.
    pub fn new(initiator: &gss::Initiator, target: &str) -> Result<(Beginning, Vec<u8>), Error> {
        let handle = Opaque::default();
        let (procedure, protection) = (Procedure::Init, Protection::None);
        match initiator.begin(target)?.step(None)? {
            Step::Continue { token, next } => {
                let credential = GssCredential { procedure, sequence: 0, protection, handle };
                Ok((Beginning { step: next, credential }, token))
            }
            // The server must prove who it is, so its token is needed.
            Step::Done { .. } => Err(Error::OutOfStep),
        }
    }

    /// The credential of the next call, which is of the null procedure. Its arguments are the token.
    pub fn credential(&self) -> Credential {
        claim(&self.credential)
    }

    /// Takes the results of the call, and the verifier of the reply.
    ///
    /// # Errors
    /// If the server makes no context, or is not the one that was asked for.
    pub fn answered(self, verifier: &[u8], mut results: Decoder) -> Result<Progress, Error> {
        let result = InitResult::decode(&mut results)?;
        if result.major > 1 {
            return Err(Error::Declined { major: result.major, minor: result.minor });
        }
        let is_made = result.major == 0;
        let token = (!result.token.is_empty()).then_some(&*result.token);
        match self.step.step(token)? {
            Step::Done { token: None, context } if is_made => {
                context.verify_mic(&result.window.to_be_bytes(), verifier)?;
                let (handle, window, sequence) = (result.handle, result.window, AtomicU32::new(1));
                Ok(Progress::Made(Context { established: context, handle, window, sequence }))
            }
            Step::Continue { token, next } if !is_made => {
                let procedure = Procedure::ContinueInit;
                let credential = GssCredential { procedure, handle: result.handle, ..self.credential };
                Ok(Progress::Again(Beginning { step: next, credential }, token))
            }
            Step::Done { .. } | Step::Continue { .. } => Err(Error::OutOfStep),
        }
    }
}

/// A context that is made.
#[derive(Debug)]
pub struct Context {
    established: gss::Context,
    handle: Opaque<{ wire::HANDLE_MAX_BYTES }>,
    /// The server takes no number that is so far below the highest.
    window: u32,
    /// The number of the next call.
    sequence: AtomicU32,
}

/// A call on its way. Its reply is believed for no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    sequence: u32,
    protection: Protection,
}

impl Context {
    /// Encodes a call. A call that is sent again needs a new number, and so is encoded again.
    ///
    /// # Errors
    /// If the context has ended.
    pub fn call(
        &self,
        (program, version, procedure): (u32, u32, u32),
        xid: u32,
        protection: Protection,
        arguments: Message,
    ) -> Result<(Sent, Message), Error> {
        self.encode(
            Procedure::Data,
            header((program, version, procedure), xid, &self.next(protection)?),
            arguments,
        )
    }

    /// Encodes the call that gives the context up.
    ///
    /// # Errors
    /// As [`Context::call`].
    pub fn give_up(&self, (program, version): (u32, u32), xid: u32) -> Result<(Sent, Message), Error> {
        let credential = self.next(Protection::None)?;
        self.encode(Procedure::Destroy, header((program, version, 0), xid, &credential), Message::default())
    }

    /// How long it lasted when it was made.
    pub fn lifetime(&self) -> std::time::Duration {
        self.established.lifetime()
    }

    /// May the call have fallen out of the server's window before it got there? Such a call gets no answer.
    pub(crate) fn is_behind(&self, sent: Sent) -> bool {
        let newest = self.sequence.load(Ordering::Relaxed);
        newest.saturating_sub(sent.sequence) >= (self.window / 2).max(1)
    }

    /// The credential of the next call.
    fn next(&self, protection: Protection) -> Result<GssCredential, Error> {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        if sequence >= MAXSEQ {
            self.sequence.store(MAXSEQ, Ordering::Relaxed);
            return Err(Error::Exhausted);
        }
        Ok(GssCredential { procedure: Procedure::Data, sequence, protection, handle: self.handle.clone() })
    }

    fn encode(
        &self,
        procedure: Procedure,
        mut header: CallHeader,
        arguments: Message,
    ) -> Result<(Sent, Message), Error> {
        let Credential::Gss(claim) = &mut header.credential else { return Err(Error::OutOfStep) };
        claim.credential.procedure = procedure;
        let (sequence, protection) = (claim.credential.sequence, claim.credential.protection);
        let mut encoder = Encoder::with_capacity(256);
        header.encode_unverified(&mut encoder);
        let signed = encoder.finish().to_bytes().map_err(BodyError::File)?;
        let mic = self.established.mic(&signed)?;
        let mut encoder = Encoder::with_capacity(512);
        encoder.raw(&signed);
        encoder.u32(RPCSEC_GSS);
        encoder.opaque(&mic);
        body::seal(&self.established, protection, sequence, arguments, &mut encoder)?;
        Ok((Sent { sequence, protection }, encoder.finish()))
    }

    /// Takes the reply to a call, from its status on, and returns the results.
    ///
    /// # Errors
    /// If the server refuses the call, or did not make the reply.
    pub fn reply(&self, sent: Sent, rest: Decoder) -> Result<Decoder, Error> {
        let (verifier, results) = message::parse_reply_with(rest)?;
        if let Err(refusal @ (Refusal::Auth(_) | Refusal::RpcMismatch)) = results {
            return Err(refusal.into());
        }
        self.established.verify_mic(&sent.sequence.to_be_bytes(), &verifier)?;
        Ok(body::open(&self.established, sent.protection, sent.sequence, &results?)?)
    }
}

fn header(
    (program, version, procedure): (u32, u32, u32),
    xid: u32,
    credential: &GssCredential,
) -> CallHeader {
    CallHeader { xid, program, version, procedure, credential: claim(credential) }
}

fn claim(credential: &GssCredential) -> Credential {
    let claim = Claim { credential: credential.clone(), signed: Bytes::new(), verifier: Bytes::new() };
    Credential::Gss(Box::new(claim))
}
