//! Call and reply headers (RFC 5531, section 9).

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::auth::Credential;
use crate::refusals;
use crate::rpcsec_gss::RPCSEC_GSS;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Longest body of a verifier.
const VERIFIER_MAX_BYTES: usize = 400;
/// The header of a successful reply without a verifier.
const SUCCESS_BYTES: usize = 24;

/// A record, classified by its header.
#[derive(Clone, Debug)]
pub enum Incoming {
    /// A call to be answered.
    Call(CallHeader, Decoder),
    /// A call of another version of RPC itself.
    Mismatch {
        /// Of the call.
        xid: u32,
    },
    /// A call whose credential does not decode.
    BadCredential {
        /// Of the call.
        xid: u32,
    },
    /// A reply to a call of ours. The waiter decodes the rest.
    Reply {
        /// Of the call.
        xid: u32,
        /// From the reply status on.
        rest: Decoder,
    },
}

/// The header of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHeader {
    /// The caller's identifier of the call.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential,
}

impl Incoming {
    /// Reads the header of a record.
    pub fn parse(record: Bytes) -> Result<Incoming, xdr::Error> {
        let mut decoder = Decoder::new(record);
        let xid = decoder.u32()?;
        match decoder.u32()? {
            CALL => {}
            REPLY => return Ok(Incoming::Reply { xid, rest: decoder }),
            value => return Err(xdr::Error::Discriminant { name: "msg_type", value }),
        }
        if decoder.u32()? != RPC_VERSION {
            return Ok(Incoming::Mismatch { xid });
        }
        let (program, version, procedure) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        let Ok(mut credential) = Credential::decode(&mut decoder) else {
            return Ok(Incoming::BadCredential { xid });
        };
        if let Credential::Gss(claim) = &mut credential {
            claim.signed = decoder.consumed();
        }
        let verifier_flavor = decoder.u32()?;
        match &mut credential {
            Credential::Gss(claim) if verifier_flavor == RPCSEC_GSS => {
                claim.verifier = decoder.shared(VERIFIER_MAX_BYTES)?;
            }
            _ => drop(decoder.slice(VERIFIER_MAX_BYTES)?),
        }
        Ok(Incoming::Call(CallHeader { xid, program, version, procedure, credential }, decoder))
    }
}

impl CallHeader {
    /// Encodes the header without its verifier.
    pub(crate) fn encode_unverified(&self, encoder: &mut Encoder) {
        encoder.u32(self.xid);
        encoder.u32(CALL);
        encoder.u32(RPC_VERSION);
        encoder.u32(self.program);
        encoder.u32(self.version);
        encoder.u32(self.procedure);
        self.credential.encode(encoder);
    }
}

impl Encode for CallHeader {
    fn encode(&self, encoder: &mut Encoder) {
        self.encode_unverified(encoder);
        Credential::None.encode(encoder);
    }
}

/// Why the server did not execute a call: `accept_stat` and `reject_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server does not serve the program.
    #[error("program unavailable")]
    ProgramUnavailable,
    /// The server serves the program, but not this version.
    #[error("program version not between {low} and {high}")]
    ProgramMismatch {
        /// Lowest version served.
        low: u32,
        /// Highest version served.
        high: u32,
    },
    /// The version has no such procedure.
    #[error("procedure unavailable")]
    ProcedureUnavailable,
    /// The arguments do not decode.
    #[error("garbage arguments")]
    GarbageArguments,
    /// A failure that the procedure's reply cannot express.
    #[error("system error")]
    SystemError,
    /// The call uses another version of RPC.
    #[error("RPC version mismatch")]
    RpcMismatch,
    /// `auth_stat`: the server does not accept the caller's credential.
    #[error("authentication error {0}")]
    Auth(u32),
}

/// `AUTH_BADCRED`: bad credential (seal broken).
pub const AUTH_BADCRED: u32 = 1;
/// `AUTH_REJECTEDCRED`: the client must begin a new session. There is none for a flavor that is not served.
pub const AUTH_REJECTEDCRED: u32 = 2;
/// `AUTH_TOOWEAK`: rejected for security reasons.
pub const AUTH_TOOWEAK: u32 = 5;

/// Begins a successful reply: writes its header, and the caller appends the results.
pub fn success(xid: u32) -> Encoder {
    success_with(xid, None)
}

/// As [`success`], with a verifier of RPCSEC_GSS.
pub fn success_with(xid: u32, verifier: Option<&[u8]>) -> Encoder {
    let mut encoder = Encoder::with_capacity(256);
    encoder.u32(xid);
    encoder.u32(REPLY);
    accepted(&mut encoder, verifier, 0); // SUCCESS
    encoder
}

/// Appends `MSG_ACCEPTED`, the verifier, and the status.
fn accepted(encoder: &mut Encoder, verifier: Option<&[u8]>, status: u32) {
    encoder.u32(0);
    match verifier {
        None => Credential::None.encode(encoder),
        Some(verifier) => {
            encoder.u32(RPCSEC_GSS);
            encoder.opaque(verifier);
        }
    }
    encoder.u32(status);
}

/// The results of a reply that [`success`] began. `None` if it did not.
pub fn results(mut reply: Message) -> Option<Message> {
    if reply.first.len() < SUCCESS_BYTES {
        return None;
    }
    reply.first = reply.first.slice(SUCCESS_BYTES..);
    Some(reply)
}

/// Encodes a refusal.
pub fn refuse(xid: u32, refusal: Refusal) -> Message {
    refuse_with(xid, None, refusal)
}

/// As [`refuse`], with a verifier of RPCSEC_GSS if the refusal is of a kind that has one.
pub fn refuse_with(xid: u32, verifier: Option<&[u8]>, refusal: Refusal) -> Message {
    refusals::count(refusal);
    let mut encoder = Encoder::new();
    encoder.u32(xid);
    encoder.u32(REPLY);
    let mut accepted = |status: u32| accepted(&mut encoder, verifier, status);
    match refusal {
        Refusal::ProgramUnavailable => accepted(1),
        Refusal::ProgramMismatch { low, high } => {
            accepted(2);
            encoder.u32(low);
            encoder.u32(high);
        }
        Refusal::ProcedureUnavailable => accepted(3),
        Refusal::GarbageArguments => accepted(4),
        Refusal::SystemError => accepted(5),
        Refusal::RpcMismatch => [1, 0, RPC_VERSION, RPC_VERSION].iter().for_each(|word| encoder.u32(*word)),
        Refusal::Auth(status) => [1, 1, status].iter().for_each(|word| encoder.u32(*word)),
    }
    encoder.finish()
}

/// Parses a reply from its status on. The returned decoder holds the results.
pub fn parse_reply(rest: Decoder) -> Result<Result<Decoder, Refusal>, xdr::Error> {
    parse_reply_with(rest).map(|(_, results)| results)
}

/// As [`parse_reply`], with the verifier if it is one of RPCSEC_GSS. It is empty otherwise.
pub fn parse_reply_with(mut rest: Decoder) -> Result<(Bytes, Result<Decoder, Refusal>), xdr::Error> {
    match rest.u32()? {
        0 => {}
        1 => {
            let refusal = match rest.u32()? {
                0 => Refusal::RpcMismatch,
                _ => Refusal::Auth(rest.u32()?),
            };
            return Ok((Bytes::new(), Err(refusal)));
        }
        value => return Err(xdr::Error::Discriminant { name: "reply_stat", value }),
    }
    let flavor = rest.u32()?;
    let verifier = rest.shared(VERIFIER_MAX_BYTES)?;
    let verifier = if flavor == RPCSEC_GSS { verifier } else { Bytes::new() };
    let results = match rest.u32()? {
        0 => Ok(rest),
        1 => Err(Refusal::ProgramUnavailable),
        2 => Err(Refusal::ProgramMismatch { low: rest.u32()?, high: rest.u32()? }),
        3 => Err(Refusal::ProcedureUnavailable),
        4 => Err(Refusal::GarbageArguments),
        _ => Err(Refusal::SystemError),
    };
    Ok((verifier, results))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_header_comes_back() {
        let header =
            CallHeader { xid: 7, program: 100_003, version: 3, procedure: 1, credential: Credential::None };
        let bytes = xdr::to_bytes(&header).unwrap();
        assert_eq!(bytes.len(), 40);
        let Incoming::Call(parsed, rest) = Incoming::parse(bytes).unwrap() else { panic!("a call") };
        assert_eq!((parsed, rest.remaining()), (header, 0));
    }

    #[test]
    fn refusals_come_back() {
        for refusal in [
            Refusal::ProgramUnavailable,
            Refusal::ProgramMismatch { low: 2, high: 3 },
            Refusal::ProcedureUnavailable,
            Refusal::GarbageArguments,
            Refusal::SystemError,
            Refusal::RpcMismatch,
            Refusal::Auth(AUTH_TOOWEAK),
        ] {
            let Incoming::Reply { xid: 9, rest } = Incoming::parse(refuse(9, refusal).first).unwrap() else {
                panic!("a reply to call 9")
            };
            assert_eq!(parse_reply(rest).unwrap().unwrap_err(), refusal);
        }
        let mut encoder = success(3);
        encoder.u32(5);
        let Incoming::Reply { rest, .. } = Incoming::parse(encoder.finish().first).unwrap() else {
            panic!("a reply")
        };
        assert_eq!(parse_reply(rest).unwrap().unwrap().u32(), Ok(5));
    }

    proptest! {
        #[test]
        fn no_record_panics(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            if let Ok(Incoming::Reply { rest, .. }) = Incoming::parse(bytes.into()) {
                let _ = parse_reply(rest);
            }
        }
    }
}
