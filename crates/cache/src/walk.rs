//! A reader that goes through a tree: what will it ask for next?
//!
//! The reader takes **steps**: it lists a directory, looks a name up, or opens a file to read it. A step
//! counts if it needs a call to the origin, or if it uses a guess. Two steps that fit together begin a walk:
//! - two names in one directory, or
//! - a listing of a directory and then of one in it.
//!
//! A walk knows the directories that the reader has come to, and those that it will probably come to.
//! **Guesses** are made in the order in which the reader is expected:
//! - The listing of a directory, as soon as the reader looks a name up in it.
//! - The listings of further directories, once the reader has gone down into one.
//! - Files, once two files have been opened one after the other: in the order of the listing or by name, all
//!   of them or those with one extension.
//!
//! A [window] bounds the guesses that the reader has not used yet. If too many were wrong, a
//! [record] has the walk only note what it would have guessed, until that would have been right.
//! A [budget] bounds their bytes. If the budget is used up, the listing of a directory in which the reader is
//! may still be guessed. Otherwise a walk whose first guesses were wrong would pay a call for each name.
//!
//! A reader that goes depth first never returns to a directory that it has passed, so guesses there end. One
//! that does return is several readers, or has begun a further pass ([`passes`]). Of the directories within
//! one, only some are guessed until the reader has gone into any of them.
//!
//! This module is pure: the caller reports steps and makes the guesses.

pub mod budget;
mod expected;
mod frontier;
mod passes;
mod place;
mod record;
pub mod roster;
mod sequence;
mod walks;
pub mod window;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Handle, Name};

pub use expected::Expected;
use frontier::{DIRECTORIES, FILES, Frontier};
pub use place::OLD_MIN;
use place::{Place, is_one_reply, is_passed, key};
use record::Said;
use roster::{Order, Roster};
use sequence::Sequence;
pub use walks::{Outcome, Walks, names_worth_a_listing};
use window::{Position, Window};

/// The largest file that is guessed, in bytes. Read-ahead follows the reader of a larger one.
pub const FILE_MAX_BYTES: u64 = 1 << 20;
/// The most bytes that are read of one file with its OPEN.
pub const FILE_READ_MAX_BYTES: u64 = 256 << 10;
/// Directories that one walk remembers.
const PLACES_MAX: usize = 8192;
/// Directories within directories that are followed.
const DEPTH_MAX: usize = 64;
/// Steps in a directory that are remembered until its listing is known.
const PENDING_MAX: usize = 8;
/// How far apart two names may be that were looked up one after the other.
const GAP_MAX: u32 = 4;
/// Listings that may be wanted at first while the budget is used up, and at most.
const CREDIT: u32 = 16;
const CREDIT_MAX: u32 = 64;
/// Listings and files that are guessed at first.
const LISTINGS_FIRST: usize = 6;
const FILES_FIRST: usize = 4;
/// A reader may take so many steps before it comes back to what it has passed.
const BACK_MAX: u64 = 6;
/// A reader that takes so long for a step, on average, is too slow for guesses to be made again.
const SLOW_MIN: Duration = Duration::from_millis(150);
/// A reader that comes back to a directory after so long begins again.
const AGAIN_MIN: Duration = Duration::from_secs(1);

/// A step of a reader.
#[derive(Clone, Debug)]
pub struct Step {
    /// The directory in which it is.
    pub directory: Handle,
    /// Where this directory is.
    pub at: Option<(Handle, Name)>,
    /// The size of the directory in bytes, as the origin tells it. Zero if that is not known.
    pub directory_bytes: u64,
    /// The step.
    pub action: Action,
}

/// An action of the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It opened the directory, to list it.
    Entered,
    /// It opened the directory, for which no lease vouches. The origin is asked, and no guess changes that.
    Asked,
    /// It listed the directory.
    Listed,
    /// It looked a name up, or asked for the attributes of the object that the name leads to.
    Looked(Name),
    /// It opened a file to read it.
    Opened(Name, Handle),
}

/// A call that the reader will probably need.
#[derive(Clone, Debug)]
pub struct Guess {
    /// The walk that it belongs to.
    pub walk: u64,
    /// For whom it is made.
    pub caller: Caller,
    /// How many bytes it may bring.
    pub bytes: u64,
    /// What to ask for.
    pub target: Target,
}

impl Action {
    /// Does the reader list the directory?
    pub fn lists(&self) -> bool {
        matches!(self, Action::Entered | Action::Asked | Action::Listed)
    }
}

/// What to ask the origin for.
#[derive(Clone, Debug)]
pub enum Target {
    /// The listing of a directory, with attributes.
    Listing(Handle),
    /// A file: its lease, and its first bytes.
    File {
        /// Its directory.
        directory: Handle,
        /// Its name there.
        name: Name,
        /// The file, as the listing showed it.
        handle: Handle,
    },
}

impl Target {
    /// The object that is asked for.
    pub fn handle(&self) -> &Handle {
        match self {
            Target::Listing(handle) | Target::File { handle, .. } => handle,
        }
    }
}

/// One reader in one tree.
#[derive(Debug)]
pub struct Walk {
    id: u64,
    caller: Caller,
    places: HashMap<Handle, Place>,
    /// Directories in which the reader is: their listing is wanted at once.
    wanted: VecDeque<Handle>,
    /// Listings that may be wanted while the budget is used up.
    credit: u32,
    frontiers: [Frontier; 2],
    order: Order,
    /// The directory in which the reader is. If it has come back to one out of a directory in it: the entry
    /// that it has come to.
    reader: Position,
    /// The reader has gone down into a directory.
    descends: bool,
    depth_first: bool,
    sequence: Sequence,
    stepped: Instant,
    /// The average time between its last steps.
    pace: Duration,
    /// When it last began, and where.
    began: (Instant, Position),
    /// The last directory of an earlier pass that was listed and not guessed.
    missed: Option<(Handle, Instant)>,
    /// The reader has come to a guess that was out of date. Guesses that are as old are made again.
    late: bool,
    /// The reader opens directories, and each open asks the origin: listings ahead of it save nothing.
    asks: bool,
    /// The reader has asked for the attributes of files in a directory whose names were known, in this pass.
    stats: bool,
    /// When the present pass began. It may have begun below the directory where the walk last began.
    pass: Instant,
}

impl Walk {
    /// A walk that begins in a directory.
    pub fn new(id: u64, caller: Caller, root: Handle, now: Instant) -> Walk {
        let mut walk = Walk {
            id,
            caller,
            places: HashMap::new(),
            wanted: VecDeque::from([root]),
            credit: CREDIT,
            frontiers: [
                Frontier::new(Window::of_listings(LISTINGS_FIRST, now), BACK_MAX),
                Frontier::new(Window::new(FILES_FIRST, now), BACK_MAX),
            ],
            order: Order::default(),
            reader: Position::new(),
            descends: false,
            depth_first: true,
            sequence: Sequence::default(),
            stepped: now,
            pace: Duration::ZERO,
            began: (now, Position::new()),
            missed: None,
            late: false,
            asks: false,
            stats: false,
            pass: now,
        };
        walk.add(root, None, Position::new());
        if let Some(place) = walk.places.get_mut(&root) {
            place.visited = Some(now);
        }
        walk
    }

    /// Is the directory one of this walk, or in one of them?
    fn takes(&self, step: &Step) -> bool {
        let known = |handle: &Handle| self.places.contains_key(handle);
        known(&step.directory) || step.at.as_ref().is_some_and(|(parent, _)| known(parent))
    }

    /// The reader takes a step. Returns the bytes of guesses that it has used.
    fn step(&mut self, step: &Step, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.stepped);
        let paused = since >= AGAIN_MIN;
        self.pace = (self.pace * 7 + since) / 8;
        self.stepped = now;
        if !self.places.contains_key(&step.directory) && !self.enter(step) {
            return 0;
        }
        let listing = self.frontiers[DIRECTORIES].window.used(&step.directory, now);
        if listing.is_some() {
            self.credit = (self.credit + 2).min(CREDIT_MAX);
        }
        let mut said = [self.frontiers[DIRECTORIES].step(&step.directory), Said::Nothing];
        // One that asks in any case is not expected.
        let unexpected =
            listing.is_none() && said[DIRECTORIES] == Said::Nothing && step.action != Action::Asked;
        let again = unexpected && step.action.lists() && self.miss_again(&step.directory, now);
        let mut used = listing.unwrap_or(0);
        if let Some(place) = self.places.get_mut(&step.directory) {
            place.bytes = step.directory_bytes;
        }
        if let Action::Opened(_, file) = &step.action {
            said[FILES] = self.frontiers[FILES].step(file);
            match self.frontiers[FILES].window.used(file, now) {
                Some(bytes) => {
                    self.sequence.follows();
                    used += bytes;
                }
                None => self.frontiers[FILES].window.miss(now),
            }
        } else if used == 0 {
            self.frontiers[DIRECTORIES].window.miss(now);
        }
        self.go_into(&step.directory);
        if self.come_to(step, paused, now) && self.depth_first && self.pace < SLOW_MIN {
            self.late = true;
            self.frontiers[DIRECTORIES].give_up(now);
            self.rewind(DIRECTORIES);
        }
        if again {
            self.go_on_again(&step.directory);
        }
        self.note_asking(step, now);
        self.act(&step.directory, &step.action, now);
        for which in [DIRECTORIES, FILES] {
            if said[which] == Said::Resumed {
                self.rewind(which);
            }
        }
        used
    }

    /// The reader comes into a directory that was not expected. False if there are too many.
    fn enter(&mut self, step: &Step) -> bool {
        let Some((parent, name)) = &step.at else { return false };
        let Some(above) = self.places.get(parent) else { return false };
        let rank = above.roster.as_ref().and_then(|roster| roster.rank(self.order, name));
        let rank = rank.unwrap_or(above.ahead[DIRECTORIES]);
        let mut position = above.position.clone();
        position.push(rank);
        if !self.add(step.directory, step.at.clone(), position) {
            return false;
        }
        self.descends = true;
        self.move_cursors(parent, rank + 1, &[DIRECTORIES, FILES]);
        // A reader that lists it asks for the listing itself.
        let opens_a_large_one = step.action == Action::Entered && !is_one_reply(step.directory_bytes);
        if !matches!(step.action, Action::Listed | Action::Asked) && !opens_a_large_one {
            self.wanted.push_back(step.directory);
        }
        true
    }

    /// Adds a directory. False if it is too deep, or if there are too many.
    fn add(&mut self, handle: Handle, at: Option<(Handle, Name)>, position: Position) -> bool {
        if self.places.len() >= PLACES_MAX {
            let (reader, depth_first) = (&self.reader, self.depth_first);
            self.places.retain(|_, place| !depth_first || !is_passed(reader, &place.position));
        }
        if self.places.len() >= PLACES_MAX || position.len() > DEPTH_MAX {
            return false;
        }
        let place = Place {
            at,
            position,
            roster: None,
            ahead: [0; 2],
            pending: Vec::new(),
            opened: None,
            looked: None,
            visited: None,
            entered: None,
            listed: None,
            costly: false,
            misses: 0,
            bytes: 0,
            used: false,
            ventured: 0,
        };
        self.places.insert(handle, place);
        true
    }

    /// The reader did something in a directory of this walk.
    fn act(&mut self, directory: &Handle, action: &Action, now: Instant) {
        let Some(place) = self.places.get_mut(directory) else { return };
        if *action == Action::Entered && place.has_expired(now) && is_one_reply(place.bytes) {
            self.wanted.push_back(*directory);
        }
        let Some(roster) = place.roster.clone() else {
            let new = !action.lists() && !place.pending.contains(action);
            if place.pending.len() < PENDING_MAX && new {
                place.pending.push(action.clone());
                if place.pending.len() == 2 {
                    self.wanted.push_back(*directory);
                }
            }
            return;
        };
        let looked = matches!(action, Action::Looked(name) if place.looked.as_ref() != Some(name));
        if looked && place.is_old(now) && roster.is_complete() {
            // Attributes that came with the listing are out of date: bring them all again.
            place.misses += 1;
            let asks = self.asks && place.entered.is_some_and(|at| at >= self.pass);
            if place.misses == 2 || (asks && self.stats && place.misses == 1) {
                self.wanted.push_back(*directory);
                self.stats |= asks;
            }
        }
        let name = match action {
            Action::Entered | Action::Asked | Action::Listed => return,
            Action::Looked(name) => {
                let last = place.looked.replace(name.clone());
                self.judge_look(&roster, last.as_ref(), name);
                name
            }
            Action::Opened(name, _) if place.opened.as_ref() == Some(name) => return,
            Action::Opened(name, _) => {
                let last = place.opened.replace(name.clone());
                if let Some(order) = self.sequence.open(&roster, self.order, last.as_ref(), name) {
                    self.take_order(order);
                }
                self.begin_files();
                name
            }
        };
        // A reader may look all names up before it opens the first file. It goes into a directory.
        let leads_down = |rank| roster.at(self.order, rank).is_some_and(|entry| !entry.is_file());
        let rank = roster.rank(self.order, name);
        let passes = matches!(action, Action::Opened(..)) || rank.is_some_and(leads_down);
        let passed: &[usize] = if passes { &[DIRECTORIES, FILES] } else { &[DIRECTORIES] };
        if let Some(rank) = rank {
            self.move_cursors(directory, rank + 1, passed);
        }
    }

    /// A name was looked up after another one: is that the order of names?
    fn judge_look(&mut self, roster: &Roster, last: Option<&Name>, name: &Name) {
        let fits = |order: Order| {
            let (from, to) = (roster.rank(order, last?)?, roster.rank(order, name)?);
            to.checked_sub(from).filter(|gap| (1..=GAP_MAX).contains(gap))
        };
        if fits(self.order).is_none() && fits(self.order.other()).is_some() {
            self.take_order(self.order.other());
        }
    }

    /// The reader takes entries in this order.
    fn take_order(&mut self, order: Order) {
        if self.order == order {
            return;
        }
        self.order = order;
        let handles: Vec<Handle> = self.places.keys().copied().collect();
        let positions: Vec<Option<Position>> =
            handles.iter().map(|handle| self.position_of(handle)).collect();
        for (handle, position) in handles.iter().zip(positions) {
            match (self.places.get_mut(handle), position) {
                (Some(place), Some(position)) => {
                    place.position = position;
                    place.ahead = [0; 2];
                }
                _ => drop(self.places.remove(handle)),
            }
        }
        self.reader = Position::new();
        self.rebuild();
    }

    /// The position of a directory in the present order.
    fn position_of(&self, handle: &Handle) -> Option<Position> {
        let mut position = Position::new();
        let mut handle = *handle;
        while let Some((parent, name)) = &self.places.get(&handle)?.at {
            let roster = self.places.get(parent)?.roster.as_ref();
            position.push(roster.and_then(|roster| roster.rank(self.order, name)).unwrap_or(0));
            if position.len() > DEPTH_MAX {
                return None;
            }
            handle = *parent;
        }
        position.reverse();
        Some(position)
    }

    /// The entries of a directory are known, with attributes.
    fn listed(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        let Some(place) = self.places.get_mut(directory) else { return };
        (place.listed, place.misses) = (Some(now), 0);
        self.take_roster(directory, roster, now);
    }

    /// The entries of a directory are known, and their attributes may be out of date.
    fn remembered(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        if self.lacks_roster(directory) {
            self.take_roster(directory, roster, now);
        }
    }

    /// Is this a directory of the walk, of which no entries are known?
    fn lacks_roster(&self, directory: &Handle) -> bool {
        self.places.get(directory).is_some_and(|place| place.roster.is_none())
    }

    fn take_roster(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        let Some(place) = self.places.get_mut(directory) else { return };
        place.roster = Some(roster.clone());
        let pending = std::mem::take(&mut place.pending);
        let passed = self.depth_first && is_passed(&self.reader, &place.position);
        for which in [DIRECTORIES, FILES] {
            if !passed && (which == DIRECTORIES || self.sequence.reads()) {
                let key = key(&place.position, place.ahead[which]);
                self.frontiers[which].cursors.insert(key, *directory);
            }
        }
        pending.iter().for_each(|action| self.act(directory, action, now));
    }

    /// Does the reader ask the origin in any case, when it comes to a directory? One that looks names up in
    /// directories that it has not opened does not.
    fn note_asking(&mut self, step: &Step, now: Instant) {
        let Some(place) = self.places.get_mut(&step.directory) else { return };
        match &step.action {
            Action::Entered | Action::Asked => {
                self.asks = step.action == Action::Asked;
                place.entered = Some(now);
            }
            Action::Looked(_) if place.entered.is_none_or(|at| at < self.pass) => self.asks = false,
            _ => {}
        }
    }

    /// Will the reader probably list the directory that it opens, and is a READDIR of it needed? The names of
    /// the directory may be known, or not.
    fn lists_at_open(&self, directory: &Handle, named: bool, now: Instant) -> bool {
        let fits = |place: &Place| place.has_expired(now) && is_one_reply(place.bytes) && !place.costly;
        (self.stats || !named) && self.places.get(directory).is_some_and(fits)
    }

    /// The reader has asked for the attributes of a file in this directory, of which it knew the names.
    fn asked_siblings(&mut self, directory: &Handle) {
        self.stats |= self.places.contains_key(directory);
    }

    /// The reader has listed a directory without attributes: its listing is wanted with them.
    fn want(&mut self, directory: &Handle) {
        if self.lacks_roster(directory) {
            self.wanted.push_back(*directory);
        }
    }
}

#[cfg(test)]
mod tests;
