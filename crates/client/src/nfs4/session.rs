//! A session (RFC 8881, section 2.10): its id, its limits, its slots, and the requests that wait for a slot.

pub(crate) mod slots;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::nfs4::{ChannelAttrs, Clientid, SequenceArgs, SequenceOk, Sessionid};
use tokio::sync::{Notify, oneshot};

use slots::{End, Grant, Slots, Work};

/// A session that the server has made.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: Sessionid,
    pub(crate) clientid: Clientid,
    /// The limits of the fore channel that the server chose.
    pub(crate) fore: ChannelAttrs,
    table: Mutex<Table>,
    /// A slot is in doubt.
    doubt: Notify,
    /// No request is in flight.
    idle: Notify,
}

#[derive(Debug)]
struct Table {
    slots: Slots,
    recall: VecDeque<oneshot::Sender<Grant>>,
    ordinary: VecDeque<oneshot::Sender<Grant>>,
}

impl Table {
    /// Gives free slots to waiters, urgent work first.
    fn serve(&mut self) {
        for (work, waiting) in [(Work::Recall, &mut self.recall), (Work::Ordinary, &mut self.ordinary)] {
            while !waiting.is_empty() {
                let Some(grant) = self.slots.acquire(work) else { break };
                let heard = waiting.pop_front().is_some_and(|waiter| waiter.send(grant).is_ok());
                if !heard {
                    self.slots.release(grant.slot, End::Refused);
                }
            }
        }
    }
}

impl Session {
    pub(crate) fn new(id: Sessionid, clientid: Clientid, fore: ChannelAttrs, slots_max: u32) -> Session {
        let slots = Slots::new(fore.maxrequests.min(slots_max));
        let table = Table { slots, recall: VecDeque::new(), ordinary: VecDeque::new() };
        Session { id, clientid, fore, table: Mutex::new(table), doubt: Notify::new(), idle: Notify::new() }
    }

    /// The number of its slots.
    pub(crate) fn slots_max(&self) -> u32 {
        self.table.lock().slots.len()
    }

    /// Waits for a slot.
    pub(crate) async fn acquire(self: &Arc<Session>, work: Work) -> Slot {
        let waiting = {
            let mut table = self.table.lock();
            if let Some(grant) = table.slots.acquire(work) {
                return Slot { session: self.clone(), grant, done: false };
            }
            let (sender, waiting) = oneshot::channel();
            match work {
                Work::Recall => table.recall.push_back(sender),
                Work::Ordinary => table.ordinary.push_back(sender),
            }
            Waiting { session: self.clone(), granted: waiting }
        };
        waiting.wait().await
    }

    /// Notes the highest slot that the server wants to be used.
    pub(crate) fn limit(&self, target: u32) {
        self.table.lock().slots.limit(u32::MAX, target);
    }

    /// Waits for a slot in doubt, to probe it.
    pub(crate) async fn in_doubt(self: &Arc<Session>) -> Slot {
        loop {
            let changed = self.doubt.notified();
            if let Some(grant) = self.table.lock().slots.probe() {
                return Slot { session: self.clone(), grant, done: false };
            }
            changed.await;
        }
    }

    /// Waits until no request is in flight.
    pub(crate) async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.table.lock().slots.are_idle() {
                return;
            }
            idle.await;
        }
    }

    fn release(&self, slot: u32, end: End) {
        let mut table = self.table.lock();
        table.slots.release(slot, end);
        table.serve();
        if table.slots.are_idle() {
            self.idle.notify_waiters();
        }
        drop(table);
        if end == End::Doubt {
            self.doubt.notify_one();
        }
    }
}

/// A wait for a slot. If the wait is dropped after a grant, the slot goes back.
struct Waiting {
    session: Arc<Session>,
    granted: oneshot::Receiver<Grant>,
}

impl Waiting {
    async fn wait(mut self) -> Slot {
        match (&mut self.granted).await {
            Ok(grant) => Slot { session: self.session.clone(), grant, done: false },
            // The session owns the senders, and we hold the session.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(grant) = self.granted.try_recv() {
            self.session.release(grant.slot, End::Refused);
        }
    }
}

/// A slot in use. Dropping it without another call marks it as in doubt.
#[derive(Debug)]
pub(crate) struct Slot {
    session: Arc<Session>,
    grant: Grant,
    done: bool,
}

impl Slot {
    /// The arguments of SEQUENCE, the first operation of the request.
    pub(crate) fn sequence(&self, cachethis: bool) -> SequenceArgs {
        SequenceArgs {
            sessionid: self.session.id,
            sequenceid: self.grant.sequence,
            slotid: self.grant.slot,
            highest_slotid: self.grant.highest,
            cachethis,
        }
    }

    /// Is this the answer to our request?
    pub(crate) fn answers(&self, ok: &SequenceOk) -> bool {
        ok.sessionid == self.session.id
            && ok.slotid == self.grant.slot
            && ok.sequenceid == self.grant.sequence
    }

    /// Ends a request that the server accepted.
    pub(crate) fn taken(mut self, ok: &SequenceOk) {
        self.session.table.lock().slots.limit(ok.highest_slotid, ok.target_highest_slotid);
        self.end(End::Taken);
    }

    /// Ends a request whose sequence id the server accepted, without usable results.
    pub(crate) fn spent(mut self) {
        self.end(End::Taken);
    }

    /// Ends a request whose SEQUENCE the server refused, or that was not sent.
    pub(crate) fn refused(mut self) {
        self.end(End::Refused);
    }

    fn end(&mut self, end: End) {
        self.done = true;
        self.session.release(self.grant.slot, end);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.done {
            self.session.release(self.grant.slot, End::Doubt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(slots: u32) -> Arc<Session> {
        let fore = ChannelAttrs { maxrequests: slots, ..ChannelAttrs::default() };
        Arc::new(Session::new([1; 16], 7, fore, 64))
    }

    #[tokio::test]
    async fn who_waits_gets_the_slot_that_comes_free() {
        let session = session(1);
        let first = session.acquire(Work::Ordinary).await;
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { session.acquire(Work::Ordinary).await.sequence(false).sequenceid }
        });
        tokio::task::yield_now().await;
        first.spent();
        assert_eq!(waiting.await.unwrap(), 2);
        // The task dropped that slot without another call.
        assert_eq!(session.in_doubt().await.sequence(false).sequenceid, 2);
    }

    #[tokio::test]
    async fn a_waiter_that_left_takes_nothing_along() {
        let session = session(1);
        let first = session.acquire(Work::Ordinary).await;
        let mut leaver = Box::pin(session.acquire(Work::Recall));
        assert!(futures_poll(&mut leaver).await.is_none());
        first.spent();
        drop(leaver);
        assert_eq!(session.acquire(Work::Ordinary).await.sequence(false).sequenceid, 2);
    }

    async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }
}
