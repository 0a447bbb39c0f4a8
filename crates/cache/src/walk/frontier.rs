//! How far guesses have got ahead of the reader, and which one comes next.
//!
//! Directories and files have a frontier each. A cursor is a directory with the rank of its next entry. Among
//! the cursors, the first one behind the reader's position goes on.

use std::collections::BTreeMap;

use tokio::time::Instant;
use vfs::Handle;

use super::place::{Due, is_passed, key};
use super::record::{Record, Said};
use super::roster::{Entry, Kind};
use super::window::{Position, Window};
use super::{FILE_MAX_BYTES, FILE_READ_MAX_BYTES, Guess, Target, Walk};

/// The bytes of a listing, before it is known.
const LISTING_BYTES: u64 = 4 << 10;
/// The bytes of a guess besides data.
pub const CALL_BYTES: u64 = 512;
/// Entries that are examined for one guess.
const SEARCH_MAX: usize = 4096;
/// Directories of the history of their file system: a tree within each for every snapshot.
const SNAPSHOTS: [&[u8]; 3] = [b".snapshot", b".zfs", b".snapshots"];

pub const DIRECTORIES: usize = 0;
pub const FILES: usize = 1;

/// The guesses of one kind, and from where they go on.
#[derive(Debug)]
pub struct Frontier {
    first: usize,
    pub window: Window,
    pub record: Record,
    /// The directories in which more can be guessed, by the position of the next entry.
    pub cursors: BTreeMap<Position, Handle>,
}

impl Frontier {
    pub fn new(window: Window, patience: u64) -> Frontier {
        let (first, record) = (window.size(), Record::new(patience));
        Frontier { first, window, record, cursors: BTreeMap::new() }
    }

    /// A guess about an object is made, or noted if guesses are only noted now. True if it is made.
    fn guess(&mut self, handle: Handle, position: Position, bytes: u64, now: Instant) -> bool {
        self.record.expect(handle);
        if self.record.only_notes() {
            return false;
        }
        self.window.guess(handle, position, bytes, now);
        true
    }

    /// Is the object asked for, or noted?
    fn has(&self, handle: &Handle) -> bool {
        self.window.has(handle) || (self.record.only_notes() && self.record.expects(handle))
    }

    /// The reader takes a step at an object.
    pub fn step(&mut self, handle: &Handle) -> Said {
        let said = self.record.step(handle);
        if self.record.only_notes() {
            self.window.shrink(self.first);
        }
        said
    }

    /// A guess was not needed, or has failed. Returns its bytes.
    pub fn withdraw(&mut self, handle: &Handle) -> Option<u64> {
        self.record.withdraw(handle);
        self.window.withdraw(handle)
    }

    /// Forgets guesses that have not been used for long. Whether they were wrong, nobody knows.
    pub fn expire(&mut self, now: Instant) {
        for handle in self.window.expire(now) {
            self.record.withdraw(&handle);
        }
    }

    /// Guesses that are out of date may be made again.
    pub fn give_up(&mut self, now: Instant) {
        for handle in self.window.give_up(now) {
            self.record.withdraw(&handle);
        }
    }

    /// The reader has passed everything before this position.
    pub fn pass(&mut self, position: &Position) {
        self.cursors = self.cursors.split_off(position);
        let passed = self.window.pass(position);
        self.record.pass(passed.iter());
    }
}

impl Walk {
    /// Sets the cursors anew in every directory that is known.
    pub(super) fn rebuild(&mut self) {
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
    pub(super) fn begin_files(&mut self) {
        if !self.sequence.has_begun() {
            return;
        }
        // Several readers may have looked all names up. A single one opens files one after the other, and has
        // passed those that it has opened.
        self.depth_first = true;
        self.rewind(FILES);
    }

    /// Guesses begin behind the reader, in every directory that is known.
    pub(super) fn rewind(&mut self, which: usize) {
        let (reader, order, depth_first) = (&self.reader, self.order, self.depth_first);
        let cursors = &mut self.frontiers[which].cursors;
        cursors.clear();
        for (handle, place) in &mut self.places {
            let is_behind = depth_first && is_passed(reader, &place.position);
            let Some(roster) = place.roster.as_ref().filter(|_| !is_behind) else { continue };
            let below = reader.get(place.position.len()).filter(|_| reader.starts_with(&place.position));
            let opened = place.opened.as_ref().filter(|_| which == FILES);
            let opened = opened.and_then(|name| roster.rank(order, name)).map_or(0, |rank| rank + 1);
            place.ahead[which] = opened.max(below.map_or(0, |rank| rank + 1));
            cursors.insert(key(&place.position, place.ahead[which]), *handle);
        }
    }

    /// Guesses of these kinds in a directory go on from this rank at least.
    pub(super) fn move_cursors(&mut self, directory: &Handle, rank: u32, kinds: &[usize]) {
        for which in kinds.iter().copied() {
            let Some(place) = self.places.get_mut(directory) else { return };
            if place.roster.is_none() {
                place.ahead[which] = place.ahead[which].max(rank);
                continue;
            }
            let old = key(&place.position, place.ahead[which]);
            place.ahead[which] = place.ahead[which].max(rank);
            let new = key(&place.position, place.ahead[which]);
            let cursors = &mut self.frontiers[which].cursors;
            if cursors.get(&old) == Some(directory) {
                cursors.remove(&old);
                cursors.insert(new, *directory);
            }
        }
    }

    /// The next guess, and its bytes, if it fits into `bytes`.
    pub(super) fn guess(&mut self, bytes: u64, now: Instant, files: bool) -> Option<(Guess, u64)> {
        self.frontiers.iter_mut().for_each(|frontier| frontier.expire(now));
        // Listings ahead of a reader that asks for each may still tell which files it will read.
        let ahead = !self.asks || (files && self.sequence.reads());
        self.listing_here(bytes, now)
            .or_else(|| if ahead { self.next_listing(bytes, now) } else { None })
            .or_else(|| if files { self.next_file(bytes, now) } else { None })
    }

    /// The listing of a directory in which the reader is.
    fn listing_here(&mut self, bytes: u64, now: Instant) -> Option<(Guess, u64)> {
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
            self.frontiers[DIRECTORIES].window.guess(directory, position, LISTING_BYTES, now);
            return Some(self.made(Target::Listing(directory), LISTING_BYTES, max));
        }
        None
    }

    /// The listing of a directory to which the reader will probably come.
    fn next_listing(&mut self, bytes: u64, now: Instant) -> Option<(Guess, u64)> {
        // A note needs no bytes.
        let enough = bytes >= LISTING_BYTES || self.frontiers[DIRECTORIES].record.only_notes();
        while self.descends && self.has_capacity(DIRECTORIES) && enough {
            let due = |walk: &Walk, entry: &Entry| {
                let followed = entry.kind == Kind::Directory && !SNAPSHOTS.contains(&entry.name.as_bytes());
                let asked = walk.frontiers[DIRECTORIES].has(&entry.handle);
                match walk.places.get(&entry.handle) {
                    _ if asked || !followed => Due::Never,
                    Some(place) if place.is_recent(now) => {
                        let passed = place.visited.is_some_and(|at| at >= walk.pass);
                        if passed { Due::Never } else { Due::Later }
                    }
                    Some(place) if place.is_unused() && !(walk.late && place.has_expired(now)) => Due::Never,
                    _ => Due::Now,
                }
            };
            let (parent, entry, position) = self.next(DIRECTORIES, due)?;
            if !self.frontiers[DIRECTORIES].guess(entry.handle, position.clone(), LISTING_BYTES, now) {
                continue;
            }
            if !self.places.contains_key(&entry.handle)
                && !self.add(entry.handle, Some((parent, entry.name)), position)
            {
                self.frontiers[DIRECTORIES].withdraw(&entry.handle);
                return None;
            }
            if let Some(place) = self.places.get_mut(&parent) {
                place.ventured += 1;
            }
            return Some(self.made(Target::Listing(entry.handle), LISTING_BYTES, bytes / 4));
        }
        None
    }

    /// The file that the reader will probably open next.
    fn next_file(&mut self, bytes: u64, now: Instant) -> Option<(Guess, u64)> {
        // A file may use a part of what is left.
        let notes = self.frontiers[FILES].record.only_notes();
        let size_max = if notes { FILE_MAX_BYTES } else { FILE_MAX_BYTES.min(bytes / 4) };
        while self.sequence.reads() && self.has_capacity(FILES) && (notes || bytes >= CALL_BYTES) {
            let due = |walk: &Walk, entry: &Entry| {
                // A complete file needs no call, so nobody would tell that a note about it was right.
                let least = u64::from(notes);
                let small = matches!(entry.kind, Kind::File { bytes } if (least..=size_max).contains(&bytes));
                let asked = walk.frontiers[FILES].has(&entry.handle);
                if small && walk.sequence.takes(entry) && !asked { Due::Now } else { Due::Never }
            };
            let (directory, entry, position) = self.next(FILES, due)?;
            let Kind::File { bytes } = entry.kind else { return None };
            let read = bytes.min(FILE_READ_MAX_BYTES);
            if self.frontiers[FILES].guess(entry.handle, position, read + CALL_BYTES, now) {
                let target = Target::File { directory, name: entry.name, handle: entry.handle };
                return Some(self.made(target, read + CALL_BYTES, read));
            }
        }
        None
    }

    /// A guess that will probably bring `likely` bytes, and `max` bytes at most.
    fn made(&mut self, target: Target, likely: u64, max: u64) -> (Guess, u64) {
        if let Target::Listing(directory) = &target
            && let Some(place) = self.places.get_mut(directory)
        {
            place.used = false;
        }
        (Guess { walk: self.id, caller: self.caller.clone(), bytes: max, target }, likely)
    }

    /// May the next entry ahead of the reader be guessed?
    fn has_capacity(&self, which: usize) -> bool {
        let Frontier { window, record, cursors, .. } = &self.frontiers[which];
        if record.only_notes() || !record.is_open(window.size()) {
            return record.is_open(window.size());
        }
        let next = || cursors.range(self.reader.clone()..).next();
        if self.depth_first { next().is_some_and(|(at, _)| window.is_open_at(at)) } else { window.is_open() }
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
            let Some(roster) = place.roster.clone().filter(|_| which == FILES || !place.is_avoided()) else {
                continue;
            };
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
            let here = key(&position, rank);
            let cursors = &mut self.frontiers[which].cursors;
            // Entries that are passed over may be directories, with cursors of their own.
            if cursors.range(at..).next().is_some_and(|(other, _)| *other < here) {
                cursors.insert(here, directory);
                continue;
            }
            place.ahead[which] += u32::from(found == Due::Now);
            cursors.insert(key(&position, place.ahead[which]), directory);
            if found != Due::Now {
                return None;
            }
            position.push(rank);
            return Some((directory, entry.clone(), position));
        }
    }

    pub(super) fn frontier_of(&mut self, target: &Target) -> &mut Frontier {
        match target {
            Target::Listing(_) => &mut self.frontiers[DIRECTORIES],
            Target::File { .. } => &mut self.frontiers[FILES],
        }
    }
}
