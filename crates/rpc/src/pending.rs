//! Calls that wait for a reply.
//!
//! The table outlives connections: a call that was sent over one that broke is sent again, with the same xid, over the
//! next. Who waits holds a [`Ticket`]; dropping it forgets the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use xdr::{Decoder, Message};

/// A call in the table.
#[derive(Debug)]
struct Waiting {
    message: Message,
    reply: oneshot::Sender<Reply>,
    sends: u32,
    last_sent: Instant,
}

/// A reply, from its status on.
#[derive(Debug)]
pub struct Reply {
    /// What follows the xid and the message type.
    pub rest: Decoder,
    /// How often the call was sent.
    pub sends: u32,
    /// When it was sent last.
    pub last_sent: Instant,
}

/// A call to be sent now.
#[derive(Debug)]
pub struct Sending {
    /// All of it.
    pub message: Message,
    /// No other call waits: this one need not wait to leave in company.
    pub alone: bool,
}

/// The calls of one connection, or of one link over all its connections.
#[derive(Debug)]
pub struct Pending {
    calls: Mutex<BTreeMap<u32, Waiting>>,
    next: AtomicU32,
}

/// A place in the table.
#[derive(Debug)]
pub struct Ticket {
    /// The xid of the call.
    pub xid: u32,
    /// Where the reply comes.
    pub reply: oneshot::Receiver<Reply>,
    table: Arc<Pending>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.table.calls.lock().remove(&self.xid);
    }
}

impl Default for Pending {
    /// An empty table; xids start anywhere, so that a restarted client does not meet its old ones in a reply cache.
    fn default() -> Pending {
        let mut start = [0; 4];
        // Without randomness xids start at the process id: distinct enough between restarts.
        if getrandom::fill(&mut start).is_err() {
            start = std::process::id().to_ne_bytes();
        }
        Pending { calls: Mutex::default(), next: AtomicU32::new(u32::from_ne_bytes(start)) }
    }
}

impl Pending {
    /// An xid that no call in the table has.
    pub fn xid(&self) -> u32 {
        loop {
            let xid = self.next.fetch_add(1, Ordering::Relaxed);
            if !self.calls.lock().contains_key(&xid) {
                return xid;
            }
        }
    }

    /// Enters a call that has not been sent yet.
    pub fn enter(self: &Arc<Pending>, xid: u32, message: Message) -> Ticket {
        let (sender, reply) = oneshot::channel();
        let waiting = Waiting { message, reply: sender, sends: 0, last_sent: Instant::now() };
        self.calls.lock().insert(xid, waiting);
        Ticket { xid, reply, table: self.clone() }
    }

    /// The message to send now, counted as sent; `None` if nobody waits for it any more.
    pub fn sending(&self, xid: u32) -> Option<Sending> {
        let mut calls = self.calls.lock();
        let alone = calls.len() == 1;
        let waiting = calls.get_mut(&xid)?;
        waiting.sends += 1;
        waiting.last_sent = Instant::now();
        Some(Sending { message: waiting.message.clone(), alone })
    }

    /// Every xid in the table, in the order of the calls (but for the one wrap of the counter).
    pub fn xids(&self) -> Vec<u32> {
        self.calls.lock().keys().copied().collect()
    }

    /// When the call that has waited longest since it was sent was sent.
    pub fn oldest_sent(&self) -> Option<Instant> {
        self.calls.lock().values().map(|waiting| waiting.last_sent).min()
    }

    /// None waits?
    pub fn is_empty(&self) -> bool {
        self.calls.lock().is_empty()
    }

    /// Gives a reply to who waits for it; one that nobody waits for is dropped.
    pub fn complete(&self, xid: u32, rest: Decoder) {
        if let Some(waiting) = self.calls.lock().remove(&xid) {
            let _ = waiting.reply.send(Reply { rest, sends: waiting.sends, last_sent: waiting.last_sent });
        }
    }

    /// Forgets every call: their waiters see the channel close.
    pub fn abandon(&self) {
        self.calls.lock().clear();
    }
}
