//! When to send datagrams: an adaptive timer for each kind of call, and a window that shrinks under
//! congestion.
//!
//! Macklem (1994, section 3): with fixed timers and unlimited calls, NFS over UDP fails on long, slow and
//! lossy paths. A datagram that is resent too early fills the queue in which the first copy was lost. This
//! module does what his implementation does:
//! - Each kind of call has its own round-trip estimate after Jacobson ([`crate::rtt`]): a WRITE to stable
//!   storage takes longer than a GETATTR. A call that was sent twice gives no sample (Karn). As long as there
//!   is no sample, timers stay long.
//! - Calls in the network count against a window. The window grows by one for each answer up to a threshold,
//!   and beyond it by one for each window of answers. A timer that expires halves the window, once for all
//!   calls that were sent before the cut.
//! - A call whose timer expired counts as lost. It waits for space in the window like any other call, but
//!   before calls that were never sent.
//!
//! The module is a pure state machine: [`Congestion::poll`] returns what to send now, and
//! [`Congestion::next_due`] when to poll again.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::rtt::Estimator;

/// The window is counted in fractions of a call: this many make one call.
const PART: u32 = 256;
/// The first window, in calls.
const FIRST: u32 = 4;
/// The first threshold.
const FIRST_THRESHOLD: u32 = 16;
/// The largest window: this many transfers of 32 KiB fill the socket buffer of a server.
pub const WINDOW_MAX: u32 = 32;
/// Most kinds with an estimate of their own. The others share one.
const KINDS_MAX: usize = 64;

/// Program and procedure. Calls of one kind take about the same time.
pub type Kind = (u32, u32);

/// A call to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The call's xid.
    pub xid: u32,
    /// How many times the call was sent, this one included.
    pub sends: u32,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    kind: Kind,
    /// Position in the order of entry.
    order: u64,
    sends: u32,
    /// When it was sent, and when its timer expires. `None` if it is not in the network.
    sent: Option<(Instant, Instant)>,
}

/// See the module.
#[derive(Debug)]
pub struct Congestion {
    first_timer: Duration,
    kinds: HashMap<Kind, Timer>,
    others: Timer,
    calls: HashMap<u32, Outstanding>,
    /// Calls that are not in the network: resends first, then by order of entry.
    waiting: BTreeSet<(bool, u64, u32)>,
    /// When timers expire.
    due: BTreeSet<(Instant, u32)>,
    window: u32,
    threshold: u32,
    /// When the window was last halved.
    cut: Option<Instant>,
    entered: u64,
}

/// The timer state of one kind of call.
#[derive(Clone, Copy, Debug)]
struct Timer {
    estimator: Estimator,
    /// How often timers have expired since the last sample.
    backoff: u32,
}

impl Congestion {
    /// A state without samples. Timers begin with `first_timer`.
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

    /// Enters a call, to be sent when the window has space.
    pub fn enter(&mut self, xid: u32, kind: Kind) {
        self.entered += 1;
        let call = Outstanding { kind, order: self.entered, sends: 0, sent: None };
        self.calls.insert(xid, call);
        self.waiting.insert((true, call.order, xid));
    }

    /// Notes that a call was answered. Returns false if the call is unknown or was answered before.
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

    /// Is no call entered?
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.waiting.is_empty() && self.due.is_empty()
    }

    /// Forgets a call: its caller does not wait any more.
    pub fn forget(&mut self, xid: u32) {
        self.remove(xid);
    }

    /// Returns the calls to send now, and counts them as sent.
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

    /// When [`Congestion::poll`] must run next if nothing else happens.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Most calls in the network at a time.
    pub fn window(&self) -> u32 {
        self.window / PART
    }

    /// Calls in the network now.
    pub fn in_network(&self) -> usize {
        self.due.len()
    }

    /// Handles an expired timer.
    fn lost(&mut self, now: Instant, xid: u32) {
        let Some(call) = self.calls.get_mut(&xid) else { return };
        let Some((sent, _)) = call.sent.take() else { return };
        let (kind, sends) = (call.kind, call.sends);
        self.waiting.insert((false, call.order, xid));
        let timer = self.timer_of(kind);
        timer.backoff = timer.backoff.max(sends);
        // A call sent before the last cut reports the same congestion.
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
