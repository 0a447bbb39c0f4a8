//! The leases that a client of NQNFS may rely on (Macklem 1994, section 4).
//!
//! This is a pure state machine. Events are method calls with the time, and effects come out through
//! [`Leases::effects`]. These invariants hold whatever the network loses, repeats or reorders:
//! - The term of a lease counts from when its request was first sent. The client relies on the lease for less
//!   than that term, by [`Margin`].
//! - If a request was sent before the file's lease ended, or before its EVICTED arrived, its answer grants
//!   nothing: it may bring the lease that has ended.
//! - The client asks for no lease on a file while its VACATED is unanswered. Otherwise a VACATED for the old
//!   lease could give up the new one.
//!
//! A lease is renewed shortly before it ends while the file is in use. If the file is not in use, or the
//! server cannot be reached, the layer above is asked to return the lease. It is asked early enough to push
//! what it has written. An answer may be in flight during a write of our own. The layer above, which orders
//! its calls, decides what of that answer may be cached.

mod ended;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, Lease, LeaseId, LeaseKind};

use ended::Ended;

/// How early to act before the end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    /// The client does not rely on a lease for this last part of its term.
    pub(crate) end: Duration,
    /// A renewal is sent this long before that.
    pub(crate) renew: Duration,
    /// Without a renewal, the layer above must push its writes this long before the end.
    pub(crate) push: Duration,
    /// A file without a request for this long is not renewed.
    pub(crate) idle: Duration,
}

impl Default for Margin {
    fn default() -> Margin {
        let seconds = Duration::from_secs;
        Margin { end: Duration::from_millis(250), renew: seconds(10), push: seconds(5), idle: seconds(120) }
    }
}

/// How long a write still counts as pushed after the end of a write lease, and after each write pushed since
/// then. It must not exceed the servers' `write_slack`, during which they let no other client in.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Pause between an unanswered renewal and the next one.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// An action to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Send GETLEASE for this kind.
    Renew(Handle, LeaseKind),
    /// The layer above must flush, and return the lease by this time.
    Recall(LeaseId, Handle, Instant),
    /// The lease is lost from now on.
    Lost(LeaseId, Handle),
    /// Send VACATED, then call [`Leases::vacated`].
    Vacate(Handle),
}

/// What to tell the server at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReturnAll {
    /// One VACATED of everything is enough.
    pub(crate) all: bool,
    /// Otherwise, send one VACATED for each of these.
    pub(crate) each: Vec<Handle>,
}

/// A request that may bring a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    number: u64,
    at: Instant,
}

/// A lease as granted in an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) kind: LeaseKind,
    /// The term, counted from when the lease was requested.
    pub(crate) term: Duration,
    /// The file's `modifyrev`.
    pub(crate) change: u64,
}

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    id: LeaseId,
    kind: LeaseKind,
    until: Instant,
    used: Instant,
    /// A renewal is in flight or was refused.
    renewing: bool,
    recalled: bool,
}

#[derive(Debug, Default)]
struct File {
    held: Option<HeldLease>,
    /// When a write lease ended, or when the last write pushed after that ended. More writes may have to be
    /// pushed.
    writer_until: Option<Instant>,
    /// Number of pushed writes in flight.
    pushing: u32,
    /// The server waits for VACATED.
    evicted: bool,
    vacating: bool,
    /// Requests with a number below this grant nothing.
    barrier: u64,
    /// Number of requests in flight.
    in_flight: u32,
    /// A failed renewal is not tried again before this time.
    not_before: Option<Instant>,
    /// When the file needs attention.
    alarm: Option<Instant>,
}

impl File {
    /// May writes under a lease that has ended still be in flight?
    fn is_late(&self, now: Instant) -> bool {
        self.pushing > 0 || self.writer_until.is_some_and(|until| now < until + LATE_MAX)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Leases {
    margin: Margin,
    files: HashMap<Handle, File>,
    ids: HashMap<LeaseId, Handle>,
    alarms: BTreeSet<(Instant, Handle)>,
    next: u64,
    effects: Vec<Effect>,
    /// Ends of leases and evictions, also of files that are not in the table.
    ended: Ended,
    /// The client is shutting down: it asks for no more leases. Leases returned from now on wait for
    /// [`Leases::return_all`].
    leaving: bool,
    returned: Vec<Handle>,
}

impl Leases {
    pub(crate) fn new(margin: Margin) -> Leases {
        Leases {
            margin,
            files: HashMap::new(),
            ids: HashMap::new(),
            alarms: BTreeSet::new(),
            next: 1,
            effects: Vec::new(),
            ended: Ended::default(),
            leaving: false,
            returned: Vec::new(),
        }
    }

    /// The actions to carry out, in order.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Notes that a request for a lease is about to be sent for the first time. `None` if no lease may be
    /// asked for now.
    pub(crate) fn ask(&mut self, now: Instant, handle: &Handle) -> Option<Asked> {
        if self.leaving {
            return None;
        }
        let file = self.files.entry(*handle).or_default();
        if file.vacating || file.evicted {
            return None;
        }
        file.in_flight += 1;
        self.next += 1;
        Some(Asked { number: self.next, at: now })
    }

    /// Is a VACATED of the file in flight?
    pub(crate) fn is_vacating(&self, handle: &Handle) -> bool {
        self.files.get(handle).is_some_and(|file| file.vacating || file.evicted)
    }

    /// Notes that a request for a lease is about to be sent, on a file whose handle the answer will give.
    pub(crate) fn ask_unknown(&mut self, now: Instant) -> Asked {
        self.next += 1;
        Asked { number: self.next, at: now }
    }

    /// Handles the answer.
    pub(crate) fn answered_unknown(
        &mut self,
        now: Instant,
        handle: &Handle,
        asked: Asked,
        granted: Option<Grant>,
    ) -> Option<Lease> {
        let granted = granted.filter(|_| self.ended.grants(handle, asked.number) && !self.leaving);
        self.files.entry(*handle).or_default().in_flight += 1;
        self.answered(now, handle, asked, granted)
    }

    /// Handles the answer: a lease, or none.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        handle: &Handle,
        asked: Asked,
        granted: Option<Grant>,
    ) -> Option<Lease> {
        let fresh = LeaseId(self.next + 1);
        self.next += 1;
        let file = self.files.get_mut(handle)?;
        debug_assert!(file.in_flight > 0, "a request for a lease ends that was not sent");
        file.in_flight = file.in_flight.saturating_sub(1);
        let believable = asked.number >= file.barrier && !file.evicted && !file.vacating;
        let granted = granted.filter(|_| believable);
        let end =
            granted.and_then(|grant| Some((grant, (asked.at + grant.term).checked_sub(self.margin.end)?)));
        if let Some((Grant { kind, change, .. }, until)) = end.filter(|(_, until)| *until > now) {
            let held = file.held.get_or_insert(HeldLease {
                id: fresh,
                kind,
                until,
                used: now,
                renewing: false,
                recalled: false,
            });
            (held.kind, held.until) = (held.kind.max(kind), held.until.max(until));
            held.renewing = false;
            file.not_before = None;
            let lease = Lease {
                id: held.id,
                kind: held.kind,
                until: None,
                change,
                space_limit: Lease::NO_SPACE_LIMIT,
            };
            let recalled = held.recalled;
            self.ids.insert(lease.id, *handle);
            self.set_alarm(handle);
            // A lease that is being returned is not granted again.
            return (!recalled).then_some(lease);
        }
        // The answer was a refusal or came too late: an existing lease ends when it would have ended anyway.
        self.forget_if_unused(handle);
        None
    }

    /// Notes that no answer came.
    pub(crate) fn unanswered(&mut self, now: Instant, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            debug_assert!(file.in_flight > 0, "a request for a lease ends that was not sent");
            file.in_flight = file.in_flight.saturating_sub(1);
            if let Some(held) = &mut file.held {
                held.renewing = false;
                file.not_before = Some(now + RENEW_AGAIN);
            }
            if file.held.is_some_and(|held| held.until > now) {
                self.set_alarm(handle);
            }
        }
        self.forget_if_unused(handle);
    }

    /// Notes that the layer above uses the file.
    pub(crate) fn used(&mut self, now: Instant, handle: &Handle) {
        let Some(file) = self.files.get_mut(handle) else { return };
        if let Some(held) = &mut file.held {
            held.used = now;
        }
    }

    /// Handles EVICTED, which may be a repetition. If the lease has ended and writes under it are still in
    /// flight, no VACATED is sent: it would let other clients in before those writes. The server sends
    /// EVICTED again, or waits as long as those writes take.
    pub(crate) fn evicted(&mut self, now: Instant, handle: &Handle) {
        self.next += 1;
        self.ended.insert(handle, self.next);
        let file = self.files.entry(*handle).or_default();
        file.barrier = self.next;
        if file.vacating || (file.held.is_none() && file.is_late(now)) {
            return self.forget_if_unused(handle);
        }
        file.evicted = true;
        match &mut file.held {
            Some(held) => {
                if !std::mem::replace(&mut held.recalled, true) {
                    self.effects.push(Effect::Recall(held.id, *handle, held.until));
                }
            }
            None => self.vacate(handle),
        }
    }

    /// Notes that the layer above has returned a lease. It has pushed all that it wrote.
    pub(crate) fn returned(&mut self, id: LeaseId) {
        let Some(handle) = self.ids.remove(&id) else { return };
        let Some(file) = self.files.get_mut(&handle) else { return };
        if let Some(held) = file.held.take_if(|held| held.id == id) {
            self.next += 1;
            file.barrier = self.next;
            self.ended.insert(&handle, self.next);
            let late = file.pushing > 0;
            if late {
                // The layer above ran out of time. Do not tell the server while the last bytes are in flight.
                (file.evicted, file.writer_until) = (false, Some(held.until));
            }
            let waits = self.leaving && !late && !file.evicted && !file.vacating;
            self.set_alarm(&handle);
            if waits {
                self.returned.push(handle);
                self.forget_if_unused(&handle);
            } else if !late {
                self.vacate(&handle);
            }
        }
    }

    /// Stops asking for leases.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// What to tell the server now that the layer above has returned its leases. One VACATED of everything is
    /// enough, unless writes are in flight that others must not overtake.
    pub(crate) fn return_all(&mut self) -> Option<ReturnAll> {
        let each = std::mem::take(&mut self.returned);
        let all = self.files.values().all(|file| file.pushing == 0);
        (!each.is_empty()).then_some(ReturnAll { all, each })
    }

    /// Number of leases that are held, or whose return the server has not heard of.
    pub(crate) fn held_at_server(&self) -> usize {
        let vacating = self.files.values().filter(|file| file.vacating || file.evicted);
        self.ids.len() + vacating.filter(|file| file.held.is_none()).count() + self.returned.len()
    }

    /// Checks the counters at the end: every lease that the client relies on is one that the layer above has.
    pub(crate) fn check_counters(&self) {
        let held = self.files.values().filter(|file| file.held.is_some()).count();
        debug_assert_eq!(held, self.ids.len(), "leases that the layer above does not have");
    }

    /// Notes that VACATED was answered.
    pub(crate) fn vacated(&mut self, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            file.vacating = false;
        }
        self.forget_if_unused(handle);
    }

    /// Handles a lease that the server has lost, or says it has lost (NQNFS_EXPIRED).
    pub(crate) fn expired(&mut self, handle: &Handle) {
        self.lose(handle);
    }

    /// Acts on the alarms up to now.
    pub(crate) fn tick(&mut self, now: Instant) {
        while let Some(&(at, handle)) = self.alarms.first() {
            if at > now {
                return;
            }
            self.alarms.pop_first();
            if let Some(file) = self.files.get_mut(&handle) {
                file.alarm = None;
            }
            self.alarm(now, &handle);
        }
    }

    /// When [`Leases::tick`] must run next.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The kind of lease that is valid now.
    #[cfg(test)]
    pub(crate) fn held(&self, now: Instant, handle: &Handle) -> Option<LeaseKind> {
        let held = self.files.get(handle)?.held.filter(|held| held.until > now && !held.recalled)?;
        Some(held.kind)
    }

    /// Notes that a WRITE is about to be sent. Returns whether it pushes data written under a write lease, as
    /// far as can be told here. Other writes ask for such a lease, so that a recovering server can tell them
    /// apart. After the lease has ended, writes count as pushed for as long as the server would wait: while
    /// such writes are in flight, and [`LATE_MAX`] after the last.
    pub(crate) fn write_begins(&mut self, now: Instant, handle: &Handle) -> bool {
        let Some(file) = self.files.get_mut(handle) else { return false };
        let pushes = file.is_late(now) || file.held.is_some_and(|held| held.kind == LeaseKind::Write);
        file.pushing += u32::from(pushes);
        pushes
    }

    /// Notes that a WRITE was answered or given up. `pushed` is the result of [`Leases::write_begins`].
    pub(crate) fn write_ended(&mut self, now: Instant, handle: &Handle, pushed: bool) {
        let Some(file) = self.files.get_mut(handle).filter(|_| pushed) else { return };
        debug_assert!(file.pushing > 0, "a pushed WRITE ends that did not begin");
        file.pushing = file.pushing.saturating_sub(1);
        if file.held.is_none() && !file.vacating {
            file.writer_until = Some(now);
        }
        self.set_alarm(handle);
        self.forget_if_unused(handle);
    }

    /// Number of files in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    fn alarm(&mut self, now: Instant, handle: &Handle) {
        let margin = self.margin;
        let Some(file) = self.files.get_mut(handle) else { return };
        let Some(held) = &mut file.held else {
            file.writer_until.take_if(|until| *until + LATE_MAX <= now);
            self.set_alarm(handle);
            return self.forget_if_unused(handle);
        };
        if held.until <= now {
            return self.lose(handle);
        }
        let in_use = now.saturating_duration_since(held.used) < margin.idle;
        if !held.recalled && held.until <= now + margin.push {
            held.recalled = true;
            self.effects.push(Effect::Recall(held.id, *handle, held.until));
        } else if !held.recalled && !held.renewing && !in_use {
            // The file is not in use: treat it as renewing, so that no renewal is sent.
            held.renewing = true;
        } else if !held.recalled && !held.renewing && held.until <= now + margin.renew {
            held.renewing = true;
            self.effects.push(Effect::Renew(*handle, held.kind));
        }
        self.set_alarm(handle);
    }

    fn set_alarm(&mut self, handle: &Handle) {
        let margin = self.margin;
        let Some(file) = self.files.get_mut(handle) else { return };
        let before = |held: &HeldLease, early: Duration| held.until.checked_sub(early).unwrap_or(held.until);
        let not_before = file.not_before;
        let at = file.held.map(|held| match (held.recalled, held.renewing) {
            (true, _) => held.until,
            (false, true) => before(&held, margin.push),
            (false, false) => {
                let at = before(&held, margin.renew);
                at.max(not_before.unwrap_or(at)).min(held.until)
            }
        });
        let at = at.or(file.writer_until.map(|until| until + LATE_MAX));
        if let Some(old) = std::mem::replace(&mut file.alarm, at) {
            self.alarms.remove(&(old, *handle));
        }
        if let Some(at) = at {
            self.alarms.insert((at, *handle));
        }
    }

    fn lose(&mut self, handle: &Handle) {
        let Some(file) = self.files.get_mut(handle) else { return };
        if let Some(held) = file.held.take() {
            self.next += 1;
            file.barrier = self.next;
            self.ended.insert(handle, self.next);
            if held.kind == LeaseKind::Write {
                file.writer_until = Some(held.until);
            }
            self.ids.remove(&held.id);
            self.effects.push(Effect::Lost(held.id, *handle));
            // After a write lease, some writes may not have been pushed yet.
            let evicted = std::mem::take(&mut file.evicted) && held.kind != LeaseKind::Write;
            self.set_alarm(handle);
            if evicted {
                self.vacate(handle);
            }
        }
        self.forget_if_unused(handle);
    }

    fn vacate(&mut self, handle: &Handle) {
        let Some(file) = self.files.get_mut(handle) else { return };
        file.evicted = false;
        if !std::mem::replace(&mut file.vacating, true) {
            self.effects.push(Effect::Vacate(*handle));
        }
    }

    /// Drops an unused file. A barrier stays as long as an earlier request is in flight.
    fn forget_if_unused(&mut self, handle: &Handle) {
        let unused = |file: &File| {
            file.held.is_none()
                && !file.vacating
                && !file.evicted
                && file.in_flight == 0
                && file.writer_until.is_none()
                && file.pushing == 0
        };
        if self.files.get(handle).is_some_and(unused) {
            self.files.remove(handle);
        }
    }
}

#[cfg(test)]
mod tests;
