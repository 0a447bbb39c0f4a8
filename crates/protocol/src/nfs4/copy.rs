//! COPY, COPY_NOTIFY, CLONE and the offloads (RFC 7862, sections 15.2, 15.3, 15.8, 15.9 and 15.13).

use xdr::{List, Xdr};

use super::{Limited, Netaddr, Nfstime, Outcome, StableHow, Stateid, Verifier};

/// The most addresses of a server.
const SERVERS_MAX: usize = 64;

/// `COPY4args`: copies from the saved file to the current one.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyArgs {
    /// The stateid basis of the reads.
    pub src_stateid: Stateid,
    /// The stateid basis of the writes.
    pub dst_stateid: Stateid,
    /// First byte in the source.
    pub src_offset: u64,
    /// First byte in the destination.
    pub dst_offset: u64,
    /// Number of bytes; zero means to the end of the file.
    pub count: u64,
    /// Copy the bytes in order.
    pub consecutive: bool,
    /// Finish before the reply.
    pub synchronous: bool,
    /// The servers that have the source; if empty, this one.
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
    /// The offload, if the copy continues.
    pub callback_id: Option<Stateid>,
    /// Number of bytes written.
    pub count: u64,
    /// How durable they are.
    pub committed: StableHow,
    /// Changes if unstable writes may have been lost.
    pub writeverf: Verifier,
}

/// `copy_requirements4`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct CopyRequirements {
    /// The bytes must be copied in order.
    pub consecutive: bool,
    /// The copy must finish before the reply.
    pub synchronous: bool,
}

/// `COPY4resok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CopyOk {
    /// The result of the copy.
    pub response: WriteResponse,
    /// How the server copies.
    pub requirements: CopyRequirements,
}

super::table::failure_with_body! {
    /// The error of COPY.
    CopyFailure: /// `NFS4ERR_OFFLOAD_NO_REQS`: the requirements that the server can meet.
    OffloadNoReqs(CopyRequirements)
}

/// `COPY_NOTIFY4args`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyNotifyArgs {
    /// The stateid basis of the reads at this server.
    pub src_stateid: Stateid,
    /// The server that will read.
    pub destination_server: Netloc,
}

/// `COPY_NOTIFY4resok`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CopyNotifyOk {
    /// The time within which the copy must begin.
    pub lease_time: Nfstime,
    /// The stateid that the other server must use.
    pub stateid: Stateid,
    /// The addresses where it must read.
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
    /// The outcome, if the copy is complete.
    pub complete: Option<Outcome>,
}

/// `CLONE4args`: clones from the saved file to the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct CloneArgs {
    /// The stateid basis of the reads.
    pub src_stateid: Stateid,
    /// The stateid basis of the writes.
    pub dst_stateid: Stateid,
    /// First byte in the source.
    pub src_offset: u64,
    /// First byte in the destination.
    pub dst_offset: u64,
    /// Number of bytes; zero means to the end of the file.
    pub count: u64,
}
