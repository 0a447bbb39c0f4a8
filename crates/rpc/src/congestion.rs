//! What is sent when over datagrams: a timer for each kind of call that adapts, and a window that congestion makes smaller.
//!
//! Macklem (1994, section 3): fixed timers and as many calls as anybody likes make NFS over UDP fail on long, slow and lossy
//! paths, because what is sent again too early fills the queue that it was lost in. Here, as in his implementation:
//! - each kind of call has Jacobson's estimate of its own ([`crate::rtt`]): a WRITE that is stored takes longer than a
//!   GETATTR. Of a call that was sent twice nothing is learnt (Karn), and as long as nothing is, timers stay long;
//! - the calls in the network are counted against a window. It grows by one for each answer up to a threshold, and by one for
//!   each window of answers beyond. A timer that runs out halves it, once for all calls that were sent before that;
//! - a call whose timer ran out is lost, as far as can be told: it waits for room in the window like any other, and before
//!   those that were never sent.
//!
//! A pure state machine: [`Congestion::poll`] tells what to send now, [`Congestion::next_due`] when to ask again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::rtt::Estimator;

/// The window is counted in these parts of a call.
const PART: u32 = 256;
/// The first window, in calls.
const FIRST: u32 = 4;
/// The first threshold.
const FIRST_THRESHOLD: u32 = 16;
/// The largest window: as many transfers of 32 KiB fill the socket buffer of a server.
pub const WINDOW_MAX: u32 = 32;
/// Kinds with an estimate of their own; the others share one.
const KINDS_MAX: usize = 64;

/// Calls of one kind take about as long: program and procedure.
pub type Kind = (u32, u32);

/// Something to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The call.
    pub xid: u32,
    /// For how many times, with this one.
    pub sends: u32,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    kind: Kind,
    /// In the order of entering.
    order: u64,
    sends: u32,
    /// In the network since then, and until when it is waited for.
    sent: Option<(Instant, Instant)>,
}

/// See the module.
#[derive(Debug)]
pub struct Congestion {
    first_timer: Duration,
    kinds: HashMap<Kind, Timer>,
    others: Timer,
    calls: HashMap<u32, Outstanding>,
    /// Calls that are not in the network, those sent before first, by order.
    waiting: BTreeSet<(bool, u64, u32)>,
    /// When timers run out.
    due: BTreeSet<(Instant, u32)>,
    window: u32,
    threshold: u32,
    /// It was made smaller then.
    cut: Option<Instant>,
    entered: u64,
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug)]
struct Timer {
    estimator: Estimator,
    /// So often timers have run out since something was learnt.
    backoff: u32,
}

impl Congestion {
    /// Nothing is known; timers begin with `first_timer`.
    pub fn new(first_timer: Duration) -> Congestion {
        Congestion {
            first_timer,
            kinds: HashMap::new(),
            others: Timer::new(first_timer),
            calls: HashMap::new(),
            waiting: BTreeSet::new(),
            due: BTreeSet::new(),
            window: FIRST * PART,
            threshold: FIRST_THRESHOLD * PART,
            cut: None,
            entered: 0,
        }
    }

    /// A call is to be sent when there is room.
    pub fn enter(&mut self, xid: u32, kind: Kind) {
        self.entered += 1;
        let call = Outstanding { kind, order: self.entered, sends: 0, sent: None };
        self.calls.insert(xid, call);
        self.waiting.insert((true, call.order, xid));
    }

    /// It was answered. False if nobody had asked, or it was answered before.
    pub fn answered(&mut self, now: Instant, xid: u32) -> bool {
        let Some(call) = self.remove(xid) else { return false };
        let Some((sent, _)) = call.sent.filter(|_| call.sends == 1) else {
            self.grow();
            return true;
        };
        let timer = self.timer_of(call.kind);
        timer.estimator.sample(now.saturating_duration_since(sent));
        timer.backoff = 0;
        self.grow();
        true
    }

    /// Nobody waits for it any more.
    pub fn forget(&mut self, xid: u32) {
        self.remove(xid);
    }

    /// What to send now. It counts as sent.
    pub fn poll(&mut self, now: Instant) -> Vec<Due> {
        while let Some(&(at, xid)) = self.due.first() {
            if at > now {
                break;
            }
            self.due.pop_first();
            self.lost(now, xid);
        }
        let mut sent = Vec::new();
        while self.due.len() < (self.window / PART) as usize
            && let Some((_, _, xid)) = self.waiting.pop_first()
        {
            let Some(call) = self.calls.get_mut(&xid) else { continue };
            call.sends += 1;
            let (kind, sends) = (call.kind, call.sends);
            let timer = *self.timer_of(kind);
            let until = now + timer.estimator.timer(sends.max(timer.backoff + 1));
            if let Some(call) = self.calls.get_mut(&xid) {
                call.sent = Some((now, until));
            }
            self.due.insert((until, xid));
            sent.push(Due { xid, sends });
        }
        sent
    }

    /// When [`Congestion::poll`] has something to do, if nothing else happens.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Calls that may be in the network at a time.
    pub fn window(&self) -> u32 {
        self.window / PART
    }

    /// Calls that are.
    pub fn in_network(&self) -> usize {
        self.due.len()
    }

    /// A timer ran out.
    fn lost(&mut self, now: Instant, xid: u32) {
        let Some(call) = self.calls.get_mut(&xid) else { return };
        let Some((sent, _)) = call.sent.take() else { return };
        let (kind, sends) = (call.kind, call.sends);
        self.waiting.insert((false, call.order, xid));
        let timer = self.timer_of(kind);
        timer.backoff = timer.backoff.max(sends);
        // What was sent before the last cut tells of the same congestion.
        if self.cut.is_none_or(|cut| sent >= cut) {
            self.window = (self.window / 2).max(PART);
            self.threshold = self.window;
            self.cut = Some(now);
        }
    }

    fn remove(&mut self, xid: u32) -> Option<Outstanding> {
        let call = self.calls.remove(&xid)?;
        match call.sent {
            Some((_, until)) => self.due.remove(&(until, xid)),
            None => self.waiting.remove(&(call.sends == 0, call.order, xid)),
        };
        Some(call)
    }

    fn grow(&mut self) {
        let more = if self.window < self.threshold { PART } else { PART * PART / self.window };
        self.window = (self.window + more).min(WINDOW_MAX * PART);
    }

    fn timer_of(&mut self, kind: Kind) -> &mut Timer {
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            return &mut self.others;
        }
        self.kinds.entry(kind).or_insert(Timer::new(self.first_timer))
    }
}

impl Timer {
    fn new(first: Duration) -> Timer {
        Timer { estimator: Estimator::new(first), backoff: 0 }
    }
}

#[cfg(test)]
mod tests;
