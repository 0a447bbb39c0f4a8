//! Sends compounds to the origin: over several links, with the caller's credential, for as long as the caller
//! or mount waits.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use protocol::Call;
use protocol::nfs4::{ArgOp, Attr, Bitmap, CompoundArgs, CompoundRes, Operation, call};
use rpc::message::Refusal;
use rpc::{CallError, Patience};
use tokio::time::{Instant, timeout_at};
use vfs::{Principal, Result, Status};
use xdr::{Decode, Encode, Encoder, Opaque};

use crate::callers::{Callers, Unsent};
use crate::connect::ConnectError;
use crate::counts::Counting;
use crate::links::Links;
use crate::nonsense::Nonsense;
use crate::pulse::Pulse;
use crate::replica::{Mirror, Replica};
use crate::url::Url;

/// The connections to one origin.
#[derive(Debug)]
pub(crate) struct Channel {
    links: Links,
    callers: Callers,
    /// How long a call may take on a `soft` mount.
    soft: Option<Duration>,
    /// Compounds, by their main operation.
    pub(crate) compounds: Counting<Operation>,
    /// Operations within them.
    pub(crate) operations: Counting<Operation>,
    pub(crate) nonsense: Nonsense,
    pub(crate) pulse: Pulse,
    /// A copy of the record of what is held.
    mirror: OnceLock<Arc<Mirror>>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) compound: CompoundRes,
    /// The call was sent more than once.
    pub(crate) retransmitted: bool,
}

/// A call to be made.
pub(crate) struct Sending<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) args: &'a CompoundArgs,
    /// The main operation of the compound.
    pub(crate) main: Operation,
    /// The link to use. `None` takes the next one in turn.
    pub(crate) link: Option<usize>,
    /// The caller's deadline, whatever the patience of the mount.
    pub(crate) deadline: Option<Instant>,
}

impl Channel {
    pub(crate) fn new(links: Links, callers: Callers, soft: Option<Duration>, nonsense: Nonsense) -> Channel {
        Channel {
            links,
            callers,
            soft,
            compounds: Counting::default(),
            operations: Counting::default(),
            nonsense,
            pulse: Pulse::default(),
            mirror: OnceLock::new(),
        }
    }

    /// Keeps a copy of the record there, if none is kept yet.
    pub(crate) fn replicate(&self, replica: Arc<dyn Replica>) {
        self.mirror.get_or_init(|| Mirror::start(replica));
    }

    /// The copy of the record.
    pub(crate) fn mirror(&self) -> Option<&Arc<Mirror>> {
        self.mirror.get()
    }

    /// Waits until the copy of the record has all changes so far.
    pub(crate) async fn replicated(&self) {
        if let Some(mirror) = self.mirror.get() {
            mirror.stored().await;
        }
    }

    /// Makes the context of the machine, so that it is known why there is none.
    ///
    /// # Errors
    /// As [`Callers::prepare`].
    pub(crate) async fn prepare(&self, url: &Url, patience: Patience) -> Result<(), ConnectError> {
        let program = (call::Compound::PROGRAM, call::Compound::VERSION);
        self.callers.prepare(url, (self.links.first(), &self.pulse), program, patience).await
    }

    /// Waits until the user of a compound can call, so that no slot of a session is taken meanwhile.
    ///
    /// # Errors
    /// As [`Channel::send`], before anything was sent.
    pub(crate) async fn ready(
        &self,
        principal: &Principal,
        operations: &[ArgOp],
        limit: Option<Instant>,
    ) -> Result<()> {
        if !self.callers.have_contexts() || operations.iter().all(needs_no_right) {
            return Ok(());
        }
        let on = (self.links.first(), &self.pulse);
        let program = (call::Compound::PROGRAM, call::Compound::VERSION);
        let patience = limit.map_or(Patience::Hard, Patience::Until);
        match self.callers.ready(on, principal, program, patience).await {
            Err(CallError::Context(_)) => Err(Status::NoTicket.into()),
            // The call itself has the same fate, and tells.
            _ => Ok(()),
        }
    }

    /// The name of this machine.
    pub(crate) fn machine(&self) -> &Opaque<255> {
        self.callers.machine()
    }

    /// How long a call may take on a `soft` mount.
    pub(crate) fn soft(&self) -> Option<Duration> {
        self.soft
    }

    /// The links.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    /// The number of calls that wait for an answer.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.links.calls_in_flight()
    }

    /// Makes a call and decodes its results, which may include any failure that the origin reports.
    ///
    /// # Errors
    /// `Delay` if the deadline passes. `Io` if the patience of a `soft` mount ends, if the origin refuses the
    /// call, or if its answer does not decode. `Access` if the origin rejects the credential.
    pub(crate) async fn send(&self, sending: Sending<'_>) -> Result<Answer> {
        let started = Instant::now();
        let soft = self.soft.map(|soft| started + soft);
        let patience =
            [soft, sending.deadline].into_iter().flatten().min().map_or(Patience::Hard, Patience::Until);
        let by_deadline = patience == sending.deadline.map_or(Patience::Hard, Patience::Until);
        match self.call(&sending, patience).await {
            Ok(answer) => Ok(answer),
            Err(CallError::TimedOut) if by_deadline => Err(Status::Delay.into()),
            Err(CallError::Refused(Refusal::Auth(_))) => Err(Status::Access.into()),
            Err(CallError::Context(_)) => Err(Status::NoTicket.into()),
            Err(error @ (CallError::Refused(_) | CallError::Malformed(_))) => {
                Err(self.nonsense.heard(sending.main.name(), error))
            }
            Err(error) => {
                tracing::debug!(operation = sending.main.name(), %error, "a call failed");
                Err(Status::Io.into())
            }
        }
    }

    /// Makes one call, and returns the failure of the RPC layer unchanged.
    pub(crate) async fn call(&self, sending: &Sending<'_>, patience: Patience) -> Result<Answer, CallError> {
        match patience {
            Patience::Until(until) => {
                timeout_at(until, self.replicated()).await.map_err(|_| CallError::TimedOut)?;
            }
            Patience::Hard => self.replicated().await,
        }
        let mut encoder = Encoder::with_capacity(512);
        sending.args.encode(&mut encoder);
        let outgoing = Unsent {
            program: call::Compound::PROGRAM,
            version: call::Compound::VERSION,
            procedure: call::Compound::NUMBER,
            arguments: encoder.finish(),
            needs_no_right: sending.args.argarray.iter().all(needs_no_right),
        };
        let main = sending.main as u32;
        let started = Instant::now();
        self.compounds.called(main, outgoing.arguments.len());
        for operation in sending.args.argarray.iter() {
            self.operations.called(operation.operation() as u32, 0);
        }
        let link = self.links.get(sending.link.unwrap_or_else(|| self.links.turn()));
        let on = (link, &self.pulse);
        let answered = match self.callers.call(on, sending.principal, outgoing, patience).await {
            Ok(answer) => {
                let (bytes, took) = (answer.results.remaining(), started.elapsed());
                self.links.answered(took);
                self.compounds.answered(main, bytes, took, answer.retransmitted);
                let mut results = answer.results;
                CompoundRes::decode(&mut results)
                    .map(|compound| Answer { compound, retransmitted: answer.retransmitted })
                    .map_err(CallError::Malformed)
            }
            Err(error) => Err(error),
        };
        answered.inspect_err(|_| self.compounds.failed(main))
    }
}

/// Needs the operation no right? Attributes of a file, but for its ACL, go to everybody who has its handle.
/// State that is given back or tested belongs to the client, and not to a user.
fn needs_no_right(operation: &ArgOp) -> bool {
    use Operation as O;
    if let ArgOp::Getattr(args) = operation {
        return (args.attr_request & Bitmap::of(&[Attr::Acl])).is_empty();
    }
    matches!(
        operation.operation(),
        O::Sequence
            | O::Putfh
            | O::Putrootfh
            | O::Close
            | O::Locku
            | O::OpenDowngrade
            | O::Delegreturn
            | O::TestStateid
            | O::FreeStateid
    )
}
