//! What can go wrong in a measurement.

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
        /// As in the URL.
        host: String,
        /// What the resolver says.
        source: io::Error,
    },
    /// The URL asks for something that is not measured.
    #[error("{server}: only proto=tcp is measured; leave out udp")]
    Udp {
        /// The name of the target.
        server: String,
    },
    /// No connection for measuring.
    #[error("cannot connect to {server}: {source}; check that the server runs there")]
    Connect {
        /// Where.
        server: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A call of the preparation brought nothing.
    #[error(
        "{server} does not answer {procedure}: {source}; check that an NFSv3 server runs there (port=, mountport=)"
    )]
    Call {
        /// Where.
        server: SocketAddr,
        /// Of NFS, or MNT.
        procedure: &'static str,
        /// Why.
        source: CallError,
    },
    /// MOUNT refuses.
    #[error("{server} does not let us mount {export}: {status:?}; check the export's name and clients there")]
    Mount {
        /// Who.
        server: SocketAddr,
        /// What.
        export: String,
        /// Why.
        status: mount::Stat,
    },
    /// The tree is there already, from a run that was killed perhaps.
    #[error("{name} exists on {server}: remove it, or say that its files are to be used")]
    Exists {
        /// Where.
        server: SocketAddr,
        /// The directory.
        name: String,
    },
    /// A call of the preparation failed.
    #[error(
        "{server} answers {status:?} to {procedure} of {name}; the benchmark must be able to write there as root"
    )]
    Status {
        /// Who.
        server: SocketAddr,
        /// Of NFS.
        procedure: &'static str,
        /// Of what.
        name: String,
        /// Why.
        status: nfs3::Status,
    },
    /// The server cannot do what the benchmark asks.
    #[error("{server} {what}")]
    Unsuitable {
        /// Who.
        server: SocketAddr,
        /// Does what.
        what: String,
    },
    /// A measurement failed.
    #[error("{server}, {workload}: {fault}")]
    Workload {
        /// The name of the target.
        server: String,
        /// What was measured.
        workload: Workload,
        /// How it failed.
        fault: Fault,
    },
    /// A file could not be made in a local directory.
    #[error("cannot prepare {path}: {source}")]
    Prepare {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// How a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The connection.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// No reply for ten seconds.
    #[error("no answer for ten seconds")]
    UnansweredSince,
    /// The reply is not one.
    #[error("malformed reply: {0}")]
    Malformed(#[from] xdr::Error),
    /// The records are none.
    #[error("malformed record: {0}")]
    Record(#[from] rpc::record::Error),
    /// The reply is to no call of ours.
    #[error("a reply to no call")]
    Stray,
    /// RPC says no.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// NFS says no.
    #[error("{} answered with {status:?}", procedure.name())]
    Status {
        /// What was called.
        procedure: nfs3::Procedure,
        /// What was answered.
        status: nfs3::Status,
    },
    /// Fewer bytes than asked for, where there are more.
    #[error("{} moved {got} of {wanted} bytes", procedure.name())]
    Short {
        /// What was called.
        procedure: nfs3::Procedure,
        /// Bytes moved.
        got: u32,
        /// Bytes wanted.
        wanted: u32,
    },
}
