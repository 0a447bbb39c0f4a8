//! Calls that wait for a reply.
//!
//! The table outlives connections: if a connection breaks, its calls are sent again over the next one, with
//! the same xid. The waiter of a call holds a [`Ticket`]; dropping the ticket forgets the call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use xdr::{Decoder, Message};

use crate::rpcsec_gss::initiator::Protected;

/// The message of a call, or the means to make it.
#[derive(Clone, Debug)]
pub enum Contents {
    /// The same message each time.
    Plain(Message),
    /// Another one each time: its number is new.
    Protected(Arc<Protected>),
}

impl Contents {
    /// The message to send now. `None` if it cannot be protected any more.
    pub fn message(self) -> Option<Message> {
        match self {
            Contents::Plain(message) => Some(message),
            Contents::Protected(call) => call.message(),
        }
    }
}

/// A call in the table.
#[derive(Debug)]
struct Waiting {
    contents: Contents,
    reply: oneshot::Sender<Reply>,
    sends: u32,
    last_sent: Instant,
}

/// A reply, from its status on.
#[derive(Debug)]
pub struct Reply {
    /// The reply after the xid and the message type.
    pub rest: Decoder,
    /// How often the call was sent.
    pub sends: u32,
    /// When the call was last sent.
    pub last_sent: Instant,
}

/// A call to be sent now.
#[derive(Debug)]
pub struct Sending {
    /// What to send.
    pub contents: Contents,
    /// No other call is in the table, so this one need not wait to leave together with others.
    pub alone: bool,
}

/// The calls of one connection, or of one link over all its connections.
#[derive(Debug)]
pub struct Pending {
    calls: Mutex<BTreeMap<u32, Waiting>>,
    next: AtomicU32,
}

/// A call's entry in the table.
#[derive(Debug)]
pub struct Ticket {
    /// The xid of the call.
    pub xid: u32,
    /// Receives the reply.
    pub reply: oneshot::Receiver<Reply>,
    table: Arc<Pending>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.table.calls.lock().remove(&self.xid);
    }
}

impl Default for Pending {
    /// An empty table. Xids start at random, so that a restarted client does not find its old calls in a
    /// reply cache.
    fn default() -> Pending {
        let mut start = [0; 4];
        // Without randomness, start at the process id: it differs enough between restarts.
        if getrandom::fill(&mut start).is_err() {
            start = std::process::id().to_ne_bytes();
        }
        Pending { calls: Mutex::default(), next: AtomicU32::new(u32::from_ne_bytes(start)) }
    }
}

impl Pending {
    /// Returns an xid that no call in the table has.
    pub fn xid(&self) -> u32 {
        loop {
            let xid = self.next.fetch_add(1, Ordering::Relaxed);
            if !self.calls.lock().contains_key(&xid) {
                return xid;
            }
        }
    }

    /// Enters a call that is not sent yet.
    pub fn enter(self: &Arc<Pending>, xid: u32, contents: Contents) -> Ticket {
        let (sender, reply) = oneshot::channel();
        let waiting = Waiting { contents, reply: sender, sends: 0, last_sent: Instant::now() };
        self.calls.lock().insert(xid, waiting);
        Ticket { xid, reply, table: self.clone() }
    }

    /// Returns what to send now and counts it as sent. `None` if no caller waits for the call any
    /// more.
    pub fn sending(&self, xid: u32) -> Option<Sending> {
        let mut calls = self.calls.lock();
        let alone = calls.len() == 1;
        let waiting = calls.get_mut(&xid)?;
        waiting.sends += 1;
        waiting.last_sent = Instant::now();
        Some(Sending { contents: waiting.contents.clone(), alone })
    }

    /// Every xid in the table, in the order of the calls (except when the counter wraps around).
    pub fn xids(&self) -> Vec<u32> {
        self.calls.lock().keys().copied().collect()
    }

    /// The earliest `last_sent` of all calls in the table.
    pub fn oldest_sent(&self) -> Option<Instant> {
        self.calls.lock().values().map(|waiting| waiting.last_sent).min()
    }

    /// The number of calls that wait.
    pub fn len(&self) -> usize {
        self.calls.lock().len()
    }

    /// Is no call waiting?
    pub fn is_empty(&self) -> bool {
        self.calls.lock().is_empty()
    }

    /// Gives a reply to its waiter, or drops it if there is none.
    pub fn complete(&self, xid: u32, rest: Decoder) {
        if let Some(waiting) = self.calls.lock().remove(&xid) {
            let _ = waiting.reply.send(Reply { rest, sends: waiting.sends, last_sent: waiting.last_sent });
        }
    }

    /// Forgets a call. Its waiter sees its channel close.
    pub fn forget(&self, xid: u32) {
        self.calls.lock().remove(&xid);
    }

    /// Forgets every call. The waiters see their channel close.
    pub fn abandon(&self) {
        self.calls.lock().clear();
    }
}
