//! A client: the state machine of [`crate::nqnfs::leases`], and a minimal cache above it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{LeaseId, LeaseKind};

use super::faults::Faults;
use super::network::{Answer, Question, Random};
use super::server::handle;
use crate::nqnfs::leases::{Asked, Effect, Grant, Leases, Margin, ReturnAll};

/// The client's knowledge of one file.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    cached: Option<u64>,
    /// Written under a lease, and not at the server yet.
    pub(super) dirty: Option<u64>,
    /// The lease to return once nothing is dirty.
    recalled: Option<LeaseId>,
    /// Results of requests from before this generation are not cached.
    generation: u64,
    /// Writes to the server in flight.
    writing: u32,
    lease: Option<LeaseId>,
    /// The call that brought the lease or renewed it last. The lease does not cover results of earlier calls.
    brought: u64,
}

impl Known {
    /// Is nothing of its own dirty or in flight?
    pub(super) fn is_settled(&self) -> bool {
        self.dirty.is_none() && self.writing == 0
    }
}

/// A call that has not been answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) question: Question,
    pub(super) began: u64,
    asked: Option<Asked>,
    generation: u64,
    /// The application's purpose.
    pub(super) purpose: Purpose,
    /// The value to write once the lease is there.
    value: u64,
    /// Delay between making and sending the call, in milliseconds.
    pub(super) pause: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The application reads.
    Read,
    /// The application writes through.
    Write,
    /// The application will write once it has the lease.
    Lease,
    /// The application creates a file.
    Make,
    /// No application waits for it.
    Own,
}

/// A result for an application.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Read { file: usize, value: u64, began: u64, hit: bool },
    Wrote { file: usize, value: u64, began: u64, delayed: bool },
}

/// Margins that act no earlier than necessary.
const THIN: Margin = Margin {
    end: Duration::ZERO,
    renew: Duration::from_secs(1),
    push: Duration::from_millis(100),
    idle: Duration::from_secs(120),
};
/// How long a leaving client waits for an answer, in milliseconds.
const FAREWELL: u64 = 2000;
/// The first and the longest pause after NQNFS_TRYLATER, in milliseconds.
const TRYLATER: (u64, u64) = (100, 2000);

pub(super) struct Host {
    pub(super) leases: Leases,
    pub(super) files: Vec<Known>,
    pub(super) waiting: BTreeMap<u64, Waiting>,
    /// The longest term to ask for, in seconds.
    term_max_s: u64,
    next: u64,
    /// When the client had told the server everything at the end.
    return_all: Option<u64>,
}

impl Host {
    /// `incarnation` distinguishes the calls of one incarnation from those of the next.
    pub(super) fn new(incarnation: u64, faults: &Faults) -> Host {
        let margin = if faults.thin { THIN } else { Margin::default() };
        Host {
            leases: Leases::new(margin),
            files: vec![Known::default(); faults.all_files()],
            waiting: BTreeMap::new(),
            term_max_s: faults.term_max_s,
            next: incarnation << 32,
            return_all: None,
        }
    }

    /// An application reads. The result comes at once, or when the call is answered.
    pub(super) fn read(&mut self, now: Instant, at: u64, file: usize, random: &mut Random) -> Option<Told> {
        let known = self.files[file];
        let held = self.leases.held(now, &handle(file));
        if held.is_some()
            && let Some(value) = known.dirty.or(known.cached)
        {
            return Some(Told::Read { file, value, began: at, hit: true });
        }
        if known.dirty.is_none() {
            let seconds = 1 + random.below(self.term_max_s) as u32;
            self.ask(now, at, Question::Read { file, seconds }, Purpose::Read);
        }
        None
    }

    /// An application creates a file, or takes the existing one. It does not know the handle.
    pub(super) fn make(&mut self, now: Instant, at: u64, (file, value): (usize, u64), random: &mut Random) {
        let seconds = 1 + random.below(self.term_max_s) as u32;
        let kind = if random.once_in(3) { LeaseKind::Read } else { LeaseKind::Write };
        self.ask(now, at, Question::Create { file, value, kind, seconds }, Purpose::Make);
    }

    /// Ends a client step by step, with one VACATED of everything. Returns true when it is done.
    pub(super) fn leave(&mut self, now: Instant, at: u64) -> bool {
        if let Some(since) = self.return_all {
            return self.waiting.is_empty() || at >= since + FAREWELL;
        }
        if self.waiting.values().any(|waiting| waiting.purpose != Purpose::Own) {
            return false;
        }
        self.leases.leave();
        (0..self.files.len())
            .filter(|file| self.files[*file].dirty.is_some())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|file| self.flush(now, at, file));
        if self.files.iter().any(|known| !known.is_settled()) {
            return false;
        }
        for known in &mut self.files {
            (known.cached, known.recalled) = (None, None);
            known.lease.take().into_iter().for_each(|id| self.leases.returned(id));
        }
        match self.leases.return_all() {
            Some(ReturnAll { all: true, .. }) => self.ask(now, at, Question::Everything, Purpose::Own),
            told => {
                for of in told.map(|told| told.each).unwrap_or_default() {
                    self.ask(now, at, Question::Vacated { file: file_of(&of) }, Purpose::Own);
                }
            }
        }
        self.return_all = Some(at);
        false
    }

    /// An application reads past its cache, and caches nothing.
    pub(super) fn audit(&mut self, now: Instant, at: u64, file: usize) {
        self.ask(now, at, Question::Read { file, seconds: 0 }, Purpose::Read);
    }

    /// An application writes.
    pub(super) fn write(
        &mut self,
        now: Instant,
        at: u64,
        (file, value): (usize, u64),
        random: &mut Random,
    ) -> Option<Told> {
        if self.leases.held(now, &handle(file)) == Some(LeaseKind::Write) {
            return self.write_under_lease(file, value, at);
        }
        let known = &mut self.files[file];
        if known.dirty.is_some() || known.writing > 0 {
            return None;
        }
        if random.once_in(2) {
            self.write_through(now, at, file, value, Purpose::Write);
        } else {
            let seconds = 1 + random.below(self.term_max_s) as u32;
            let question = Question::Getlease { file, kind: LeaseKind::Write, seconds };
            let before = self.next;
            self.ask(now, at, question, Purpose::Lease);
            if let Some(asking) = self.waiting.get_mut(&self.next).filter(|_| self.next > before) {
                asking.value = value;
            }
        }
        None
    }

    fn write_under_lease(&mut self, file: usize, value: u64, began: u64) -> Option<Told> {
        let known = &mut self.files[file];
        if known.writing > 0 {
            return None;
        }
        (known.dirty, known.cached) = (Some(value), Some(value));
        known.generation += 1;
        Some(Told::Wrote { file, value, began, delayed: true })
    }

    fn write_through(&mut self, now: Instant, at: u64, file: usize, value: u64, purpose: Purpose) {
        let known = &mut self.files[file];
        known.writing += 1;
        known.generation += 1;
        if purpose == Purpose::Write {
            known.cached = None;
        }
        let through = !self.leases.write_begins(now, &handle(file));
        self.ask(now, at, Question::Write { file, value, through }, purpose);
    }

    /// Pushes what was written under a lease to the server.
    pub(super) fn flush(&mut self, now: Instant, at: u64, file: usize) {
        let known = self.files[file];
        match known.dirty {
            Some(value) if known.writing == 0 => self.write_through(now, at, file, value, Purpose::Own),
            None if known.writing == 0 => {
                if let Some(id) = self.files[file].recalled.take() {
                    (self.files[file].cached, self.files[file].lease) = (None, None);
                    self.leases.returned(id);
                }
            }
            _ => {}
        }
    }

    fn ask(&mut self, now: Instant, at: u64, question: Question, purpose: Purpose) {
        let asked = match question {
            Question::Read { seconds: 0, .. }
            | Question::Write { .. }
            | Question::Vacated { .. }
            | Question::Everything => None,
            Question::Create { .. } => Some(self.leases.ask_unknown(now)),
            Question::Read { file, .. } | Question::Getlease { file, .. } => {
                match self.leases.ask(now, &handle(file)) {
                    Some(asked) => Some(asked),
                    // No lease may be asked for now.
                    None if purpose == Purpose::Own || purpose == Purpose::Lease => return,
                    None => None,
                }
            }
        };
        self.next += 1;
        let generation = question.file().map_or(0, |file| self.files[file].generation);
        let fresh = Waiting { question, began: at, asked, generation, purpose, value: 0, pause: 0 };
        self.waiting.insert(self.next, fresh);
    }

    /// A call is answered.
    pub(super) fn reply(&mut self, now: Instant, at: u64, xid: u64, answer: Answer) -> Option<Told> {
        let waiting = self.waiting.remove(&xid)?;
        let file = waiting.question.file()?;
        let Answer::Done { value, granted } = answer else {
            self.again(now, at, waiting);
            return None;
        };
        match waiting.question {
            Question::Vacated { .. } | Question::Everything => {
                self.leases.vacated(&handle(file));
                None
            }
            Question::Create { value: mine, .. } => {
                let of = handle(file);
                let granted = grant(granted, value);
                let lease =
                    waiting.asked.and_then(|asked| self.leases.answered_unknown(now, &of, asked, granted));
                let known = &mut self.files[file];
                if let Some(lease) = lease {
                    (known.lease, known.brought) = (Some(lease.id), xid);
                    // If the client has already used the file by its handle, it knows more than the creation.
                    let fresh = known.generation == waiting.generation && known.is_settled();
                    known.cached = Some(value).filter(|_| fresh).or(known.cached);
                }
                let began = waiting.began;
                // For an existing file, the answer has no data.
                (value == mine).then_some(Told::Wrote { file, value, began, delayed: false })
            }
            Question::Write { value, through, .. } => {
                self.leases.write_ended(now, &handle(file), !through);
                let known = &mut self.files[file];
                known.writing -= 1;
                known.generation += 1;
                if waiting.purpose == Purpose::Own {
                    known.dirty = known.dirty.filter(|dirty| *dirty != value);
                }
                if known.recalled.is_some() {
                    self.flush(now, at, file);
                }
                let delayed = false;
                let began = waiting.began;
                (waiting.purpose == Purpose::Write).then_some(Told::Wrote { file, value, began, delayed })
            }
            Question::Read { .. } | Question::Getlease { .. } => {
                if let Some(asked) = waiting.asked {
                    let lease = self.leases.answered(now, &handle(file), asked, grant(granted, value));
                    if let Some(lease) = lease {
                        (self.files[file].lease, self.files[file].brought) = (Some(lease.id), xid);
                    }
                }
                let known = &mut self.files[file];
                let fresh =
                    known.generation == waiting.generation && known.is_settled() && xid >= known.brought;
                if fresh && waiting.asked.is_some() && self.leases.held(now, &handle(file)).is_some() {
                    self.files[file].cached = Some(value);
                }
                let writer = self.leases.held(now, &handle(file)) == Some(LeaseKind::Write);
                if waiting.purpose == Purpose::Lease && writer {
                    return self.write_under_lease(file, waiting.value, waiting.began);
                }
                (waiting.purpose == Purpose::Read).then_some(Told::Read {
                    file,
                    value,
                    began: waiting.began,
                    hit: false,
                })
            }
        }
    }

    /// Repeats a call after NQNFS_TRYLATER, as another call with another xid.
    fn again(&mut self, now: Instant, at: u64, waiting: Waiting) {
        let Some(file) = waiting.question.file() else { return };
        if waiting.asked.is_some() && waiting.purpose != Purpose::Make {
            self.leases.unanswered(now, &handle(file));
        }
        // A reader retries by itself.
        match waiting.question {
            Question::Write { value, through, .. } => {
                self.leases.write_ended(now, &handle(file), !through);
                self.files[file].writing -= 1;
                self.write_through(now, at, file, value, waiting.purpose);
            }
            Question::Getlease { .. } if waiting.purpose == Purpose::Lease => {
                let before = self.next;
                self.ask(now, at, waiting.question, Purpose::Lease);
                if self.next == before {
                    return;
                }
            }
            Question::Create { .. } => self.ask(now, at, waiting.question, Purpose::Make),
            _ => return,
        }
        let latest = self.next;
        if let Some(fresh) = self.waiting.get_mut(&latest) {
            (fresh.began, fresh.value) = (waiting.began, waiting.value);
            fresh.pause = (waiting.pause * 2).clamp(TRYLATER.0, TRYLATER.1);
        }
    }

    pub(super) fn evicted(&mut self, now: Instant, file: usize) {
        self.leases.evicted(now, &handle(file));
        self.files[file].generation += 1;
    }

    /// Carries out the effects of what has happened.
    pub(super) fn settle(&mut self, now: Instant, at: u64, random: &mut Random) {
        self.leases.tick(now);
        loop {
            let effects = self.leases.effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Renew(of, kind) => {
                        let (file, seconds) = (file_of(&of), 1 + random.below(self.term_max_s) as u32);
                        self.ask(now, at, Question::Getlease { file, kind, seconds }, Purpose::Own);
                    }
                    Effect::Recall(id, of, _) => {
                        let file = file_of(&of);
                        self.files[file].recalled = Some(id);
                        self.flush(now, at, file);
                    }
                    Effect::Lost(_, of) => {
                        let file = file_of(&of);
                        let known = &mut self.files[file];
                        known.generation += 1;
                        (known.cached, known.recalled, known.lease) = (None, None, None);
                        // Push it late rather than never.
                        self.flush(now, at, file);
                    }
                    Effect::Vacate(of) => {
                        let file = file_of(&of);
                        self.ask(now, at, Question::Vacated { file }, Purpose::Own);
                    }
                }
            }
        }
    }
}

/// The grant in an answer with this value.
fn grant(granted: Option<(LeaseKind, u32)>, value: u64) -> Option<Grant> {
    granted.map(|(kind, seconds)| Grant { kind, term: Duration::from_secs(seconds.into()), change: value })
}

fn file_of(handle: &vfs::Handle) -> usize {
    handle.as_bytes()[0].into()
}

impl Question {
    /// The file of the question, if it has one.
    pub(super) fn file(self) -> Option<usize> {
        match self {
            Question::Read { file, .. }
            | Question::Getlease { file, .. }
            | Question::Write { file, .. }
            | Question::Create { file, .. }
            | Question::Vacated { file } => Some(file),
            Question::Everything => None,
        }
    }
}
