//! Single calls: to the port mapper, to MOUNT, and to NFS before it is known to be there.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::{Call, portmap};
use rpc::message::Refusal;
use rpc::tls::{self, Connector};
use rpc::{CallError, Link, LinkOptions, Outgoing, Patience, SourcePort, TlsLink, Transport};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use xdr::{Decode, Encode, Encoder};

use crate::transport::{credential, machine_name};

/// How long a TCP connection may take to be established.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a port mapper may take. A machine without one may drop the packets.
const PORTMAPPER: Duration = Duration::from_secs(2);

/// The server to ask, and how.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) server: SocketAddr,
    pub(crate) transport: Transport,
    pub(crate) source: SourcePort,
    pub(crate) tls: Option<Arc<Connector>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The connection could not be made.
    #[error("cannot connect: {0}")]
    Connect(#[from] io::Error),
    /// The connection was made, or datagrams were sent, but no answer came.
    #[error("no answer")]
    NoAnswer,
    /// There is no TLS with the server, and nothing was asked.
    #[error("{0}")]
    Tls(Arc<tls::Error>),
    /// The server refused the call.
    #[error("{0}")]
    Refused(Refusal),
    /// The answer makes no sense.
    #[error("the answer makes no sense: {0}")]
    Malformed(#[from] xdr::Error),
}

/// Makes one call as the machine. Does not retry a connection that is refused.
pub(crate) async fn ask<C: Call>(
    way: Way,
    args: &C::Args,
    patience: Duration,
) -> Result<C::Results, AskError> {
    if way.transport == Transport::Tcp {
        let connecting = timeout(patience.min(CONNECT), TcpStream::connect(way.server)).await;
        connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    }
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    let outgoing = Outgoing {
        program: C::PROGRAM,
        version: C::VERSION,
        procedure: C::NUMBER,
        credential: rpc::Credential::Sys(credential(&vfs::Principal::Machine, machine_name())),
        arguments: encoder.finish(),
    };
    let mut options = LinkOptions::new(way.server);
    (options.transport, options.source) = (way.transport, way.source);
    options.tls = way.tls.map(|connector| TlsLink { connector, probe: (C::PROGRAM, C::VERSION) });
    if way.transport == Transport::Udp {
        options.timeo = Duration::from_millis(500);
    }
    let link = Link::new(options);
    let answer = tokio::select! {
        biased;
        answer = link.call(outgoing, Patience::Until(Instant::now() + patience)) => answer,
        failed = link.tls_failed() => return Err(AskError::Tls(failed)),
    };
    match answer {
        Ok(mut answer) => Ok(C::Results::decode(&mut answer.results)?),
        Err(CallError::Refused(refusal)) => Err(AskError::Refused(refusal)),
        Err(CallError::Malformed(error)) => Err(error.into()),
        Err(CallError::TimedOut | CallError::TooLarge(_) | CallError::Closed | CallError::Context(_)) => {
            Err(AskError::NoAnswer)
        }
    }
}

/// The port of a program, if a port mapper answers and knows it.
pub(crate) async fn port_of<C: Call>(portmapper: SocketAddr, transport: Transport) -> Option<u16> {
    let prot = match transport {
        Transport::Tcp => portmap::TCP,
        Transport::Udp => portmap::UDP,
    };
    let wanted = portmap::Mapping { prog: C::PROGRAM, vers: C::VERSION, prot, port: 0 };
    // Ask the port mapper over the same transport as the program: firewalls let that one pass.
    // It has no TLS. A wrong answer leads to a server that cannot prove its name.
    let way = Way { server: portmapper, transport, source: SourcePort::Any, tls: None };
    let port = ask::<portmap::call::Getport>(way, &wanted, PORTMAPPER).await.ok()?;
    u16::try_from(port).ok().filter(|&port| port != 0)
}
