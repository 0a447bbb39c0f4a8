//! The account of one file system of the origin: how much may stay unsent after a close has been answered.
//!
//! Under a write lease a close sends nothing, so nobody is left to tell if the origin has no space in the end. Bytes that
//! stay unsent at a close are **kept**; each kept file has a [`Claim`] on the account until its bytes are at the origin.
//!
//! | state | how it begins | what a close does |
//! |---|---|---|
//! | unknown | nothing is known of the space | asks (FSSTAT), then decides |
//! | open | space was seen, and the claim fits | keeps its bytes |
//! | short | the claim does not fit | sends, commits, and tells the error; asks again once a second at most |
//! | refused | a WRITE or COMMIT failed: NOSPC, DQUOT, ROFS or IO | sends, commits, and tells the error |
//!
//! **What fits.** A claim is covered by a promise if the file ends below the `space_limit` of its lease, and if the promise
//! is believable: no more than the space that was seen. Promised and other claims together take at most half of the space
//! last seen, less what we have sent since. Claims without a promise take at most an eighth of it, because other clients
//! count on the same space. For these the space also shrinks with time, as if somebody else wrote [`OTHERS_BYTES`] each
//! second.
//!
//! **Own writes do not take what is kept.** A WRITE of a file that is not kept waits while it would leave less than twice
//! the claims ([`Space::is_in_the_way`]): the kept files go first. They also go when the space that is left gets short
//! ([`Space::must_drain`]).
//!
//! **A refusal is over** when the origin has taken a WRITE since, a time has passed that doubles with each refusal, and
//! space was seen after that WRITE. A promise that was broken is not believed again.
//!
//! This is pure bookkeeping: it is told of closes, WRITEs, replies and time.

use std::time::Duration;

use tokio::time::Instant;
use vfs::Status;

/// What file systems allocate at a time.
const BLOCK_BYTES: u64 = crate::data::BLOCK_BYTES;
/// All claims take at most this part of the space.
const KEPT_DIVISOR: u64 = 2;
/// Claims without a promise take at most this part of it.
const UNPROMISED_DIVISOR: u64 = 8;
/// What all other clients are assumed to write in a second.
const OTHERS_BYTES: u64 = 64 << 20;
/// Space is not asked for more often than this.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a refusal lasts at least: the first, and one after others.
const HOLD_MIN: Duration = Duration::from_secs(1);
const HOLD_MAX: Duration = Duration::from_secs(3600);
/// A quota does not show in the space of the file system.
const QUOTA_HOLD_MIN: Duration = Duration::from_secs(600);
/// A refusal that came so long after the last one is a first one.
const CALM: Duration = Duration::from_secs(600);

/// Bytes that kept files need at the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Of files for which the origin has set space aside.
    pub promised: u64,
    /// Of others.
    pub unpromised: u64,
}

impl Claim {
    /// What so many bytes of one file need, with what a file costs besides.
    pub fn of(bytes: u64, promised: bool) -> Claim {
        let needed = if bytes == 0 { 0 } else { bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES };
        if promised {
            Claim { promised: needed, unpromised: 0 }
        } else {
            Claim { promised: 0, unpromised: needed }
        }
    }

    /// Both.
    pub fn total(self) -> u64 {
        self.promised + self.unpromised
    }

    fn plus(self, other: Claim) -> Claim {
        Claim { promised: self.promised + other.promised, unpromised: self.unpromised + other.unpromised }
    }

    fn minus(self, other: Claim) -> Claim {
        Claim {
            promised: self.promised.saturating_sub(other.promised),
            unpromised: self.unpromised.saturating_sub(other.unpromised),
        }
    }
}

/// What a close is to do with bytes that are not at the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They may stay here; they are on the account.
    Keep,
    /// They go to the origin before the close is answered.
    Send,
    /// The origin is asked for its space, and then this is decided again.
    Ask,
}

/// What had been sent when space was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    sent: u64,
    in_flight: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    at: Instant,
    hold: Duration,
    /// The origin has taken something since.
    taken: Option<Instant>,
}

/// The account of one file system.
#[derive(Debug, Default)]
pub struct Space {
    /// Bytes that were free for us, and when.
    seen: Option<(u64, Instant)>,
    /// When the origin was last asked, with or without an answer.
    asked: Option<Instant>,
    /// Bytes that we have sent and that `seen` does not show.
    sent: u64,
    /// Bytes in flight.
    in_flight: u64,
    kept: Claim,
    refusal: Option<Refusal>,
    /// The last refusal, over or not: when, and how long it held.
    last_refusal: Option<(Instant, Duration)>,
    /// A promise was broken.
    broken: bool,
    /// Kept files are being sent.
    pub draining: bool,
}

impl Space {
    /// A file is closed of which so many bytes are not at the origin. `promise` is what the origin has set aside for them,
    /// if they are within that.
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

    /// What there should be, as far as we know.
    fn available(&self) -> Option<u64> {
        self.seen.map(|(available, _)| available.saturating_sub(self.sent))
    }

    /// The claim of a kept file has changed.
    pub fn adjust(&mut self, before: Claim, after: Claim) {
        self.kept = self.kept.minus(before).plus(after);
    }

    /// May the origin be asked now? Not if it has just answered somebody else.
    pub fn may_ask(&self, now: Instant) -> bool {
        self.asked.is_none_or(|asked| now >= asked + ASK_INTERVAL)
    }

    /// It is asked.
    pub fn begin_ask(&self) -> Asked {
        Asked { sent: self.sent, in_flight: self.in_flight }
    }

    /// It has answered: so many bytes are free for us. `None` if it would not say.
    pub fn end_ask(&mut self, asked: Asked, available: Option<u64>, now: Instant) {
        self.asked = Some(now);
        if let Some(available) = available {
            self.seen = Some((available, now));
            // What was in flight then may or may not be in the answer.
            self.sent = self.sent.saturating_sub(asked.sent) + asked.in_flight;
        }
    }

    /// Something was seen without being asked for.
    pub fn saw(&mut self, available: u64, at: Instant) {
        self.seen.get_or_insert((available, at));
    }

    /// A WRITE of so many bytes is sent. It may allocate a block more than it fills.
    pub fn sending(&mut self, bytes: u64) {
        let needed = Claim::of(bytes, false).total();
        self.sent = self.sent.saturating_add(needed);
        self.in_flight += needed;
    }

    /// It has been answered.
    pub fn answered(&mut self, bytes: u64) {
        self.in_flight = self.in_flight.saturating_sub(Claim::of(bytes, false).total());
    }

    /// The origin has taken something.
    pub fn taken(&mut self, now: Instant) {
        if let Some(refusal) = &mut self.refusal {
            refusal.taken = Some(now);
        }
    }

    /// The origin has refused bytes, which it had promised to take or not. True if that was not known.
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

    /// Does the origin refuse what is sent?
    pub fn is_refused(&self) -> bool {
        self.refusal.is_some()
    }

    /// Is too little left for what is kept, so that it has to be sent now?
    pub fn must_drain(&self) -> bool {
        let Some(available) = self.available() else { return self.kept.total() > 0 };
        let short = self.kept.total() > available / KEPT_DIVISOR;
        let crowded = self.kept.unpromised > available / (UNPROMISED_DIVISOR / 2);
        self.kept.total() > 0 && (short || crowded || self.is_refused())
    }

    /// Would a WRITE of another file take what is kept? It waits for that to be sent.
    pub fn is_in_the_way(&self, bytes: u64) -> bool {
        let left = self.available().map(|available| available.saturating_sub(bytes));
        self.kept.total() > 0 && left.is_some_and(|left| left < KEPT_DIVISOR * self.kept.total())
    }

    /// What is kept.
    #[cfg(test)]
    pub fn kept(&self) -> Claim {
        self.kept
    }
}

#[cfg(test)]
mod tests;
