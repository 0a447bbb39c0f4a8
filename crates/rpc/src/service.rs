//! What answers calls.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use xdr::{Decoder, Message};

use crate::connection::Connection;
use crate::message::{self, CallHeader, Refusal};
use crate::udp::Datagrams;

/// A call on its way to a service.
#[derive(Debug)]
pub struct Call {
    /// Program, version, procedure, credential, xid.
    pub header: CallHeader,
    /// The arguments.
    pub arguments: Decoder,
    /// Where it came from.
    pub peer: SocketAddr,
    /// The connection it came on, which can be called back; `None` over UDP.
    pub connection: Option<Arc<Connection>>,
    /// The socket that it came through in a datagram, through which its sender can be called back.
    pub datagrams: Option<Datagrams>,
    /// The call was received before, and may have taken effect: the process that received it died before it answered, or
    /// the answer may have been lost on a relay.
    pub resent: bool,
}

impl Call {
    /// A successful reply, to which the results are appended.
    pub fn reply(&self) -> xdr::Encoder {
        message::success(self.header.xid)
    }
}

/// What a call asks for, for an estimate of its reply.
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
    /// Answered; the message is what [`Call::reply`] began.
    Reply(Message),
    /// Not carried out.
    Refuse(Refusal),
    /// Not carried out, and no answer at all: the client will ask again.
    Drop,
}

/// Whether a call may be carried out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remember {
    /// Doing it again does no harm.
    No,
    /// The reply is remembered, and given to the same call from wherever it comes.
    Reply,
    /// The same, until the client is known to have heard it. Then the same call from another port runs again, marked as
    /// resent if it took effect: it must do no harm to what others have done since.
    UntilHeard,
}

/// The future of an answer.
pub type Answering = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Answers calls of one or more programs.
pub trait Service: Send + Sync + 'static {
    /// May this peer ask for anything? A connection asks once, when it begins; a datagram each time. The calls of a peer
    /// that is not admitted go to [`Service::turn_away`].
    fn admits(&self, peer: SocketAddr) -> bool {
        let _ = peer;
        true
    }

    /// The answer to a peer that is not admitted. It keeps nothing of the call, and waits for nothing.
    fn turn_away(&self, call: &Call) -> Outcome {
        let _ = call;
        Refusal::Auth(message::AUTH_TOOWEAK).into()
    }

    /// Answers a call. The future is polled at once on the connection's own task, and becomes a task of its own only
    /// if it has to wait.
    fn call(self: Arc<Self>, call: Call) -> Answering;

    /// An estimate of the memory that the reply to a call will take up. It is asked for where the answer has to wait, and
    /// its peer is charged that much meanwhile.
    fn reply_bytes(&self, asked: &Asked) -> usize {
        let _ = asked;
        0
    }

    /// Whether a call must not be carried out twice.
    fn remember(&self, call: &Call) -> Remember;
}
