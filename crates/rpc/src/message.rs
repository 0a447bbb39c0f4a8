//! Call and reply headers (RFC 5531, section 9).

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode, Encoder, Message};

use crate::auth::Credential;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Longest body of a verifier.
const VERIFIER_MAX_BYTES: usize = 400;

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
        let Ok(credential) = Credential::decode(&mut decoder) else {
            return Ok(Incoming::BadCredential { xid });
        };
        let _verifier_flavor = decoder.u32()?;
        let _verifier = decoder.slice(VERIFIER_MAX_BYTES)?;
        Ok(Incoming::Call(CallHeader { xid, program, version, procedure, credential }, decoder))
    }
}

impl Encode for CallHeader {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.xid);
        encoder.u32(CALL);
        encoder.u32(RPC_VERSION);
        encoder.u32(self.program);
        encoder.u32(self.version);
        encoder.u32(self.procedure);
        self.credential.encode(encoder);
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
/// `AUTH_TOOWEAK`: rejected for security reasons.
pub const AUTH_TOOWEAK: u32 = 5;

/// Begins a successful reply: writes its header, and the caller appends the results.
pub fn success(xid: u32) -> Encoder {
    let mut encoder = Encoder::with_capacity(256);
    encoder.u32(xid);
    encoder.u32(REPLY);
    encoder.u32(0); // MSG_ACCEPTED
    Credential::None.encode(&mut encoder);
    encoder.u32(0); // SUCCESS
    encoder
}

/// Encodes a refusal.
pub fn refuse(xid: u32, refusal: Refusal) -> Message {
    let mut encoder = Encoder::new();
    encoder.u32(xid);
    encoder.u32(REPLY);
    let mut accepted = |status: u32| {
        encoder.u32(0);
        Credential::None.encode(&mut encoder);
        encoder.u32(status);
    };
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
pub fn parse_reply(mut rest: Decoder) -> Result<Result<Decoder, Refusal>, xdr::Error> {
    match rest.u32()? {
        0 => {}
        1 => {
            return Ok(Err(match rest.u32()? {
                0 => Refusal::RpcMismatch,
                _ => Refusal::Auth(rest.u32()?),
            }));
        }
        value => return Err(xdr::Error::Discriminant { name: "reply_stat", value }),
    }
    let _verifier_flavor = rest.u32()?;
    let _verifier = rest.slice(VERIFIER_MAX_BYTES)?;
    Ok(match rest.u32()? {
        0 => Ok(rest),
        1 => Err(Refusal::ProgramUnavailable),
        2 => Err(Refusal::ProgramMismatch { low: rest.u32()?, high: rest.u32()? }),
        3 => Err(Refusal::ProcedureUnavailable),
        4 => Err(Refusal::GarbageArguments),
        _ => Err(Refusal::SystemError),
    })
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
