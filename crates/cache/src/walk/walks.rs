//! All walks of a cache, and the first steps of readers that are not walking yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Handle, Principal};

use super::budget::Budget;
use super::expected::{Expectation, Expected};
use super::roster::Roster;
use super::{Action, Guess, Step, Target, Walk};

/// Walks that are followed at a time.
const WALKS_MAX: usize = 32;
/// Directories in which a first step is remembered.
const FIRSTS_MAX: usize = 256;
/// The second step comes within this time of the first.
const SECOND_MAX: Duration = Duration::from_secs(30);
/// A walk ends if its reader takes no step for so long.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A listing is guessed if names were looked up for one in so many bytes of the directory.
const BYTES_PER_NAME: u64 = 2048;
/// The number of names that suffices for any directory.
const NAMES_MAX: u64 = 64;
/// After so many files in a row that came without a lease, guesses of files pause.
const UNLEASED_MAX: u32 = 4;
/// How long they pause.
const UNLEASED_FOR: Duration = Duration::from_secs(60);
/// The same, if the origin has given leases with other files.
const REFUSED_FOR: Duration = Duration::from_secs(2);

/// The steps in a directory in which nobody walks yet.
#[derive(Debug)]
struct First {
    principal: Principal,
    directory: Handle,
    listed: bool,
    names: Vec<Action>,
    at: Instant,
}

/// The result of a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object was here already, or could not be brought.
    Nothing,
    /// A listing came, of about so many bytes.
    Listing {
        /// The bytes.
        bytes: u64,
    },
    /// A file came.
    File {
        /// The bytes.
        bytes: u64,
        /// It can be opened without a call.
        leased: bool,
    },
}

/// After how many names the listing of a directory of so many bytes is cheaper than further lookups.
pub fn names_worth_a_listing(directory_bytes: u64) -> u64 {
    (directory_bytes / BYTES_PER_NAME).clamp(2, NAMES_MAX)
}

/// The caller of a guess: any request with the credential of the reader.
fn anybody(caller: &Caller) -> Caller {
    Caller { holder: None, deadline: None, resent: false, ..caller.clone() }
}

/// All walks.
#[derive(Debug, Default)]
pub struct Walks {
    active: Vec<Walk>,
    /// Readers of files that were opened together before.
    expectations: VecDeque<Expectation>,
    firsts: VecDeque<First>,
    budget: Budget,
    /// The largest number of unused bytes.
    bytes_max: u64,
    last_id: u64,
    unleased: u32,
    unleased_at: Option<Instant>,
    /// A file has come with a lease.
    gives_leases: bool,
}

impl Walks {
    /// No walks. At most `bytes_max` guessed bytes are unused at a time.
    pub fn new(bytes_max: u64) -> Walks {
        Walks { bytes_max, ..Walks::default() }
    }

    /// A reader takes a step.
    pub fn step(&mut self, caller: &Caller, step: &Step, now: Instant) {
        self.active.retain(|walk| now.saturating_duration_since(walk.stepped) < IDLE_MAX);
        if let Action::Opened(_, file) = &step.action {
            self.expectations.retain(|expectation| !expectation.is_idle(now));
            let mine = self.expectations.iter_mut().filter(|it| it.caller.principal == caller.principal);
            let used: u64 = mine.filter_map(|expectation| expectation.used(file, now)).sum();
            self.budget.spend(used);
        }
        let mine = |walk: &&mut Walk| walk.caller.principal == caller.principal && walk.takes(step);
        if let Some(walk) = self.active.iter_mut().find(mine) {
            let used = walk.step(step, now);
            self.budget.spend(used);
        } else if let Some((root, steps)) = self.second(caller, step, now) {
            self.begin(caller, root, &steps, now);
        }
    }

    /// If this is the second step that fits, returns the directory in which the walk begins, and its steps.
    fn second(&mut self, caller: &Caller, step: &Step, now: Instant) -> Option<(Handle, Vec<Step>)> {
        self.firsts.retain(|first| now.saturating_duration_since(first.at) < SECOND_MAX);
        let of = |first: &First, handle: &Handle| {
            first.principal == caller.principal && first.directory == *handle
        };
        if step.action.lists()
            && let Some((parent, _)) = &step.at
            && self.firsts.iter().any(|first| of(first, parent) && first.listed)
        {
            self.firsts.retain(|first| !of(first, parent) && !of(first, &step.directory));
            return Some((*parent, vec![step.clone()]));
        }
        let known = self.firsts.iter().position(|first| of(first, &step.directory));
        let at = known.unwrap_or_else(|| {
            if self.firsts.len() >= FIRSTS_MAX {
                self.firsts.pop_front();
            }
            let principal = caller.principal.clone();
            let names = Vec::new();
            self.firsts.push_back(First {
                principal,
                directory: step.directory,
                listed: false,
                names,
                at: now,
            });
            self.firsts.len() - 1
        });
        let first = self.firsts.get_mut(at)?;
        first.at = now;
        if step.action.lists() {
            first.listed = true;
            return None;
        }
        if !first.names.contains(&step.action) {
            first.names.push(step.action.clone());
        }
        let needed = names_worth_a_listing(step.directory_bytes);
        if (first.names.len() as u64) < needed && !(first.listed && first.names.len() >= 2) {
            return None;
        }
        let first = self.firsts.remove(at)?;
        let with = |action| Step { action, ..step.clone() };
        Some((step.directory, first.names.into_iter().map(with).collect()))
    }

    fn begin(&mut self, caller: &Caller, root: Handle, steps: &[Step], now: Instant) {
        if self.active.len() >= WALKS_MAX
            && let Some(at) = (0..self.active.len()).min_by_key(|at| self.active[*at].stepped)
        {
            self.active.swap_remove(at);
        }
        self.last_id += 1;
        let mut walk = Walk::new(self.last_id, anybody(caller), root, now);
        if steps.iter().any(|step| step.action == Action::Asked) {
            // The reader has listed the first directory itself.
            walk.wanted.clear();
        }
        for step in steps {
            walk.step(step, now);
        }
        self.active.push(walk);
    }

    /// Is this directory part of a walk?
    pub fn has(&self, directory: &Handle) -> bool {
        self.active.iter().any(|walk| walk.places.contains_key(directory))
    }

    /// The entries of a directory are known.
    pub fn listed(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        self.active.iter_mut().for_each(|walk| walk.listed(directory, roster, now));
    }

    /// The entries of a directory are remembered, and their attributes may be out of date.
    pub fn remembered(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        self.active.iter_mut().for_each(|walk| walk.remembered(directory, roster, now));
    }

    /// Is this a directory of a walk, of which no entries are known?
    pub fn lacks_roster(&self, directory: &Handle) -> bool {
        self.active.iter().any(|walk| walk.lacks_roster(directory))
    }

    /// A reader opens a directory, and the origin must be asked. Is one READDIR all that it needs?
    pub fn is_listed_at_open(&self, caller: &Caller, directory: &Handle, named: bool, now: Instant) -> bool {
        let mine = |walk: &&Walk| walk.caller.principal == caller.principal;
        self.active.iter().filter(mine).any(|walk| walk.lists_at_open(directory, named, now))
    }

    /// The listing of a directory that was opened did not fit into one reply, or took too long.
    pub fn avoid_at_open(&mut self, directory: &Handle) {
        let places = self.active.iter_mut().filter_map(|walk| walk.places.get_mut(directory));
        places.for_each(|place| place.costly = true);
    }

    /// A reader has asked for the attributes of files in this directory, of which it knew the names.
    pub fn asked_siblings(&mut self, caller: &Caller, directory: &Handle) {
        let mine = self.active.iter_mut().filter(|walk| walk.caller.principal == caller.principal);
        mine.for_each(|walk| walk.asked_siblings(directory));
    }

    /// A reader has listed a directory without attributes.
    pub fn want(&mut self, directory: &Handle) {
        self.active.iter_mut().for_each(|walk| walk.want(directory));
    }

    /// A reader will probably open these files, the first of them first.
    pub fn expect(&mut self, caller: &Caller, files: Vec<Expected>, now: Instant) {
        if files.is_empty() {
            return;
        }
        if self.expectations.len() >= WALKS_MAX {
            self.expectations.pop_front();
        }
        self.last_id += 1;
        self.expectations.push_back(Expectation::new(self.last_id, anybody(caller), files, now));
    }

    /// The next guesses, at most `max`. Readers have asked for `demanded` bytes since the start.
    pub fn guesses(&mut self, demanded: u64, max: usize, now: Instant) -> Vec<Guess> {
        self.budget.demand(demanded, now);
        let pause = if self.gives_leases { REFUSED_FOR } else { UNLEASED_FOR };
        let files = self.unleased_at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        self.active.sort_by_key(|walk| std::cmp::Reverse(walk.stepped));
        let mut guesses = Vec::new();
        for expectation in self.expectations.iter_mut().rev().filter(|_| files) {
            while guesses.len() < max
                && let Some((guess, bytes)) = expectation.guess(self.budget.left(self.bytes_max), now)
            {
                self.budget.guess(bytes);
                guesses.push(guess);
            }
        }
        for walk in &mut self.active {
            while guesses.len() < max
                && let Some((guess, bytes)) = walk.guess(self.budget.left(self.bytes_max), now, files)
            {
                self.budget.guess(bytes);
                guesses.push(guess);
            }
        }
        guesses
    }

    /// A guess has ended.
    pub fn done(&mut self, guess: &Guess, outcome: Outcome, now: Instant) {
        if let Outcome::File { leased, .. } = outcome {
            self.unleased = if leased { 0 } else { self.unleased + 1 };
            self.gives_leases |= leased;
            if self.unleased >= UNLEASED_MAX {
                self.unleased = 0;
                self.unleased_at = Some(now);
            }
        }
        let walk = self.active.iter_mut().find(|walk| walk.id == guess.walk);
        let expectation = self.expectations.iter_mut().find(|expectation| expectation.id == guess.walk);
        let window = match (walk, expectation) {
            (Some(walk), _) => {
                if outcome == Outcome::Nothing
                    && let Target::Listing(directory) = &guess.target
                {
                    walk.was_no_venture(directory);
                }
                let frontier = walk.frontier_of(&guess.target);
                if outcome == Outcome::Nothing {
                    frontier.record.withdraw(guess.target.handle());
                }
                &mut frontier.window
            }
            (None, Some(expectation)) => &mut expectation.window,
            (None, None) => return,
        };
        match outcome {
            Outcome::Nothing => {
                if let Some(bytes) = window.withdraw(guess.target.handle()) {
                    self.budget.take_back(bytes);
                }
            }
            Outcome::Listing { bytes } | Outcome::File { bytes, .. } => {
                if let Some(thought) = window.came(guess.target.handle(), bytes, now) {
                    self.budget.take_back(thought);
                    self.budget.guess(bytes);
                }
            }
        }
    }

    /// Ends all walks.
    pub fn clear(&mut self) {
        self.active.clear();
        self.expectations.clear();
        self.firsts.clear();
    }

    /// Is a file or listing expected that a guess has brought? For tests.
    #[cfg(test)]
    pub fn is_expected(&self, handle: &Handle) -> bool {
        self.active.iter().any(|walk| walk.frontiers.iter().any(|frontier| frontier.window.has(handle)))
    }

    /// For tests: as if as much as may be guessed had been guessed in vain.
    #[cfg(test)]
    pub fn spend_all(&mut self) {
        self.budget.guess(u64::MAX / 4);
    }

    /// For tests: the targets of guesses, with their walks left out.
    #[cfg(test)]
    pub fn targets(&mut self, max: usize, now: Instant) -> Vec<super::Target> {
        self.guesses(u64::MAX / 2, max, now).into_iter().map(|guess| guess.target).collect()
    }
}
