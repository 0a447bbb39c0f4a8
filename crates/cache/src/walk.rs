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
//! A [window] bounds the guesses that the reader has not used yet, and a [budget] bounds their bytes. If
//! the budget is used up, the listing of a directory in which the reader is may still be guessed. Otherwise a
//! walk whose first guesses were wrong would pay a call for each name.
//!
//! A reader that goes depth first never returns to a directory that it has passed, so guesses there end. A
//! reader that does return to a new directory consists of several threads, or goes breadth first: then
//! nothing counts as passed, and guesses follow the latest step. A reader that returns to a directory where
//! it was a while ago goes through it once more.
//!
//! This module is pure: the caller reports steps and makes the guesses.

pub mod budget;
mod place;
pub mod roster;
mod sequence;
mod walks;
pub mod window;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Handle, Name};

pub use place::OLD_MIN;
use place::{Due, Place, is_passed, key};
use roster::{Entry, Kind, Order, Roster};
use sequence::Sequence;
pub use walks::{Outcome, Walks};
use window::{Position, Window};

/// The largest file that is guessed, in bytes. Read-ahead follows the reader of a larger one.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// The most bytes that are read of one file with its OPEN.
pub const FILE_READ_MAX_BYTES: u64 = 256 << 10;
/// The bytes of a listing, before it is known.
const LISTING_BYTES: u64 = 4 << 10;
/// The bytes of a guess besides data.
const CALL_BYTES: u64 = 512;
/// Directories that one walk remembers.
const PLACES_MAX: usize = 8192;
/// Directories within directories that are followed.
const DEPTH_MAX: usize = 64;
/// Entries that are examined for one guess.
const SEARCH_MAX: usize = 4096;
/// Steps in a directory that are remembered until its listing is known.
const PENDING_MAX: usize = 8;
/// How far apart two names may be that were looked up one after the other.
const GAP_MAX: u32 = 4;
/// Listings that may be wanted at first while the budget is used up, and at most.
const CREDIT: u32 = 16;
const CREDIT_MAX: u32 = 64;
/// A reader that comes back to a directory after so long begins again.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Directories of the history of their file system: a tree within each for every snapshot.
const SNAPSHOTS: [&[u8]; 3] = [b".snapshot", b".zfs", b".snapshots"];

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

const DIRECTORIES: usize = 0;
const FILES: usize = 1;

/// The guesses of one kind, and from where they go on.
#[derive(Debug)]
struct Frontier {
    window: Window,
    /// The directories in which more can be guessed, by the position of the next entry.
    cursors: BTreeMap<Position, Handle>,
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
    /// The directory in which the reader is.
    reader: Position,
    /// The reader has gone down into a directory.
    descends: bool,
    depth_first: bool,
    sequence: Sequence,
    stepped: Instant,
    /// When it last began, and where.
    began: (Instant, Position),
    /// The last directory of an earlier pass that was listed and not guessed.
    missed: Option<(Handle, Instant)>,
    /// When the present pass began. It may have begun below the directory where the walk last began.
    pass: Instant,
}

impl Walk {
    /// A walk that begins in a directory.
    pub fn new(id: u64, caller: Caller, root: Handle, now: Instant) -> Walk {
        let frontier = || Frontier { window: Window::new(now), cursors: BTreeMap::new() };
        let mut walk = Walk {
            id,
            caller,
            places: HashMap::new(),
            wanted: VecDeque::from([root]),
            credit: CREDIT,
            frontiers: [frontier(), frontier()],
            order: Order::default(),
            reader: Position::new(),
            descends: false,
            depth_first: true,
            sequence: Sequence::default(),
            stepped: now,
            began: (now, Position::new()),
            missed: None,
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
        let paused = now.saturating_duration_since(self.stepped) >= AGAIN_MIN;
        self.stepped = now;
        if !self.places.contains_key(&step.directory) && !self.enter(step) {
            return 0;
        }
        let listing = self.frontiers[DIRECTORIES].window.used(&step.directory, now);
        if listing.is_some() {
            self.credit = (self.credit + 2).min(CREDIT_MAX);
        }
        let again =
            listing.is_none() && step.action == Action::Listed && self.miss_again(&step.directory, now);
        let mut used = listing.unwrap_or(0);
        if let Some(place) = self.places.get_mut(&step.directory) {
            place.bytes = step.directory_bytes;
        }
        if let Action::Opened(_, file) = &step.action {
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
        self.come_to(step, paused, now);
        if again {
            self.go_on_again(&step.directory);
        }
        self.act(&step.directory, &step.action, now);
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
        self.move_cursors(parent, rank + 1);
        // The reader asks for the listing itself.
        if step.action != Action::Listed {
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
            listed: None,
            misses: 0,
            bytes: 0,
            used: false,
        };
        self.places.insert(handle, place);
        true
    }

    /// The reader did something in a directory of this walk.
    fn act(&mut self, directory: &Handle, action: &Action, now: Instant) {
        let Some(place) = self.places.get_mut(directory) else { return };
        let Some(roster) = place.roster.clone() else {
            if place.pending.len() < PENDING_MAX && *action != Action::Listed {
                place.pending.push(action.clone());
                if place.pending.len() == 2 {
                    self.wanted.push_back(*directory);
                }
            }
            return;
        };
        if matches!(action, Action::Looked(_)) && place.is_old(now) && roster.is_complete() {
            // Attributes that came with the listing are out of date: bring them all again.
            place.misses += 1;
            if place.misses == 2 {
                self.wanted.push_back(*directory);
            }
        }
        let name = match action {
            Action::Listed => return,
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
        if let Some(rank) = roster.rank(self.order, name) {
            self.move_cursors(directory, rank + 1);
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

    /// The reader lists a directory of which no guess was made. If that is the second of those where it was
    /// in an earlier pass, a further pass has begun that nothing else has shown. True if so.
    fn miss_again(&mut self, directory: &Handle, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        let visited = self.places.get(directory).and_then(|place| place.visited);
        if visited.is_none_or(|at| since(at) < AGAIN_MIN) {
            return false;
        }
        let before = self.missed.replace((*directory, now));
        let again = before.is_some_and(|(other, at)| other != *directory && since(at) < AGAIN_MIN);
        self.missed.take_if(|_| again);
        again
    }

    /// The reader goes through the rest of the tree once more, from this directory on.
    fn go_on_again(&mut self, directory: &Handle) {
        let Some(here) = self.places.get(directory).map(|place| place.position.clone()) else { return };
        for place in self.places.values_mut() {
            let above = here.starts_with(&place.position);
            let rank = here.get(place.position.len()).filter(|_| above);
            place.ahead = [rank.map_or(0, |rank| rank + 1); 2];
        }
        self.reader = here;
        self.rebuild();
    }

    /// The reader is in the directory of this step now. It has `paused` before.
    fn come_to(&mut self, step: &Step, paused: bool, now: Instant) {
        let Some(place) = self.places.get_mut(&step.directory) else { return };
        let before = place.visited.replace(now);
        place.used = true;
        let position = place.position.clone();
        let since = |at: Instant| now.saturating_duration_since(at);
        let was_here = before.is_some_and(|at| since(at) >= AGAIN_MIN);
        if position >= self.reader && !(paused && was_here && !self.depth_first) {
            return self.go_on(position);
        }
        // Several readers come back all the time: only the next pass of all of them begins at the top.
        let rested = since(self.began.0) >= AGAIN_MIN || self.is_above_the_begin(&position);
        let may_be = (self.depth_first || position.is_empty() || paused) && rested;
        let again = may_be && was_here;
        let behind = match self.reader.get(position.len()).filter(|_| self.reader.starts_with(&position)) {
            // Within the directory in which the reader was: does it go on there?
            Some(reached) => self.rank_of(step).is_none_or(|rank| rank < *reached),
            None => true,
        };
        if behind && again {
            self.depth_first |= paused;
            self.begin_again(&position, now);
        } else if self.depth_first && is_passed(&self.reader, &position) {
            self.depth_first = false;
            self.frontiers.iter_mut().for_each(|frontier| frontier.window.widen());
            // Here it was in an earlier pass: so it goes through all of the tree once more, in its own order.
            if was_here {
                self.places.values_mut().for_each(|place| place.ahead = [0; 2]);
            }
            self.rebuild();
        }
        if behind {
            self.reader = position;
        }
    }

    /// A reader may look into some directories first, and then at the files beside them.
    fn is_above_the_begin(&self, position: &Position) -> bool {
        self.began.1.len() > position.len() && self.began.1.starts_with(position)
    }

    /// The rank of the name in a step. `None` if there is no name, or if its rank is not known.
    fn rank_of(&self, step: &Step) -> Option<u32> {
        let (Action::Looked(name) | Action::Opened(name, _)) = &step.action else { return None };
        self.places.get(&step.directory)?.roster.as_ref()?.rank(self.order, name)
    }

    /// The reader goes once more through the tree below a directory of this position.
    fn begin_again(&mut self, position: &Position, now: Instant) {
        let rested = now.saturating_duration_since(self.began.0) >= AGAIN_MIN;
        if rested || !self.is_above_the_begin(position) {
            self.pass = now;
        }
        self.began = (now, position.clone());
        self.depth_first |= position.is_empty();
        self.sequence = Sequence::default();
        for place in self.places.values_mut().filter(|place| place.position.starts_with(position)) {
            place.ahead = [0; 2];
            (place.opened, place.looked) = (None, None);
        }
        self.reader.clone_from(position);
        self.rebuild();
    }

    fn go_on(&mut self, position: Position) {
        if self.depth_first {
            for frontier in &mut self.frontiers {
                frontier.cursors = frontier.cursors.split_off(&position);
                frontier.window.pass(&position);
            }
        }
        self.reader = position;
    }

    /// Guesses in a directory go on from this rank at least.
    fn move_cursors(&mut self, directory: &Handle, rank: u32) {
        for which in [DIRECTORIES, FILES] {
            let Some(place) = self.places.get_mut(directory) else { return };
            if place.roster.is_none() {
                place.ahead[which] = place.ahead[which].max(rank);
                continue;
            }
            let old = key(&place.position, place.ahead[which]);
            place.ahead[which] = place.ahead[which].max(rank);
            let new = key(&place.position, place.ahead[which]);
            let cursors = &mut self.frontiers[which].cursors;
            if cursors.remove(&old).is_some() {
                cursors.insert(new, *directory);
            }
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

    /// Sets the cursors anew in every directory that is known.
    fn rebuild(&mut self) {
        for which in [DIRECTORIES, FILES] {
            let cursors = &mut self.frontiers[which].cursors;
            cursors.clear();
            if which == FILES && !self.sequence.reads() {
                continue;
            }
            for (handle, place) in self.places.iter().filter(|(_, place)| place.roster.is_some()) {
                if !(self.depth_first && is_passed(&self.reader, &place.position)) {
                    cursors.insert(key(&place.position, place.ahead[which]), *handle);
                }
            }
        }
    }

    /// If the reader has begun to read files: guesses begin behind it, in every directory that is known.
    fn begin_files(&mut self) {
        if !self.sequence.has_begun() {
            return;
        }
        let cursors = &mut self.frontiers[FILES].cursors;
        for (handle, place) in self.places.iter().filter(|(_, place)| place.roster.is_some()) {
            if !(self.depth_first && is_passed(&self.reader, &place.position)) {
                cursors.insert(key(&place.position, place.ahead[FILES]), *handle);
            }
        }
    }

    /// The entries of a directory are known.
    fn listed(&mut self, directory: &Handle, roster: &Arc<Roster>, now: Instant) {
        let Some(place) = self.places.get_mut(directory) else { return };
        place.roster = Some(roster.clone());
        (place.listed, place.misses) = (Some(now), 0);
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

    /// The reader has listed a directory without attributes: its listing is wanted with them.
    fn want(&mut self, directory: &Handle) {
        if self.places.get(directory).is_some_and(|place| place.roster.is_none()) {
            self.wanted.push_back(*directory);
        }
    }

    /// The next guess, and its bytes, if it fits into `bytes`.
    fn guess(&mut self, bytes: u64, now: Instant, files: bool) -> Option<(Guess, u64)> {
        self.frontiers.iter_mut().for_each(|frontier| frontier.window.expire(now));
        while let Some(directory) = self.wanted.pop_front() {
            if self.frontiers[DIRECTORIES].window.has(&directory) {
                continue;
            }
            let Some(place) = self.places.get(&directory) else { continue };
            let position = place.position.clone();
            if bytes < LISTING_BYTES && !place.is_needed() {
                if !place.is_small() || self.credit == 0 {
                    continue;
                }
                self.credit -= 1;
            }
            let max = (bytes / 4).max(LISTING_BYTES);
            return Some(self.made(Target::Listing(directory), position, LISTING_BYTES, max, now));
        }
        if self.descends && self.frontiers[DIRECTORIES].window.is_open() && bytes >= LISTING_BYTES {
            let due = |walk: &Walk, entry: &Entry| {
                let followed = entry.kind == Kind::Directory && !SNAPSHOTS.contains(&entry.name.as_bytes());
                let asked = walk.frontiers[DIRECTORIES].window.has(&entry.handle);
                match walk.places.get(&entry.handle) {
                    _ if asked || !followed => Due::Never,
                    Some(place) if place.is_recent(now) => {
                        let passed = place.visited.is_some_and(|at| at >= walk.pass);
                        if passed { Due::Never } else { Due::Later }
                    }
                    Some(place) if place.is_unused() => Due::Never,
                    _ => Due::Now,
                }
            };
            if let Some((parent, entry, position)) = self.next(DIRECTORIES, due)
                && (self.places.contains_key(&entry.handle)
                    || self.add(entry.handle, Some((parent, entry.name)), position.clone()))
            {
                return Some(self.made(
                    Target::Listing(entry.handle),
                    position,
                    LISTING_BYTES,
                    bytes / 4,
                    now,
                ));
            }
        }
        if !files || !self.sequence.reads() || !self.frontiers[FILES].window.is_open() || bytes < CALL_BYTES {
            return None;
        }
        // A file may use a part of what is left.
        let size_max = FILE_MAX_BYTES.min(bytes / 4);
        let due = |walk: &Walk, entry: &Entry| {
            let small = matches!(entry.kind, Kind::File { bytes } if bytes <= size_max);
            let asked = walk.frontiers[FILES].window.has(&entry.handle);
            if small && walk.sequence.takes(entry) && !asked { Due::Now } else { Due::Never }
        };
        let (directory, entry, position) = self.next(FILES, due)?;
        let Kind::File { bytes } = entry.kind else { return None };
        let target = Target::File { directory, name: entry.name, handle: entry.handle };
        let read = bytes.min(FILE_READ_MAX_BYTES);
        Some(self.made(target, position, read + CALL_BYTES, read, now))
    }

    /// A guess that will probably bring `likely` bytes, and `max` bytes at most.
    fn made(
        &mut self,
        target: Target,
        position: Position,
        likely: u64,
        max: u64,
        now: Instant,
    ) -> (Guess, u64) {
        let handle = *target.handle();
        if let Target::Listing(directory) = &target
            && let Some(place) = self.places.get_mut(directory)
        {
            place.used = false;
        }
        self.frontier_of(&target).window.guess(handle, position, likely, now);
        (Guess { walk: self.id, caller: self.caller.clone(), bytes: max, target }, likely)
    }

    /// The next entry ahead of the reader that is `due`, with its directory and its position. An entry that
    /// may be due later keeps the distance to the reader: nothing behind it is guessed now.
    fn next(
        &mut self,
        which: usize,
        due: impl Fn(&Walk, &Entry) -> Due,
    ) -> Option<(Handle, Entry, Position)> {
        let mut examined = 0;
        loop {
            let cursors = &mut self.frontiers[which].cursors;
            let ahead = cursors.range(self.reader.clone()..).next();
            let (at, directory) =
                ahead.or_else(|| cursors.first_key_value().filter(|_| !self.depth_first))?;
            let (at, directory) = (at.clone(), *directory);
            cursors.remove(&at);
            let Some(place) = self.places.get(&directory) else { continue };
            let Some(roster) = place.roster.clone() else { continue };
            let mut rank = place.ahead[which];
            let found = loop {
                let Some(entry) = roster.at(self.order, rank) else { break None };
                examined += 1;
                match due(self, entry) {
                    Due::Never if examined < SEARCH_MAX => rank += 1,
                    found => break Some((entry, found)),
                }
            };
            let Some(place) = self.places.get_mut(&directory) else { continue };
            place.ahead[which] = rank;
            let Some((entry, found)) = found else { continue };
            let mut position = place.position.clone();
            place.ahead[which] += u32::from(found == Due::Now);
            let cursor = key(&position, place.ahead[which]);
            self.frontiers[which].cursors.insert(cursor, directory);
            if found != Due::Now {
                return None;
            }
            position.push(rank);
            return Some((directory, entry.clone(), position));
        }
    }

    fn frontier_of(&mut self, target: &Target) -> &mut Frontier {
        match target {
            Target::Listing(_) => &mut self.frontiers[DIRECTORIES],
            Target::File { .. } => &mut self.frontiers[FILES],
        }
    }
}

#[cfg(test)]
mod tests;
