//! SETCLIENTID, SETCLIENTID_CONFIRM and RENEW, which only minor version 0 has (RFC 7530, sections 16.33,
//! 16.34 and 16.28).

use xdr::Xdr;

use super::{ClientOwner, Clientid, Netaddr, Verifier};

/// `SETCLIENTID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetclientidArgs {
    /// The client and its incarnation.
    pub client: ClientOwner,
    /// The target of callbacks.
    pub callback: CbClient,
    /// The server sends it in callbacks.
    pub callback_ident: u32,
}

/// `cb_client4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CbClient {
    /// Program number.
    pub cb_program: u32,
    /// Address.
    pub cb_location: Netaddr,
}

/// `SETCLIENTID4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetclientidOk {
    /// The client.
    pub clientid: Clientid,
    /// The client passes it to SETCLIENTID_CONFIRM.
    pub setclientid_confirm: Verifier,
}

super::table::failure_with_body! {
    /// The error of SETCLIENTID.
    SetclientidFailure: /// `NFS4ERR_CLID_INUSE`: the client at this address uses the name.
    ClidInuse(Netaddr)
}

/// `SETCLIENTID_CONFIRM4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SetclientidConfirmArgs {
    /// The client.
    pub clientid: Clientid,
    /// From SETCLIENTID.
    pub setclientid_confirm: Verifier,
}

/// `RENEW4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct RenewArgs {
    /// The client.
    pub clientid: Clientid,
}
