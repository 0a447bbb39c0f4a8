//! SECINFO and SECINFO_NO_NAME (RFC 8881, sections 18.29 and 18.45).

use xdr::{List, Opaque, Xdr};

use super::Component;

/// `sec_oid4`.
pub type SecOid = Opaque<256>;

/// `rpc_gss_svc_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum RpcGssSvc {
    /// `RPC_GSS_SVC_NONE`
    None = 1,
    /// `RPC_GSS_SVC_INTEGRITY`
    Integrity = 2,
    /// `RPC_GSS_SVC_PRIVACY`
    Privacy = 3,
}

/// `SECINFO4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SecinfoArgs {
    /// The name in the current directory.
    pub name: Component,
}

/// `SECINFO_NO_NAME4args`, which is `secinfo_style4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub enum SecinfoStyle {
    /// `SECINFO_STYLE4_CURRENT_FH`
    CurrentFh = 0,
    /// `SECINFO_STYLE4_PARENT`
    Parent = 1,
}

/// `secinfo4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Secinfo {
    /// `RPCSEC_GSS`
    #[xdr(case = 6)]
    RpcsecGss(RpcsecGssInfo),
    /// `AUTH_NONE`, `AUTH_SYS` and the like.
    #[xdr(default)]
    Flavor(u32),
}

/// `rpcsec_gss_info`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RpcsecGssInfo {
    /// The mechanism.
    pub oid: SecOid,
    /// Quality of protection.
    pub qop: u32,
    /// The kind of protection.
    pub service: RpcGssSvc,
}

/// `SECINFO4resok` and `SECINFO_NO_NAME4resok`, in the order of preference.
pub type SecinfoOk = List<Secinfo, 64>;
