//! EVICTED: the recall of a lease from an NQNFS client.
//!
//! It goes over the route of the client's last call. The server repeats it with doubling pauses, until the
//! client has sent VACATED or the term of the lease is over. A reply to EVICTED does not stop the
//! repetition, because only VACATED counts.

use std::sync::Arc;
use std::time::Duration;

use protocol::Call;
use protocol::nqnfs::{Handle as WireHandle, call};
use rpc::Credential;
use rpc::message::CallHeader;
use tokio::time::{Instant, timeout_at};
use vfs::Recall;
use xdr::{Encode, Encoder, Message};

use super::NqnfsFront;
use super::clients::Way;
use super::leases::Out;
use crate::exports::ExportId;

/// Pause before the first repetition.
const AGAIN_MIN: Duration = Duration::from_millis(250);
/// The longest pause between two repetitions.
const AGAIN_MAX: Duration = Duration::from_secs(4);

/// Asks the client to return a lease, until the lease is back or its time is over.
pub(crate) async fn evict(front: &Arc<NqnfsFront>, export: ExportId, out: Out, recall: Recall) {
    let Ok(fh) = front.shared.handles.v2(export, &recall.handle) else { return };
    let mut pause = AGAIN_MIN;
    loop {
        let gone = out.gone.notified();
        tokio::pin!(gone);
        gone.as_mut().enable();
        if front.nqnfs.leases.lock().get(export, recall.id).is_none() || Instant::now() >= recall.deadline {
            return;
        }
        let again = (Instant::now() + pause).min(recall.deadline);
        tokio::select! {
            () = &mut gone => return,
            () = say(front, &out, &fh, again) => {}
        }
        if timeout_at(again, gone).await.is_ok() {
            return;
        }
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

/// The lease is already lost: sends EVICTED once.
pub(crate) fn lost(front: &Arc<NqnfsFront>, export: ExportId, out: Out) {
    let front = front.clone();
    tokio::spawn(async move {
        if let Ok(fh) = front.shared.handles.v2(export, &out.handle) {
            say(&front, &out, &fh, Instant::now() + AGAIN_MAX).await;
        }
    });
}

/// Sends EVICTED once.
async fn say(front: &NqnfsFront, out: &Out, fh: &WireHandle, until: Instant) {
    let way = front.nqnfs.clients.lock().way(out.holder);
    match way {
        Some(Way::Stream(connection)) => {
            let Some(connection) = connection.upgrade() else { return };
            let header = header(connection.xid());
            // The answer says only that EVICTED arrived.
            let _ = timeout_at(until, connection.call(header, arguments(fh))).await;
        }
        Some(Way::Datagrams(datagrams, peer)) => {
            datagrams.send_call(peer, &header(front.nqnfs.xid()), arguments(fh));
        }
        #[cfg(any(test, feature = "fuzzing"))]
        Some(Way::Told(test)) => drop(test.send(*fh)),
        None => {}
    }
}

fn header(xid: u32) -> CallHeader {
    let (program, version) = (call::Evicted::PROGRAM, call::Evicted::VERSION);
    CallHeader { xid, program, version, procedure: call::Evicted::NUMBER, credential: Credential::None }
}

fn arguments(fh: &WireHandle) -> Message {
    let mut encoder = Encoder::new();
    fh.encode(&mut encoder);
    encoder.finish()
}
