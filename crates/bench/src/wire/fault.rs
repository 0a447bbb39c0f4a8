//! Errors of a measurement.

use std::io;
use std::net::SocketAddr;

use protocol::{mount, nfs3};
use rpc::CallError;
use rpc::message::Refusal;

use super::Workload;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name of the server has no address.
    #[error("cannot find the server `{host}`: {source}; check the name, or give an address")]
    Resolve {
        /// The host name of the URL.
        host: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// The URL asks for a transport that is not measured.
    #[error("{server}: only proto=tcp is measured; leave out udp")]
    Udp {
        /// The name of the target.
        server: String,
    },
    /// A connection for the measurement failed.
    #[error("cannot connect to {server}: {source}; check that the server runs there")]
    Connect {
        /// The server's address.
        server: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A call of the preparation got no valid reply.
    #[error(
        "{server} does not answer {procedure}: {source}; check that an NFSv3 server runs there (port=, mountport=)"
    )]
    Call {
        /// The server's address.
        server: SocketAddr,
        /// The NFS procedure, or MNT.
        procedure: &'static str,
        /// The cause.
        source: CallError,
    },
    /// MOUNT refused the mount.
    #[error("{server} does not let us mount {export}: {status:?}; check the export's name and clients there")]
    Mount {
        /// The server's address.
        server: SocketAddr,
        /// The path of the export.
        export: String,
        /// The status of the reply.
        status: mount::Stat,
    },
    /// The tree already exists, perhaps from a run that was killed.
    #[error("{name} exists on {server}: remove it, or say that its files are to be used")]
    Exists {
        /// The server's address.
        server: SocketAddr,
        /// The name of the directory.
        name: String,
    },
    /// The server returned an error to a call of the preparation.
    #[error(
        "{server} answers {status:?} to {procedure} of {name}; the benchmark must be able to write there as root"
    )]
    Status {
        /// The server's address.
        server: SocketAddr,
        /// The NFS procedure.
        procedure: &'static str,
        /// The name that the call was for.
        name: String,
        /// The status of the reply.
        status: nfs3::Status,
    },
    /// The server lacks a capability that the benchmark needs.
    #[error("{server} {what}")]
    Unsuitable {
        /// The server's address.
        server: SocketAddr,
        /// The problem, in words that follow the server's address.
        what: String,
    },
    /// A measurement failed.
    #[error("{server}, {workload}: {fault}")]
    Workload {
        /// The name of the target.
        server: String,
        /// The workload.
        workload: Workload,
        /// The cause.
        fault: Fault,
    },
    /// A local file could not be created.
    #[error("cannot prepare {path}: {source}")]
    Prepare {
        /// Its path.
        path: std::path::PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// No reply within ten seconds.
    #[error("no answer for ten seconds")]
    NoReply,
    /// The reply could not be decoded.
    #[error("malformed reply: {0}")]
    Malformed(#[from] xdr::Error),
    /// The stream contains an invalid record mark.
    #[error("malformed record: {0}")]
    Record(#[from] rpc::record::Error),
    /// The reply belongs to no call in flight.
    #[error("a reply to no call")]
    Stray,
    /// The RPC layer of the server refused the call.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The server returned an NFS error.
    #[error("{} answered with {status:?}", procedure.name())]
    Status {
        /// The procedure.
        procedure: nfs3::Procedure,
        /// The status of the reply.
        status: nfs3::Status,
    },
    /// The server moved fewer bytes than requested, although there are more.
    #[error("{} moved {got} of {wanted} bytes", procedure.name())]
    Short {
        /// The procedure.
        procedure: nfs3::Procedure,
        /// Bytes moved.
        got: u32,
        /// Bytes requested.
        wanted: u32,
    },
}
