//! SETCLIENTID, SETCLIENTID_CONFIRM and RENEW, of minor version 0 alone (RFC 7530, sections 16.33, 16.34 and 16.28).

use xdr::Xdr;

use super::{ClientOwner, Clientid, Netaddr, Verifier};

/// `SETCLIENTID4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SetclientidArgs {
    /// Which client, and which incarnation.
    pub client: ClientOwner,
    /// Where callbacks go.
    pub callback: CbClient,
    /// To be given with them.
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
    /// To be given to SETCLIENTID_CONFIRM.
    pub setclientid_confirm: Verifier,
}

super::table::failure_with_body! {
    /// Why SETCLIENTID failed.
    SetclientidFailure: /// `NFS4ERR_CLID_INUSE`: this client has the name.
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
