//! Authentication flavors: AUTH_NONE and AUTH_SYS (RFC 5531, section 8 and appendix A), AUTH_TLS (RFC 9289),
//! RPCSEC_GSS (RFC 2203).

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode, Encoder, List, Opaque, Xdr};

use crate::rpcsec_gss::{Claim, GssCredential, Proven, RPCSEC_GSS};

/// `AUTH_NONE`.
pub const AUTH_NONE: u32 = 0;
/// `AUTH_SYS`.
pub const AUTH_SYS: u32 = 1;
/// `AUTH_TLS` (RFC 9289).
pub const AUTH_TLS: u32 = 7;
/// Longest body of a credential or verifier.
const BODY_MAX_BYTES: usize = 400;

/// `authsys_parms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct AuthSys {
    /// An arbitrary number.
    pub stamp: u32,
    /// The client's name for itself.
    pub machine: Opaque<255>,
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Supplementary group IDs.
    pub gids: List<u32, 16>,
}

/// The identity that a call claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// No identity.
    None,
    /// A Unix user, not proven.
    Sys(AuthSys),
    /// No identity, and a question: does the server offer TLS?
    Tls,
    /// A user with a context, not checked.
    Gss(Box<Claim>),
    /// A user with a context that the server has checked. It is never on the wire.
    Proven(Proven),
    /// A flavor that we do not implement.
    Other(u32),
}

impl Encode for Credential {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Credential::None | Credential::Proven(_) => encoder.u64(0),
            Credential::Sys(sys) => {
                encoder.u32(AUTH_SYS);
                let padded = |bytes: usize| bytes + xdr::padding(bytes);
                encoder.u32((20 + padded(sys.machine.len()) + 4 * sys.gids.len()) as u32);
                sys.encode(encoder);
            }
            Credential::Tls => {
                encoder.u32(AUTH_TLS);
                encoder.u32(0);
            }
            Credential::Gss(claim) => claim.credential.append(encoder),
            Credential::Other(flavor) => {
                encoder.u32(*flavor);
                encoder.u32(0);
            }
        }
    }
}

impl Decode for Credential {
    fn decode(decoder: &mut Decoder) -> Result<Credential, xdr::Error> {
        let flavor = decoder.u32()?;
        let body = decoder.shared(BODY_MAX_BYTES)?;
        Ok(match flavor {
            AUTH_NONE => Credential::None,
            AUTH_SYS => Credential::Sys(xdr::from_bytes(body)?),
            AUTH_TLS if body.is_empty() => Credential::Tls,
            RPCSEC_GSS => {
                let credential = GssCredential::parse(body)?;
                Credential::Gss(Box::new(Claim { credential, signed: Bytes::new(), verifier: Bytes::new() }))
            }
            other => Credential::Other(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auth_sys_is_an_opaque_body() {
        let sys = AuthSys {
            stamp: 1,
            machine: Opaque::new(&b"host1"[..]).unwrap(),
            uid: 2,
            gid: 3,
            gids: List::new(vec![4, 5]).unwrap(),
        };
        let bytes = xdr::to_bytes(&Credential::Sys(sys.clone())).unwrap();
        assert_eq!(&bytes[..8], b"\0\0\0\x01\0\0\0\x24");
        assert_eq!(bytes.len(), 8 + 0x24);
        assert_eq!(xdr::from_bytes::<Credential>(bytes).unwrap(), Credential::Sys(sys));
    }

    #[test]
    fn more_than_sixteen_groups_are_refused() {
        let mut encoder = Encoder::new();
        encoder.u32(AUTH_SYS);
        encoder.u32(20 + 4 * 17);
        (0..5).for_each(|word| encoder.u32(if word == 4 { 17 } else { 0 }));
        (0..17).for_each(|group| encoder.u32(group));
        assert!(xdr::from_bytes::<Credential>(encoder.finish().to_bytes().unwrap()).is_err());
    }
}
