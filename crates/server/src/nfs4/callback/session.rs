//! Callbacks over the connections of a session (RFC 8881, sections 2.10.6 and 20.9).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nfs4::callback::{self, CbArgOp, CbCompoundArgs, CbCompoundRes, CbResOp, CbSequenceArgs, op};
use protocol::nfs4::{Clientid, Results, Sessionid, Status, Tag};
use rpc::Connection;
use rpc::message::CallHeader;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use xdr::{Decode, Encode, Encoder, List};

use super::Unreachable;
use crate::front::Front;
use crate::nfs4::state::sessions::CallbackTerms;

/// How long to wait on one connection before trying the next.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a callback is repeated that the client has answered with DELAY.
const DELAY: Duration = Duration::from_millis(100);

/// The slots of a backchannel, on which the server numbers the requests.
#[derive(Debug)]
pub(super) struct BackSlots {
    free: Arc<Semaphore>,
    slots: Mutex<Vec<BackSlot>>,
}

/// One slot, idle or with a request running.
#[derive(Clone, Copy, Debug)]
struct BackSlot {
    /// The next sequence id.
    sequence: u32,
    busy: bool,
    /// A request with this sequence id was abandoned without an answer: the client may have executed it.
    in_doubt: bool,
}

/// The slots of a session, and its client.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) client: Clientid,
    slots: Arc<BackSlots>,
}

/// A slot with a request running.
struct Taken {
    slots: Arc<BackSlots>,
    number: u32,
    sequence: u32,
    /// An earlier request may have used the sequence id already.
    in_doubt: bool,
    /// A request was sent and its answer has not arrived.
    asked: bool,
    _permit: OwnedSemaphorePermit,
}

impl BackSlots {
    fn new(count: u32) -> BackSlots {
        let free = Arc::new(Semaphore::new(count as usize));
        let unused = BackSlot { sequence: 1, busy: false, in_doubt: false };
        BackSlots { free, slots: Mutex::new(vec![unused; count as usize]) }
    }

    async fn take(self: Arc<BackSlots>) -> Option<Taken> {
        let permit = self.free.clone().acquire_owned().await.ok()?;
        let (number, BackSlot { sequence, in_doubt, .. }) = {
            let mut slots = self.slots.lock();
            let (number, slot) = slots.iter_mut().enumerate().find(|(_, slot)| !slot.busy)?;
            slot.busy = true;
            (number as u32, *slot)
        };
        Some(Taken { slots: self, number, sequence, in_doubt, asked: false, _permit: permit })
    }

    fn highest(&self) -> u32 {
        self.slots.lock().len().saturating_sub(1) as u32
    }
}

impl Taken {
    /// The client has seen the request: moves to the next sequence id.
    fn advance(&mut self) {
        self.set(self.sequence.wrapping_add(1));
    }

    fn set(&mut self, sequence: u32) {
        (self.sequence, self.in_doubt) = (sequence, false);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(slot) = self.slots.slots.lock().get_mut(self.number as usize) {
            let in_doubt = self.in_doubt || self.asked;
            *slot = BackSlot { sequence: self.sequence, busy: false, in_doubt };
        }
    }
}

/// A session that may carry a callback, with its connections.
struct Route {
    session: Sessionid,
    terms: CallbackTerms,
    slots: Arc<BackSlots>,
    connections: Vec<Arc<Connection>>,
}

fn routes(front: &Front, client: Clientid) -> Vec<Route> {
    let tables = front.state.tables();
    let mut known = front.state.callbacks.sessions.lock();
    let sessions = tables.sessions.of(client).filter(|(_, session)| session.has_way_back());
    sessions
        .map(|(id, session)| Route {
            session: id,
            terms: session.callbacks.clone(),
            slots: known
                .entry(id)
                .or_insert_with(|| Numbered {
                    client,
                    slots: Arc::new(BackSlots::new(session.back.maxrequests)),
                })
                .slots
                .clone(),
            connections: session.ways_back().filter_map(|channel| channel.0.upgrade()).collect(),
        })
        .collect()
}

/// Sends a callback over any of the client's sessions. A session that does not answer counts as down until
/// a connection is bound to it.
pub(super) async fn call(
    front: &Front,
    client: Clientid,
    operation: CbArgOp,
    deadline: Instant,
) -> Result<Results<CbResOp>, Unreachable> {
    for route in routes(front, client) {
        match tokio::time::timeout_at(deadline, call_on(&route, &operation)).await {
            Ok(Some(results)) => return Ok(results),
            Ok(None) => {
                tracing::debug!(
                    client = format_args!("{client:016x}"),
                    "the backchannel of a session is down"
                );
                if let Some(session) = front.state.tables().sessions.get_mut(route.session) {
                    session.back_down = true;
                }
            }
            Err(_) => return Err(Unreachable),
        }
    }
    Err(Unreachable)
}

async fn call_on(route: &Route, operation: &CbArgOp) -> Option<Results<CbResOp>> {
    let mut slot = route.slots.clone().take().await?;
    for connection in &route.connections {
        while let Some(mut results) = send(route, &mut slot, connection, operation).await {
            match results.take::<op::Sequence>().map_err(|error| error.status()) {
                // Only CB_SEQUENCE was sent.
                Ok(_) if slot.in_doubt => slot.advance(),
                Ok(_) => {
                    slot.advance();
                    return Some(results);
                }
                Err(Some(Status::Delay)) => {
                    slot.asked = true; // the client may be executing it from another connection
                    sleep(DELAY).await;
                }
                // Server and client disagree about the sequence id. The client's count decides, so start at
                // 1 again.
                Err(Some(Status::SeqMisordered)) if slot.sequence != 1 => slot.set(1),
                Err(Some(Status::RetryUncachedRep | Status::SeqFalseRetry)) => slot.advance(),
                Err(_) => return None,
            }
        }
    }
    None
}

/// Sends the callback on one connection; `None` if there is no answer. If an earlier request may have used
/// the sequence id, this sends CB_SEQUENCE alone. Otherwise the answer to the earlier request could be
/// taken for the answer to this one.
async fn send(
    route: &Route,
    slot: &mut Taken,
    connection: &Arc<Connection>,
    operation: &CbArgOp,
) -> Option<Results<CbResOp>> {
    let sequence = CbSequenceArgs {
        sessionid: route.session,
        sequenceid: slot.sequence,
        slotid: slot.number,
        highest_slotid: slot.slots.highest(),
        cachethis: false,
        referring_call_lists: List::default(),
    };
    let operations = (!slot.in_doubt).then(|| operation.clone());
    let operations = std::iter::once(CbArgOp::Sequence(sequence)).chain(operations);
    let args = CbCompoundArgs {
        tag: Tag::default(),
        minorversion: route.terms.minor,
        callback_ident: 0,
        argarray: List::new(operations.collect())?,
    };
    let header = CallHeader {
        xid: connection.xid(),
        program: route.terms.program,
        version: callback::VERSION,
        procedure: callback::COMPOUND,
        credential: route.terms.credential.clone(),
    };
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    slot.asked = true;
    let reply = timeout(ANSWER_TIMEOUT, connection.call(header, encoder.finish())).await.ok()?;
    let mut decoder = reply.ok()?.ok()?;
    let results = CbCompoundRes::decode(&mut decoder).ok()?.into_results();
    slot.asked = false;
    Some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sequence_id_of_a_callback_that_was_given_up_is_in_doubt_until_the_client_has_answered() {
        let slots = Arc::new(BackSlots::new(1));
        let mut first = slots.clone().take().await.unwrap();
        assert_eq!((first.sequence, first.in_doubt), (1, false));
        first.asked = true;
        drop(first);
        let second = slots.clone().take().await.unwrap();
        assert_eq!((second.sequence, second.in_doubt), (1, true));
        drop(second);
        let mut third = slots.clone().take().await.unwrap();
        assert!(third.in_doubt, "nothing was asked");
        third.advance();
        drop(third);
        let fourth = slots.take().await.unwrap();
        assert_eq!((fourth.sequence, fourth.in_doubt), (2, false));
    }
}
