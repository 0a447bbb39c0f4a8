//! Services: the interface for answering calls.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use xdr::{Decoder, Message};

use crate::connection::Connection;
use crate::message::{self, CallHeader, Refusal};
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
}

impl Call {
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
    /// Not executed.
    Refuse(Refusal),
    /// Not executed, and not answered: the client sends the call again.
    Drop,
}

/// Whether the server may execute a call again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// The call is idempotent.
    No,
    /// The reply cache keeps the reply and gives it to every copy of the call, from any port.
    Reply,
    /// As [`Remember::Reply`], until the client is known to have heard the reply. Then a copy from another
    /// port runs again, marked as resent if the first call took effect. Such a call must not undo changes
    /// that others have made since.
    UntilHeard,
}

/// The future of an outcome.
pub type Answering = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Answers calls of one or more programs.
pub trait Service: Send + Sync + 'static {
    /// May this peer call at all? The server asks once when a connection begins, and for each datagram. Calls
    /// of a peer that is not admitted go to [`Service::turn_away`].
    fn admits(&self, peer: SocketAddr) -> bool {
        let _ = peer;
        true
    }

    /// The answer to a peer that is not admitted. It keeps no state of the call, and does not wait.
    fn turn_away(&self, call: &Call) -> Outcome {
        let _ = call;
        Refusal::Auth(message::AUTH_TOOWEAK).into()
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

    /// Whether the server must not execute the call twice.
    fn remember(&self, call: &Call) -> Remember;
}
