//! The messages of RPCSEC_GSS, version 1 (RFC 2203, section 5).

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode, Encoder, Opaque, Xdr};

/// `RPCSEC_GSS` as an authentication flavor.
pub const RPCSEC_GSS: u32 = 6;
/// `RPCSEC_GSS_CREDPROBLEM`: the context is not known. The client makes a new one.
pub const CREDPROBLEM: u32 = 13;
/// `RPCSEC_GSS_CTXPROBLEM`: the context cannot be used any more. The client makes a new one.
pub const CTXPROBLEM: u32 = 14;
/// `MAXSEQ`: sequence numbers stay below it.
pub const MAXSEQ: u32 = 0x8000_0000;
/// `RPCSEC_GSS_VERS_1`
const VERSION: u32 = 1;
/// Longest handle of a context. Ours have 16 bytes, those of other servers up to 36.
pub const HANDLE_MAX_BYTES: usize = 64;
/// Longest token of GSS-API. A ticket with the groups of an Active Directory may have 48 KiB.
pub const TOKEN_MAX_BYTES: usize = 64 << 10;

/// `rpc_gss_proc_t`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum Procedure {
    /// `RPCSEC_GSS_DATA`
    Data = 0,
    /// `RPCSEC_GSS_INIT`
    Init = 1,
    /// `RPCSEC_GSS_CONTINUE_INIT`
    ContinueInit = 2,
    /// `RPCSEC_GSS_DESTROY`
    Destroy = 3,
}

/// `rpc_gss_service_t`: how arguments and results are protected. The header of a call is always signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Xdr)]
pub enum Protection {
    /// `rpc_gss_svc_none`: not at all.
    None = 1,
    /// `rpc_gss_svc_integrity`: signed.
    Integrity = 2,
    /// `rpc_gss_svc_privacy`: encrypted.
    Privacy = 3,
}

/// `rpc_gss_cred_vers_1_t`
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GssCredential {
    /// The purpose of the call.
    pub procedure: Procedure,
    /// The sequence number.
    pub sequence: u32,
    /// How arguments and results are protected.
    pub protection: Protection,
    /// The context, as the server named it.
    pub handle: Opaque<HANDLE_MAX_BYTES>,
}

impl GssCredential {
    /// Reads the body of a credential.
    ///
    /// # Errors
    /// If it does not decode, or has another version.
    pub fn parse(body: Bytes) -> Result<GssCredential, xdr::Error> {
        let mut decoder = Decoder::new(body);
        match decoder.u32()? {
            VERSION => {}
            value => return Err(xdr::Error::Discriminant { name: "rpc_gss_cred_t", value }),
        }
        let credential = GssCredential::decode(&mut decoder)?;
        decoder.finish()?;
        Ok(credential)
    }

    /// Appends the flavor and the body.
    pub fn append(&self, encoder: &mut Encoder) {
        let handle = self.handle.len();
        encoder.u32(RPCSEC_GSS);
        encoder.u32((20 + handle + xdr::padding(handle)) as u32);
        encoder.u32(VERSION);
        self.encode(encoder);
    }
}

/// The credential of a call that nobody has checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The credential.
    pub credential: GssCredential,
    /// The header of the call up to its credential, which the verifier signs.
    pub signed: Bytes,
    /// The verifier. Empty if it has another flavor.
    pub verifier: Bytes,
}

/// `rpc_gss_init_res`: the reply while a context is made.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct InitResult {
    /// The server's name for the context.
    pub handle: Opaque<HANDLE_MAX_BYTES>,
    /// `gss_major`: the major status of GSS-API.
    pub major: u32,
    /// `gss_minor`: the status of the mechanism.
    pub minor: u32,
    /// `seq_window`: so many sequence numbers may be in use at once.
    pub window: u32,
    /// The token for the client's end.
    pub token: Opaque<TOKEN_MAX_BYTES>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_credential_is_as_in_the_rfc() {
        let handle = Opaque::new(&b"abcde"[..]).unwrap();
        let credential = GssCredential {
            procedure: Procedure::Data,
            sequence: 7,
            protection: Protection::Privacy,
            handle,
        };
        let mut encoder = Encoder::new();
        credential.append(&mut encoder);
        let bytes = encoder.finish().to_bytes().unwrap();
        let expected = [6, 28, 1, 0, 7, 3, 5].map(u32::to_be_bytes).concat();
        assert_eq!(bytes, [&expected[..], b"abcde\0\0\0"].concat());
        assert_eq!(GssCredential::parse(bytes.slice(8..)).unwrap(), credential);
        let mut other_version = bytes.slice(8..).to_vec();
        other_version[3] = 2;
        assert!(GssCredential::parse(other_version.into()).is_err());
    }

    proptest! {
        #[test]
        fn no_credential_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = GssCredential::parse(bytes.into());
        }
    }
}
