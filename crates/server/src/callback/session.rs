//! Callbacks over the connections of a session (RFC 8881, sections 2.10.6 and 20.9).

use std::sync::Arc;
use std::time::Duration;

use protocol::nfs4::callback::{self, CbArgOp, CbCompoundArgs, CbCompoundRes, CbResOp, CbSequenceArgs, op};
use protocol::nfs4::{Clientid, Results, Sessionid, Tag};
use rpc::Connection;
use rpc::message::CallHeader;
use tokio::time::{Instant, sleep, timeout};
use xdr::{Decode, Encode, Encoder, List};

use super::slots::{BackSlots, Next, Taken};
use super::{Unreachable, Ways};
use crate::state::Channel;
use crate::state::sessions::CallbackTerms;

/// How long to wait on one connection before trying the next.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a callback is repeated that the client has answered with DELAY.
const DELAY: Duration = Duration::from_millis(100);

/// The slots of a session, and its client.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) client: Clientid,
    slots: Arc<BackSlots>,
}

/// A session that may carry a callback, with its connections.
struct Route {
    session: Sessionid,
    terms: CallbackTerms,
    slots: Arc<BackSlots>,
    connections: Vec<Arc<Connection>>,
}

fn routes(ways: &Ways, client: Clientid) -> Vec<Route> {
    let tables = ways.state.tables();
    let mut known = ways.sessions.lock();
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
            connections: session.ways_back().filter_map(Channel::connection).collect(),
        })
        .collect()
}

/// Sends a callback over any of the client's sessions. A session that does not answer counts as down until
/// a connection is bound to it.
pub(super) async fn call(
    ways: &Ways,
    client: Clientid,
    operation: CbArgOp,
    deadline: Instant,
) -> Result<Results<CbResOp>, Unreachable> {
    for route in routes(ways, client) {
        match tokio::time::timeout_at(deadline, call_on(&route, &operation)).await {
            Ok(Some(results)) => return Ok(results),
            Ok(None) => {
                tracing::debug!(
                    client = format_args!("{client:016x}"),
                    "the backchannel of a session is down"
                );
                if let Some(session) = ways.state.tables().sessions.get_mut(route.session) {
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
            let sequence = results.take::<op::Sequence>().map(drop).map_err(|error| error.status());
            match slot.answered(sequence) {
                Next::Done => return Some(results),
                Next::Again => {}
                Next::AgainLater => sleep(DELAY).await,
                Next::Down => return None,
            }
        }
    }
    None
}

/// Sends the callback on one connection; `None` if there is no answer.
async fn send(
    route: &Route,
    slot: &mut Taken,
    connection: &Arc<Connection>,
    operation: &CbArgOp,
) -> Option<Results<CbResOp>> {
    let place = slot.ask();
    let sequence = CbSequenceArgs {
        sessionid: route.session,
        sequenceid: place.sequence,
        slotid: place.slot,
        highest_slotid: place.highest_slot,
        cachethis: false,
        referring_call_lists: List::default(),
    };
    let operations = (!place.alone).then(|| operation.clone());
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
    let reply = timeout(ANSWER_TIMEOUT, connection.call(header, encoder.finish())).await.ok()?;
    let mut decoder = reply.ok()?.ok()?;
    Some(CbCompoundRes::decode(&mut decoder).ok()?.into_results())
}
