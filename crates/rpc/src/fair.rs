//! Fairness between the peers of a server: how long a call of one peer waits for calls of others.
//!
//! A peer is an address, as in [`crate::account`]. While one peer alone calls, nothing here limits it. It is
//! alone if no other peer has sent anything in the last [`Sharing::active`]. Three rules hold as soon as
//! there are others:
//!
//! - **Processor.** All connections of a peer together answer calls for one [`QUANTUM`] before every other
//!   connection that has input gets its turn ([`Turns::slice`]). So a call waits for at most one quantum of
//!   each busy peer. A connection sends at most [`SEND_BYTES`] before it lets others run.
//! - **Calls in progress.** What is behind a server (worker threads, disks, an origin) has first-in first-out
//!   queues. So the calls in progress of all peers together fill one window. Each peer has an equal part of
//!   it, but no less than [`PART_MIN`] ([`Fair::part`]). A call whose peer fills its part waits in the line
//!   of its peer, and the connection reads on. A call counts one, and one more for each 64 KiB that it moves.
//! - **Rates.** Limits of operations and bytes a second are token buckets. They apply to a peer that is
//!   alone, too. A call waits in the same line until both buckets have something left. Neither limit ever
//!   leads to an error.
//!
//! The rules for calls in progress and rates cannot make a deadlock, for two reasons:
//!
//! 1. **No turn depends on the end of another call.** A call in progress counts for at most twice
//!    [`Sharing::hold`]. It may wait for another client (a recall, a lock, an open) or for a distant origin.
//!    After that time it frees its part of the window as if it had ended. Buckets fill with time.
//! 2. **Calls that others wait for do not queue.** [`crate::Service::is_urgent`] names them. They give
//!    something back (DELEGRETURN, CLOSE, unlock), keep a client's state alive (SEQUENCE, RENEW), or have a
//!    time limit (reclaims). They overtake the line. Replies to our callbacks are no calls, and never wait.
//!
//! The earlier limits still apply: a connection reads nothing more while as many calls as
//! [`crate::connection::Limits`] allows are unanswered, or while its peer holds its share of memory.
//!
//! [`mod@line`] is the state machine of one peer's line; it has no clock. This module adds the clock, and
//! the task that calls the next in line.

mod line;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::account::Peer;
use line::{Begun, Buckets, Line, Next};

/// A peer counts as active in the epoch in which it sends something, and in the next one.
const ACTIVE: Duration = Duration::from_millis(128);
/// A call in progress counts in the period of this length in which it begins, and in the next one. A call
/// that takes longer waits for something else than the processors and the page cache of this machine.
const HOLD: Duration = Duration::from_millis(2);
/// Processor time of one peer before others get their turn.
const QUANTUM: Duration = Duration::from_micros(100);
/// Processor time of one connection while its peer is alone.
pub(crate) const SLICE: Duration = Duration::from_micros(500);
/// The shortest time for which one connection answers calls.
const SLICE_MIN: Duration = Duration::from_micros(10);
/// Bytes that a connection sends before it lets others run, beside other peers and alone.
const SEND_BYTES: u64 = 256 << 10;
const SEND_ALONE_BYTES: u64 = 2 << 20;
/// The window for each processor, in calls, and its bounds.
const WINDOW_PER_PROCESSOR: usize = 8;
const WINDOW_MIN: usize = 16;
const WINDOW_MAX: usize = 128;
/// The smallest part of a peer, however many are active: most of them have no call in progress.
const PART_MIN: u32 = 8;
/// The largest number of active peers that are counted.
const PEERS_MAX: usize = 4096;
/// A call that moves so many bytes counts as one more.
const CALL_BYTES: usize = 64 << 10;

/// What one peer may do in a second. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Calls in a second.
    pub operations: Option<u64>,
    /// Bytes of requests and replies in a second.
    pub bytes: Option<u64>,
}

/// How the peers of a server share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// What each peer may do in a second.
    pub rates: Rates,
    /// The calls in progress of all peers together, while there are several.
    pub window: usize,
    /// How long a call in progress counts at least; at most twice that.
    pub hold: Duration,
    /// For how long a peer is active at least after it has sent something; at most twice that.
    pub active: Duration,
}

impl Default for Sharing {
    /// No limits of rates, and a window for this machine.
    fn default() -> Sharing {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Sharing {
            rates: Rates::default(),
            window: (processors * WINDOW_PER_PROCESSOR).clamp(WINDOW_MIN, WINDOW_MAX),
            hold: HOLD,
            active: ACTIVE,
        }
    }
}

impl Rates {
    fn is_limited(self) -> bool {
        self.operations.is_some() || self.bytes.is_some()
    }
}

/// What all peers of a server share; see the module.
#[derive(Debug)]
pub struct Fair {
    sharing: Sharing,
    started: Instant,
    peers: Mutex<Active>,
    /// The buckets of peers without a connection that are not full again.
    absent: Mutex<HashMap<Peer, Buckets>>,
    /// The number of active peers.
    active: AtomicU32,
    /// Calls that have waited in a line.
    waited: AtomicU64,
}

/// Peers that have sent something, by epoch. A peer counts once, however often its connections come and go.
#[derive(Debug, Default)]
struct Active {
    epoch: u64,
    now: HashSet<Peer>,
    /// How many there were in the epoch before.
    before: usize,
}

impl Fair {
    /// For a new server.
    pub fn new(sharing: Sharing) -> Arc<Fair> {
        Arc::new(Fair {
            sharing,
            started: Instant::now(),
            peers: Mutex::default(),
            absent: Mutex::default(),
            active: AtomicU32::new(0),
            waited: AtomicU64::new(0),
        })
    }

    /// Calls that have waited in the line of their peer.
    pub fn waited(&self) -> u64 {
        self.waited.load(Relaxed)
    }

    /// The turns of a peer. A peer that comes back has its buckets as it left them.
    pub(crate) fn turns(self: &Arc<Fair>, peer: Peer) -> Arc<Turns> {
        let buckets = self.absent.lock().remove(&peer).unwrap_or_else(|| Buckets::new(self.sharing.rates));
        Arc::new(Turns {
            peer,
            line: Mutex::new(Line::new(micros(self.sharing.hold), buckets)),
            fair: self.clone(),
            epoch: AtomicU64::new(u64::MAX),
            running: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            is_calling: AtomicBool::new(false),
            freed: Notify::new(),
        })
    }

    /// Forgets absent peers whose buckets are full. The caller runs this about once a second.
    pub(crate) fn forget_absent(&self) {
        let now = self.micros(Instant::now());
        self.absent.lock().retain(|_, buckets| !buckets.are_full(now));
    }

    fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.started).as_micros() as u64
    }

    /// Have several peers sent something lately?
    fn is_shared(&self) -> bool {
        self.active.load(Relaxed) > 1
    }

    /// The part of the window that a peer has.
    fn part(&self) -> u32 {
        match self.active.load(Relaxed) {
            0 | 1 => u32::MAX,
            active => {
                let window = self.sharing.window as u32;
                (window / active).max(PART_MIN.min(window / 2)).max(1)
            }
        }
    }

    fn note(&self, epoch: u64, peer: Peer) {
        let mut peers = self.peers.lock();
        if epoch > peers.epoch {
            peers.before = if epoch == peers.epoch + 1 { peers.now.len() } else { 0 };
            peers.epoch = epoch;
            peers.now.clear();
        }
        if peers.now.len() < PEERS_MAX {
            peers.now.insert(peer);
        }
        self.active.store(peers.now.len().max(peers.before) as u32, Relaxed);
    }
}

/// The turns of one peer; see the module.
#[derive(Debug)]
pub(crate) struct Turns {
    peer: Peer,
    fair: Arc<Fair>,
    line: Mutex<Line<oneshot::Sender<Turn>>>,
    /// The last epoch in which the peer sent something.
    epoch: AtomicU64,
    /// As the line says: calls in progress, and calls that wait. Read without its lock.
    running: AtomicU32,
    waiting: AtomicU32,
    /// Connections that have more calls at hand than they may answer at once.
    busy: AtomicU32,
    /// A task calls the next in line.
    is_calling: AtomicBool,
    /// A call has ended.
    freed: Notify,
}

/// A call in progress. It counts until this is dropped, and for twice [`Sharing::hold`] at most.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    begun: Begun,
}

/// A connection with more calls at hand.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Turns>);

impl Turns {
    /// The peer has sent something.
    pub(crate) fn note(&self, now: Instant) {
        let epoch = self.fair.micros(now) / micros(self.fair.sharing.active);
        if self.epoch.swap(epoch, Relaxed) != epoch {
            self.fair.note(epoch, self.peer);
        }
    }

    /// Have other peers sent something lately?
    pub(crate) fn is_shared(&self) -> bool {
        self.fair.is_shared()
    }

    /// For how long a connection of the peer may answer calls before others get their turn.
    pub(crate) fn slice(&self) -> Duration {
        if !self.is_shared() {
            return SLICE;
        }
        (QUANTUM / self.busy.load(Relaxed).max(1)).max(SLICE_MIN)
    }

    /// The connection has more calls at hand than it may answer at once.
    pub(crate) fn busy(self: &Arc<Turns>) -> Busy {
        self.busy.fetch_add(1, Relaxed);
        Busy(self.clone())
    }

    /// The most bytes that a connection sends before it lets others run.
    pub(crate) fn send_bytes(&self) -> u64 {
        if self.is_shared() { SEND_BYTES } else { SEND_ALONE_BYTES }
    }

    /// Must a call wait in line? If not, it begins: it counts against the limits of rates.
    pub(crate) fn must_wait(&self, request_bytes: usize) -> bool {
        let is_limited = self.fair.sharing.rates.is_limited();
        if !is_limited && self.waiting.load(Relaxed) == 0 && self.running.load(Relaxed) < self.fair.part() {
            return false;
        }
        let mut line = self.line.lock();
        let must_wait = !line.may_begin(self.now(), self.fair.part());
        if !must_wait && is_limited {
            line.charge(1, request_bytes as i64);
        }
        self.mirror(&line);
        must_wait
    }

    /// A call that is urgent begins.
    pub(crate) fn begin_urgent(&self, request_bytes: usize) {
        if self.fair.sharing.rates.is_limited() {
            self.line.lock().charge(1, request_bytes as i64);
        }
    }

    /// A call has moved so many bytes more than it was charged for; fewer, if negative.
    pub(crate) fn moved(&self, bytes: i64) {
        if self.fair.sharing.rates.is_limited() {
            self.line.lock().charge(0, bytes);
        }
    }

    /// Counts a call that has begun and that moves so many bytes.
    pub(crate) fn count(self: &Arc<Turns>, bytes: usize) -> Turn {
        let mut line = self.line.lock();
        let begun = line.begin(self.now(), cost(bytes));
        self.mirror(&line);
        Turn { turns: self.clone(), begun }
    }

    /// A call that moves so many bytes in all enters the line. When its turn comes, all of them count against
    /// the limits of rates, and the receiver gets it.
    pub(crate) fn enter(self: &Arc<Turns>, bytes: usize) -> oneshot::Receiver<Turn> {
        let (called, call) = oneshot::channel();
        {
            let mut line = self.line.lock();
            line.enter(called, cost(bytes), bytes as i64);
            self.mirror(&line);
        }
        self.fair.waited.fetch_add(1, Relaxed);
        if !self.is_calling.swap(true, Relaxed) {
            tokio::spawn(self.clone().call_in_order());
        }
        call
    }

    /// Calls the next in line as long as there is one.
    async fn call_in_order(self: Arc<Turns>) {
        loop {
            // A peer whose calls wait is active, though its connections may read nothing more.
            let now = Instant::now();
            self.note(now);
            let next = {
                let mut line = self.line.lock();
                let next = line.next(self.fair.micros(now), self.fair.part(), oneshot::Sender::is_closed);
                self.mirror(&line);
                if matches!(next, Next::Nobody) {
                    // Under the lock, so that the next to enter sees it.
                    self.is_calling.store(false, Relaxed);
                }
                next
            };
            match next {
                Next::Nobody => return,
                // If the connection has ended, the turn comes back and is dropped.
                Next::Begin(waiter, begun) => {
                    drop(waiter.send(Turn { turns: self.clone(), begun }));
                }
                Next::NotBefore(micros) => {
                    let at = self.fair.started + Duration::from_micros(micros);
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {}
                        () = self.freed.notified() => {}
                    }
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.fair.micros(Instant::now())
    }

    fn mirror(&self, line: &Line<oneshot::Sender<Turn>>) {
        self.running.store(line.running(), Relaxed);
        self.waiting.store(line.waiting() as u32, Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros().clamp(1, u64::MAX.into()) as u64
}

/// What a call counts that moves so many bytes.
fn cost(bytes: usize) -> u32 {
    1 + (bytes / CALL_BYTES) as u32
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.turns.line.lock();
        line.end(&self.begun);
        self.turns.mirror(&line);
        if line.waiting() > 0 {
            self.turns.freed.notify_one();
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if self.fair.sharing.rates.is_limited() {
            let mut buckets = self.line.get_mut().take_buckets();
            if !buckets.are_full(self.fair.micros(Instant::now())) {
                self.fair.absent.lock().insert(self.peer, buckets);
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests;
