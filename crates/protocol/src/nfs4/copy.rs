//! COPY, COPY_NOTIFY, CLONE and the offloads (RFC 7862, sections 15.2, 15.3, 15.8, 15.9 and 15.13).

use xdr::{List, Xdr};

use super::{Limited, Netaddr, Nfstime, Outcome, StableHow, Stateid, Verifier};

/// The most addresses of a server.
const SERVERS_MAX: usize = 64;

/// `COPY4args`: out of the saved file into the current one.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyArgs {
    /// By what state it is read.
    pub src_stateid: Stateid,
    /// By what state it is written.
    pub dst_stateid: Stateid,
    /// First byte.
    pub src_offset: u64,
    /// Where it goes.
    pub dst_offset: u64,
    /// Number of bytes; zero is to the end of the file.
    pub count: u64,
    /// In order.
    pub consecutive: bool,
    /// Before the answer.
    pub synchronous: bool,
    /// Where the source is; nowhere is here.
    pub source_server: List<Netloc, SERVERS_MAX>,
}

/// `netloc4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub enum Netloc {
    /// `NL4_NAME`
    #[xdr(case = 1)]
    Name(Limited),
    /// `NL4_URL`
    #[xdr(case = 2)]
    Url(Limited),
    /// `NL4_NETADDR`
    #[xdr(case = 3)]
    Netaddr(Netaddr),
}

/// `write_response4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct WriteResponse {
    /// The offload, if it goes on.
    pub callback_id: Option<Stateid>,
    /// Number of bytes written.
    pub count: u64,
    /// How durable they are.
    pub committed: StableHow,
    /// Changes when unstable writes may have been lost.
    pub writeverf: Verifier,
}

/// `copy_requirements4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct CopyRequirements {
    /// In order.
    pub consecutive: bool,
    /// Before the answer.
    pub synchronous: bool,
}

/// `COPY4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CopyOk {
    /// What was copied.
    pub response: WriteResponse,
    /// How.
    pub requirements: CopyRequirements,
}

super::table::failure_with_body! {
    /// Why COPY failed.
    CopyFailure: /// `NFS4ERR_OFFLOAD_NO_REQS`: this is how it could be done.
    OffloadNoReqs(CopyRequirements)
}

/// `COPY_NOTIFY4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyNotifyArgs {
    /// By what state the file will be read.
    pub src_stateid: Stateid,
    /// By whom.
    pub destination_server: Netloc,
}

/// `COPY_NOTIFY4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyNotifyOk {
    /// How soon it must begin.
    pub lease_time: Nfstime,
    /// By what state the other server is to read.
    pub stateid: Stateid,
    /// Where.
    pub source_server: List<Netloc, SERVERS_MAX>,
}

/// `OFFLOAD_CANCEL4args` and `OFFLOAD_STATUS4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OffloadArgs {
    /// The offload.
    pub stateid: Stateid,
}

/// `OFFLOAD_STATUS4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct OffloadStatusOk {
    /// Number of bytes copied.
    pub count: u64,
    /// How it went, if it is over.
    pub complete: Option<Outcome>,
}

/// `CLONE4args`: out of the saved file into the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CloneArgs {
    /// By what state it is read.
    pub src_stateid: Stateid,
    /// By what state it is written.
    pub dst_stateid: Stateid,
    /// First byte.
    pub src_offset: u64,
    /// Where it goes.
    pub dst_offset: u64,
    /// Number of bytes; zero is to the end of the file.
    pub count: u64,
}
