//! The account of one file system of the origin: how many bytes may stay unsent after a close has been
//! answered.
//!
//! Under a write lease a close sends nothing. If the origin then turns out to have no space, no caller is
//! left to receive the error. Bytes that stay unsent at a close are **kept**. Each kept file has a
//! [`Claim`] on the account until its bytes are at the origin.
//!
//! | state | how it begins | what a close does |
//! |---|---|---|
//! | unknown | nothing is known of the space | asks (FSSTAT), then decides |
//! | open | space was seen, and the claim fits | keeps its bytes |
//! | short | the claim does not fit | sends, commits, returns the error; asks again once a second at most |
//! | refused | a WRITE or COMMIT failed: NOSPC, DQUOT, ROFS or IO | sends, commits, returns the error |
//!
//! **What fits.** A promise covers a claim if the file ends below the `space_limit` of its lease, and the
//! promise is believable: no more than the space that was seen. Promised and other claims together take
//! at most half of the space last seen, less what we have sent since. Claims without a promise take at most
//! an eighth of it, because other clients count on the same space. For these the space also shrinks with
//! time, as if other clients wrote [`OTHERS_BYTES`] each second.
//!
//! **Own writes do not take the space of kept files.** Suppose a WRITE of a file that is not kept would
//! leave less than twice the claims ([`Space::is_in_the_way`]). Then it waits, and the kept files go first.
//! They also go when the space that is left gets short ([`Space::must_drain`]).
//!
//! **End of a refusal.** A refusal ends when the origin has taken a WRITE since, a hold time has passed,
//! and space was seen after that WRITE. The hold time doubles with each refusal. After a broken promise, no
//! promise of the origin counts.
//!
//! This is pure bookkeeping: its input is closes, WRITEs, replies and time.

use std::time::Duration;

use tokio::time::Instant;
use vfs::Status;

/// The allocation unit of file systems.
const BLOCK_BYTES: u64 = crate::data::BLOCK_BYTES;
/// All claims take at most one part in this many of the space.
const KEPT_DIVISOR: u64 = 2;
/// Claims without a promise take at most one part in this many of it.
const UNPROMISED_DIVISOR: u64 = 8;
/// Bytes that all other clients are assumed to write in a second.
const OTHERS_BYTES: u64 = 64 << 20;
/// The shortest interval between two requests for the space.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a refusal holds: the minimum for the first one, and the maximum to which repeated ones double.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(3600);
/// The minimum for a quota, which does not show in the space of the file system.
const QUOTA_HOLD_MIN: Duration = Duration::from_secs(600);
/// A refusal that comes this long after the end of the last one counts as a first one.
const CALM: Duration = Duration::from_secs(600);

/// Bytes that kept files need at the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// For files for which the origin has set space aside.
    pub promised: u64,
    /// For other files.
    pub unpromised: u64,
}

impl Claim {
    /// The claim for so many bytes of one file: full blocks, and one more for the file's overhead.
    pub fn of(bytes: u64, promised: bool) -> Claim {
        let needed = if bytes == 0 { 0 } else { bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES };
        if promised {
            Claim { promised: needed, unpromised: 0 }
        } else {
            Claim { promised: 0, unpromised: needed }
        }
    }

    /// The sum of both.
    pub fn total(self) -> u64 {
        self.promised + self.unpromised
    }

    fn plus(self, other: Claim) -> Claim {
        Claim { promised: self.promised + other.promised, unpromised: self.unpromised + other.unpromised }
    }

    fn minus(self, other: Claim) -> Claim {
        let contains = self.promised >= other.promised && self.unpromised >= other.unpromised;
        debug_assert!(contains, "{self:?} does not contain {other:?}");
        Claim {
            promised: self.promised.saturating_sub(other.promised),
            unpromised: self.unpromised.saturating_sub(other.unpromised),
        }
    }
}

/// The decision about a close with bytes that are not at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes may stay here. The account holds a claim for them.
    Keep,
    /// The bytes must go to the origin before the close is answered.
    Send,
    /// Ask the origin for its space, then decide again.
    Ask,
}

/// What had been sent when the request for the space was sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    sent: u64,
    in_flight: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    at: Instant,
    hold: Duration,
    /// When the origin last took something since the refusal.
    taken: Option<Instant>,
}

/// The account of one file system.
#[derive(Debug, Default)]
pub struct Space {
    /// The free bytes that the origin reported, and when.
    seen: Option<(u64, Instant)>,
    /// When the last request for the space ended, with or without an answer.
    asked: Option<Instant>,
    /// Bytes sent that `seen` does not show.
    sent: u64,
    /// Bytes in flight.
    in_flight: u64,
    kept: Claim,
    refusal: Option<Refusal>,
    /// The last refusal, in force or over: when it came, and its hold time.
    last_refusal: Option<(Instant, Duration)>,
    /// The origin has broken a promise.
    broken: bool,
    /// A task is sending the kept files.
    pub draining: bool,
}

impl Space {
    /// Decides about a close with `bytes` bytes that are not at the origin. `promise` is the space that the
    /// origin has set aside for them, if they are within it.
    pub fn decide(&mut self, bytes: u64, promise: Option<u64>, now: Instant) -> (Verdict, Claim) {
        let available = self.available();
        let believed =
            !self.broken && promise.is_some_and(|promise| available.is_some_and(|there| promise <= there));
        let claim = Claim::of(bytes, believed);
        let verdict = self.verdict(claim, now);
        if verdict == Verdict::Keep {
            self.kept = self.kept.plus(claim);
        }
        (verdict, claim)
    }

    fn verdict(&mut self, claim: Claim, now: Instant) -> Verdict {
        if let Some(refusal) = self.refusal {
            let Some(taken) = refusal.taken.filter(|_| now >= refusal.at + refusal.hold) else {
                return Verdict::Send;
            };
            if self.seen.is_none_or(|(_, at)| at < taken) {
                return self.ask(now);
            }
        }
        if self.fits(claim, now) {
            self.refusal = None;
            return Verdict::Keep;
        }
        self.ask(now)
    }

    fn ask(&self, now: Instant) -> Verdict {
        if self.may_ask(now) { Verdict::Ask } else { Verdict::Send }
    }

    fn fits(&self, claim: Claim, now: Instant) -> bool {
        let (Some(available), Some((_, at))) = (self.available(), self.seen) else {
            return claim.total() == 0;
        };
        let others = (now.duration_since(at).as_secs_f64() * OTHERS_BYTES as f64) as u64;
        let lately = available.saturating_sub(others);
        let all = self.kept.plus(claim);
        all.total() <= available / KEPT_DIVISOR
            && (claim.unpromised == 0 || all.unpromised <= lately / UNPROMISED_DIVISOR)
    }

    /// The free bytes by estimate: those seen, less those sent since.
    fn available(&self) -> Option<u64> {
        self.seen.map(|(available, _)| available.saturating_sub(self.sent))
    }

    /// The claim of a kept file has changed.
    pub fn adjust(&mut self, before: Claim, after: Claim) {
        self.kept = self.kept.minus(before).plus(after);
    }

    /// May the origin be asked now? Not within `ASK_INTERVAL` of the last answer.
    pub fn may_ask(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| now >= asked + ASK_INTERVAL)
    }

    /// A request for the space is about to be sent.
    pub fn begin_ask(&self) -> Asked {
        Asked { sent: self.sent, in_flight: self.in_flight }
    }

    /// The request has been answered: so many bytes are free for us. `None` if the origin did not report
    /// it.
    pub fn end_ask(&mut self, asked: Asked, available: Option<u64>, now: Instant) {
        self.asked = Some(now);
        if let Some(available) = available {
            self.seen = Some((available, now));
            // The answer may or may not count what was in flight then: assume that it does not.
            self.sent = self.sent.saturating_sub(asked.sent) + asked.in_flight;
        }
    }

    /// The origin reported its free bytes without a request.
    pub fn saw(&mut self, available: u64, at: Instant) {
        self.seen.get_or_insert((available, at));
    }

    /// A WRITE of so many bytes is sent. It may allocate one block more than it fills.
    pub fn sending(&mut self, bytes: u64) {
        let needed = Claim::of(bytes, false).total();
        self.sent = self.sent.saturating_add(needed);
        self.in_flight += needed;
    }

    /// The WRITE has been answered.
    pub fn answered(&mut self, bytes: u64) {
        let needed = Claim::of(bytes, false).total();
        debug_assert!(self.in_flight >= needed, "{needed} of {} bytes in flight arrive", self.in_flight);
        self.in_flight = self.in_flight.saturating_sub(needed);
    }

    /// The origin has taken a WRITE or COMMIT.
    pub fn taken(&mut self, now: Instant) {
        if let Some(refusal) = &mut self.refusal {
            refusal.taken = Some(now);
        }
    }

    /// The origin has refused bytes; `promised` says whether it had promised space for them. Returns true
    /// if no refusal was in force.
    pub fn refused(&mut self, status: Status, promised: bool, now: Instant) -> bool {
        let first = self.refusal.is_none();
        self.broken |= promised;
        let hold = match self.last_refusal {
            Some((_, hold)) if !first => hold,
            Some((at, hold)) if now < at + hold + CALM => (hold * 2).min(HOLD_MAX),
            _ if status == Status::Dquot => QUOTA_HOLD_MIN,
            _ => HOLD_MIN,
        };
        self.refusal = Some(Refusal { at: now, hold, taken: None });
        self.last_refusal = Some((now, hold));
        first
    }

    /// Is a refusal in force?
    pub fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Is too little space left for the kept files, so that they must be sent now?
    pub fn must_drain(&self) -> bool {
        let Some(available) = self.available() else { return self.kept.total() > 0 };
        let short = self.kept.total() > available / KEPT_DIVISOR;
        let crowded = self.kept.unpromised > available / (UNPROMISED_DIVISOR / 2);
        self.kept.total() > 0 && (short || crowded || self.is_refused())
    }

    /// Would a WRITE of another file take the space of kept files? Then it waits until they are sent.
    pub fn is_in_the_way(&self, bytes: u64) -> bool {
        let left = self.available().map(|available| available.saturating_sub(bytes));
        self.kept.total() > 0 && left.is_some_and(|left| left < KEPT_DIVISOR * self.kept.total())
    }

    /// The claims of all kept files.
    #[cfg(test)]
    pub fn kept(&self) -> Claim {
        self.kept
    }
}

#[cfg(test)]
mod tests;
