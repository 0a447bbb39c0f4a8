//! Protection of state, and credentials of callbacks (RFC 8881, sections 18.33, 18.35 and 18.36).

use xdr::{List, Opaque, Xdr};

use super::{Bitmap, Limited, RpcGssSvc, SecOid};

/// The most algorithms in an offer.
const ALGORITHMS_MAX: usize = 32;

/// `state_protect4_a`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum StateProtectArgs {
    /// `SP4_NONE`
    #[xdr(case = 0)]
    None,
    /// `SP4_MACH_CRED`: by the machine's credential.
    #[xdr(case = 1)]
    MachCred(StateProtectOps),
    /// `SP4_SSV`: by a shared secret.
    #[xdr(case = 2)]
    Ssv(SsvSpParms),
}

/// `state_protect4_r`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum StateProtectOk {
    /// `SP4_NONE`
    #[xdr(case = 0)]
    None,
    /// `SP4_MACH_CRED`
    #[xdr(case = 1)]
    MachCred(StateProtectOps),
    /// `SP4_SSV`
    #[xdr(case = 2)]
    Ssv(SsvProtInfo),
}

/// `state_protect_ops4`: numbers of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct StateProtectOps {
    /// Operations that must use the protection.
    pub must_enforce: Bitmap,
    /// Operations that may use it.
    pub must_allow: Bitmap,
}

/// `ssv_sp_parms4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SsvSpParms {
    /// The operations.
    pub ops: StateProtectOps,
    /// Hash algorithms; the server chooses one of them.
    pub hash_algs: List<SecOid, ALGORITHMS_MAX>,
    /// Encryption algorithms; the server chooses one of them.
    pub encr_algs: List<SecOid, ALGORITHMS_MAX>,
    /// Number of SSV versions that are kept.
    pub window: u32,
    /// Number of GSS handles that the client wants.
    pub num_gss_handles: u32,
}

/// `ssv_prot_info4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SsvProtInfo {
    /// The operations.
    pub ops: StateProtectOps,
    /// Index of the chosen hash algorithm in the offer.
    pub hash_alg: u32,
    /// Index of the chosen encryption algorithm in the offer.
    pub encr_alg: u32,
    /// Bytes in the SSV.
    pub ssv_len: u32,
    /// Number of SSV versions that are kept.
    pub window: u32,
    /// GSS handles.
    pub handles: List<Limited, 64>,
}

/// `callback_sec_parms4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum CallbackSecParms {
    /// `AUTH_NONE`
    #[xdr(case = 0)]
    AuthNone,
    /// `AUTH_SYS`
    #[xdr(case = 1)]
    AuthSys(AuthsysParms),
    /// `RPCSEC_GSS`
    #[xdr(case = 6)]
    RpcsecGss(GssCbHandles),
}

/// `authsys_parms` (RFC 5531, appendix A).
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct AuthsysParms {
    /// Arbitrary.
    pub stamp: u32,
    /// Name of the machine.
    pub machinename: Opaque<255>,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub gids: List<u32, 16>,
}

/// `gss_cb_handles4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct GssCbHandles {
    /// The kind of protection.
    pub service: RpcGssSvc,
    /// The server's handle for the context.
    pub handle_from_server: Limited,
    /// The client's handle for the context.
    pub handle_from_client: Limited,
}
