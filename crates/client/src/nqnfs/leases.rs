//! What a client of NQNFS may believe (Macklem 1994, section 4).
//!
//! A pure state machine: events come in as method calls with the time, effects go out through [`Leases::effects`]. What it
//! keeps true, whatever the network loses, repeats or reorders:
//! - a lease counts from when its request was first sent, and is believed for [`Margin`] less than that;
//! - an answer to a request that was sent before an EVICTED came grants nothing: the eviction may have been of that lease;
//! - a file is not asked for while its VACATED is not answered: what gives up the lease of today must not give up that of
//!   tomorrow.
//!
//! A lease is renewed shortly before it ends while the file is in use, and handed back to the layer above in time for what
//! it has written to be pushed when it is not, or when the server cannot be reached. What may be cached of an answer that
//! was under way during a write of our own is for the layer above to know, which orders its calls.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, Lease, LeaseId, LeaseKind};

/// How early is early enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    /// A lease is not believed for this last part of its term.
    pub(crate) end: Duration,
    /// A renewal is tried this long before that.
    pub(crate) renew: Duration,
    /// What was written is asked of the layer above this long before the end, if there was no renewal.
    pub(crate) push: Duration,
    /// A file that nothing was asked of for so long is not renewed.
    pub(crate) idle: Duration,
}

impl Default for Margin {
    fn default() -> Margin {
        let seconds = Duration::from_secs;
        Margin { end: Duration::from_millis(250), renew: seconds(10), push: seconds(5), idle: seconds(120) }
    }
}

/// For so long after the end of a lease for writing, and after each write that was pushed then, a write counts as pushed. No
/// longer than servers' `write_slack`, in which they let nobody else in.
const LATE_MAX: Duration = Duration::from_secs(5);

/// Between a renewal that was not answered and the next.
const RENEW_AGAIN: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// GETLEASE, of this kind.
    Renew(Handle, LeaseKind),
    /// The layer above is to flush, and to return it by then.
    Recall(LeaseId, Handle, Instant),
    /// It is believed no more, from now on.
    Lost(LeaseId, Handle),
    /// VACATED; then say [`Leases::vacated`].
    Vacate(Handle),
}

/// What is to be told at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReturnAll {
    /// One VACATED of everything will do.
    pub(crate) all: bool,
    /// Else one of each of these.
    pub(crate) each: Vec<Handle>,
}

/// A request that may bring a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    number: u64,
    at: Instant,
}

/// A lease as the answer to a request grants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) kind: LeaseKind,
    /// From when it was asked for.
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
    /// A renewal is under way, or was refused.
    renewing: bool,
    recalled: bool,
}

#[derive(Debug, Default)]
struct File {
    held: Option<HeldLease>,
    /// A lease for writing ended then, or the last write that was pushed after that; more may be to be pushed.
    writer_until: Option<Instant>,
    /// Writes that are being pushed.
    pushing: u32,
    /// The server waits for VACATED.
    evicted: bool,
    vacating: bool,
    /// Requests below this number bring nothing.
    barrier: u64,
    /// Requests under way.
    flights: u32,
    /// A renewal that failed is not tried again before.
    not_before: Option<Instant>,
    /// When there is something to do.
    alarm: Option<Instant>,
}

impl File {
    /// Is what was written under a lease that has ended being pushed still, as far as can be told?
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
    /// Every eviction so far was of a number below this.
    evictions: u64,
    /// No more leases are asked for; what is returned from now on waits for the farewell.
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
            evictions: 0,
            leaving: false,
            returned: Vec::new(),
        }
    }

    /// What is to be done, in this order.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// A request for a lease is about to be sent for the first time. `None` if none is to be asked for now.
    pub(crate) fn ask(&mut self, now: Instant, handle: &Handle) -> Option<Asked> {
        if self.leaving {
            return None;
        }
        let file = self.files.entry(*handle).or_default();
        if file.vacating || file.evicted {
            return None;
        }
        file.flights += 1;
        self.next += 1;
        Some(Asked { number: self.next, at: now })
    }

    /// Is a VACATED of the file on its way?
    pub(crate) fn is_vacating(&self, handle: &Handle) -> bool {
        self.files.get(handle).is_some_and(|file| file.vacating || file.evicted)
    }

    /// A request for a lease is about to be sent, on a file whose handle the answer will tell.
    pub(crate) fn ask_unknown(&mut self, now: Instant) -> Asked {
        self.next += 1;
        Asked { number: self.next, at: now }
    }

    /// Its answer. Whatever was evicted since it was sent may have been that file, so that then it grants nothing.
    pub(crate) fn answered_unknown(
        &mut self,
        now: Instant,
        handle: &Handle,
        asked: Asked,
        granted: Option<Grant>,
    ) -> Option<Lease> {
        let granted = granted.filter(|_| asked.number >= self.evictions && !self.leaving);
        self.files.entry(*handle).or_default().flights += 1;
        self.answered(now, handle, asked, granted)
    }

    /// Its answer: a lease, or none.
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
        file.flights = file.flights.saturating_sub(1);
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
            // One that is on its way back is not given anew.
            return (!recalled).then_some(lease);
        }
        // Refused, or too late: what is held ends as it would have.
        self.forget_if_unused(handle);
        None
    }

    /// No answer came.
    pub(crate) fn unanswered(&mut self, now: Instant, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            file.flights = file.flights.saturating_sub(1);
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

    /// The layer above uses the file.
    pub(crate) fn used(&mut self, now: Instant, handle: &Handle) {
        let Some(file) = self.files.get_mut(handle) else { return };
        if let Some(held) = &mut file.held {
            held.used = now;
        }
    }

    /// EVICTED came, perhaps not for the first time. One that finds the lease ended, and writes of it on their way still, is not
    /// answered: VACATED would let others in before them. The server sends it again, or waits as long as they take.
    pub(crate) fn evicted(&mut self, now: Instant, handle: &Handle) {
        self.next += 1;
        let barrier = self.next;
        self.evictions = barrier;
        let file = self.files.entry(*handle).or_default();
        file.barrier = barrier;
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

    /// The layer above has returned it: all that was written has been pushed.
    pub(crate) fn returned(&mut self, id: LeaseId) {
        let Some(handle) = self.ids.remove(&id) else { return };
        let Some(file) = self.files.get_mut(&handle) else { return };
        if let Some(held) = file.held.take_if(|held| held.id == id) {
            self.next += 1;
            file.barrier = self.next;
            let late = file.pushing > 0;
            if late {
                // It had no more time. The server is not told while its last bytes are on their way.
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

    /// Nothing is asked for any more.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// What is to be told now that all has been returned that will be. Of everything at once, unless bytes are on their way
    /// that others must not overtake.
    pub(crate) fn return_all(&mut self) -> Option<ReturnAll> {
        let each = std::mem::take(&mut self.returned);
        let all = self.files.values().all(|file| file.pushing == 0);
        (!each.is_empty()).then_some(ReturnAll { all, each })
    }

    /// VACATED was answered.
    pub(crate) fn vacated(&mut self, handle: &Handle) {
        if let Some(file) = self.files.get_mut(handle) {
            file.vacating = false;
        }
        self.forget_if_unused(handle);
    }

    /// The server has lost it, or says so (NQNFS_EXPIRED).
    pub(crate) fn expired(&mut self, handle: &Handle) {
        self.lose(handle);
    }

    /// Time goes on.
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

    /// When [`Leases::tick`] has something to do.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// The kind of lease that may be believed in now.
    #[cfg(test)]
    pub(crate) fn held(&self, now: Instant, handle: &Handle) -> Option<LeaseKind> {
        let held = self.files.get(handle)?.held.filter(|held| held.until > now && !held.recalled)?;
        Some(held.kind)
    }

    /// A WRITE is about to be sent. Is it the push of what was written under a lease for writing, as far as can be told here?
    /// Others ask for such a lease, so that a server that recovers can tell them apart. After the lease has ended that goes on
    /// as long as the server would wait: while such writes are under way, and [`LATE_MAX`] after the last.
    pub(crate) fn write_begins(&mut self, now: Instant, handle: &Handle) -> bool {
        let Some(file) = self.files.get_mut(handle) else { return false };
        let pushes = file.is_late(now) || file.held.is_some_and(|held| held.kind == LeaseKind::Write);
        file.pushing += u32::from(pushes);
        pushes
    }

    /// It was answered, or given up; `pushed` is what was said when it began.
    pub(crate) fn write_ended(&mut self, now: Instant, handle: &Handle, pushed: bool) {
        let Some(file) = self.files.get_mut(handle).filter(|_| pushed) else { return };
        file.pushing = file.pushing.saturating_sub(1);
        if file.held.is_none() && !file.vacating {
            file.writer_until = Some(now);
        }
        self.set_alarm(handle);
        self.forget_if_unused(handle);
    }

    /// Files of which anything is known.
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
            // Nobody will miss it.
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
            if held.kind == LeaseKind::Write {
                file.writer_until = Some(held.until);
            }
            self.ids.remove(&held.id);
            self.effects.push(Effect::Lost(held.id, *handle));
            // Of a lease for writing not all may have been pushed yet.
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

    /// A barrier is kept for as long as a request from before it is under way.
    fn forget_if_unused(&mut self, handle: &Handle) {
        let unused = |file: &File| {
            file.held.is_none()
                && !file.vacating
                && !file.evicted
                && file.flights == 0
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
