//! Services: the interface for answering calls.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use xdr::{Decoder, Message};

use crate::connection::Connection;
use crate::message::{self, CallHeader, Refusal};
use crate::tls::TransportSecurity;
use crate::udp::Datagrams;

/// A call handed to a service.
#[derive(Debug)]
pub struct Call {
    /// Program, version, procedure, credential, xid.
    pub header: CallHeader,
    /// The arguments.
    pub arguments: Decoder,
    /// The caller's address and port.
    pub peer: SocketAddr,
    /// The connection on which the call came, for calling back; `None` over UDP.
    pub connection: Option<Arc<Connection>>,
    /// The socket of a call that came in a datagram, for calling back.
    pub datagrams: Option<Datagrams>,
    /// The call was received before and may have taken effect: the process that received it died before
    /// answering, or the answer may have been lost on a relay.
    pub resent: bool,
    /// The supplementary groups that the service has looked up for the user. Those of the credential then do
    /// not count.
    pub groups: Option<Arc<[u32]>>,
}

impl Call {
    /// What protects the call on its way. Nothing protects a datagram.
    pub fn security(&self) -> TransportSecurity {
        self.connection.as_ref().map_or(TransportSecurity::None, |connection| connection.security())
    }

    /// Begins a successful reply; the caller appends the results.
    pub fn reply(&self) -> xdr::Encoder {
        message::success(self.header.xid)
    }
}

/// A call's request, for estimating the size of its reply.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// The arguments.
    pub arguments: Decoder,
}

impl Asked {
    pub(crate) fn new(header: &CallHeader, arguments: &Decoder) -> Asked {
        let CallHeader { program, version, procedure, .. } = *header;
        Asked { program, version, procedure, arguments: arguments.clone() }
    }
}

/// How a call ended.
#[derive(Debug)]
pub enum Outcome {
    /// Executed. The message is the one that [`Call::reply`] began.
    Reply(Message),
    /// Not executed. This reply tells the client to make the call again, perhaps in another session.
    PutOff(Message),
    /// Not executed.
    Refuse(Refusal),
    /// Not executed, and not answered: the client sends the call again.
    Drop,
}

/// Whether the server may execute a call again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remember {
    /// The call is idempotent.
    No,
    /// The reply cache keeps the reply and gives it to every copy of the call, from any port.
    Reply,
    /// As [`Remember::Reply`], until the client is known to have heard the reply. Then a copy from another
    /// port runs again, marked as resent if the first call took effect. Such a call must not undo changes
    /// that others have made since.
    UntilHeard {
        /// The arguments by which the server knows the call if the client makes it again with another xid,
        /// because it was put off ([`Outcome::PutOff`]). `None` if no client does that.
        sessionless: Option<Bytes>,
    },
    /// A slot of a session keeps the reply. The reply cache does so for a restart alone.
    InSession {
        /// As for [`Remember::UntilHeard`]: the arguments as they are in any session.
        sessionless: Bytes,
    },
}

/// The future of an outcome.
pub type Answering = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Answers calls of one or more programs.
pub trait Service: Send + Sync + 'static {
    /// May this peer call at all over a connection of this security? The server asks once when a connection
    /// begins, again after the handshake of TLS, and for each datagram. Calls of a peer that is not admitted
    /// go to [`Service::turn_away`].
    fn admits(&self, peer: SocketAddr, security: TransportSecurity) -> bool {
        let _ = (peer, security);
        true
    }

    /// The answer to a peer that is not admitted. It keeps no state of the call, and does not wait.
    fn turn_away(&self, call: &Call) -> Outcome {
        let _ = call;
        Refusal::Auth(message::AUTH_TOOWEAK).into()
    }

    /// Does the service take this call of an admitted peer? The server asks before anything is kept of a call
    /// that has no proven user; others go to [`Service::turn_away`].
    fn takes(&self, call: &Call) -> bool {
        let _ = call;
        true
    }

    /// Answers a call. The connection's task polls the future once, and spawns a task for it only if it has
    /// to wait.
    fn call(self: Arc<Self>, call: Call) -> Answering;

    /// Estimates the memory of the reply to a call, in bytes. The connection asks if the answer has to wait,
    /// and charges the peer that much meanwhile.
    fn reply_bytes(&self, asked: &Asked) -> usize {
        let _ = asked;
        0
    }

    /// May the call overtake those of its peer that wait in line ([`crate::fair`])? It must if it gives
    /// something back that calls of others may wait for, keeps a client's state alive, or has a time limit.
    fn is_urgent(&self, asked: &Asked) -> bool {
        let _ = asked;
        false
    }

    /// A call of this peer has to wait in line.
    fn waits(&self, peer: SocketAddr) {
        let _ = peer;
    }

    /// Whether the server must not execute the call twice.
    fn remember(&self, call: &Call) -> Remember;
}
