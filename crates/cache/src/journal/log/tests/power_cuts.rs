//! A durable journal on a disk that loses power, against an origin and a list of all writes.
//!
//! After a power cut the disk has everything that was synced. Of each later change it has any part: blocks
//! of files, new files, removals. The model assumes that the write lease of each file is held, so all
//! entries that come back are sent. It has a few places in each file, and a write fills one of them with its
//! number.
//!
//! Then each place at the origin must hold the last number there that was synced or sent, or a later one. An
//! older one would mean that a write was lost, or that an old entry was sent over a newer one.
//!
//! Promise: fsync-from-the-journal

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use vfs::{Handle, LeaseId, Principal, Timestamp};

use super::super::reading::numbers;
use super::super::*;

/// Bytes that reach the disk together.
const BLOCK: usize = 48;
const PLACES: u64 = 3;
const FILES: u8 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// A program writes to a place of a file.
    Write(u8, u64, usize),
    /// An fsync.
    Sync,
    /// All but the last so many delayed writes of a file are sent, and durable there.
    Send(u8, usize),
    /// A file is entered anew, as before a change of another kind.
    Anew(u8),
    /// A change that is not an entry, of a file without delayed writes, at a place.
    Direct(u8, u64),
    /// The process is killed. The next one is durable or not.
    Kill(bool),
    /// The power is cut. The number decides what the disk has.
    Cut(u64),
    /// The process is killed, and the power is cut while the next one takes the journal over.
    KillAndCut(bool, u64),
    /// The power is cut twice, the second time while the journal is taken over.
    CutTwice(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (file, place) = (0..FILES, 0..PLACES);
    let step = prop_oneof![
        10 => (file.clone(), place.clone(), 0..120_usize).prop_map(|(file, place, more)| Step::Write(file, place, more)),
        3 => Just(Step::Sync),
        5 => (file.clone(), 0..4_usize).prop_map(|(file, left)| Step::Send(file, left)),
        1 => file.clone().prop_map(Step::Anew),
        2 => (file, place).prop_map(|(file, place)| Step::Direct(file, place)),
        1 => any::<bool>().prop_map(Step::Kill),
        2 => any::<u64>().prop_map(Step::Cut),
        1 => any::<(bool, u64)>().prop_map(|(durable, chance)| Step::KillAndCut(durable, chance)),
        1 => any::<(u64, u64)>().prop_map(|(one, other)| Step::CutTwice(one, other)),
    ];
    prop::collection::vec(step, 1..80)
}

/// The contents of the directory of segments.
type Image = BTreeMap<u64, Vec<u8>>;

fn image(directory: &Path) -> Image {
    let read = |number: u64| (number, std::fs::read(directory.join(number.to_string())).unwrap());
    numbers(directory).unwrap().into_iter().map(read).collect()
}

/// The contents of the disk after a power cut, if it had `synced` at the last sync and was then brought to
/// `now`.
fn cut(synced: &Image, now: &Image, mut chance: u64) -> Image {
    let mut next = move || {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 40) & 1 == 1
    };
    let mut left = Image::new();
    for number in synced.keys().chain(now.keys()) {
        let (before, after) = (synced.get(number), now.get(number));
        // It was made or removed, and the disk may not know.
        if left.contains_key(number) || (before.is_none() != after.is_none() && next()) {
            continue;
        }
        let empty = Vec::new();
        let (before, after) = (before.unwrap_or(&empty), after.or(before).unwrap_or(&empty));
        let mut bytes = before.clone();
        let ends = if next() { after.len() } else { before.len().max(after.len() / 2) };
        bytes.resize(ends, 0);
        for (at, block) in bytes.chunks_mut(BLOCK).enumerate().filter(|_| next()) {
            let from = after.get(at * BLOCK..).unwrap_or_default();
            let count = block.len().min(from.len());
            block[..count].copy_from_slice(&from[..count]);
        }
        left.insert(*number, bytes);
    }
    left
}

/// A file: at this process, at the origin, and as it must be.
#[derive(Default)]
struct File {
    place: Option<Journaled>,
    /// The delayed writes: number, place, and size of the entry.
    delayed: Vec<(u64, u64, usize)>,
    /// What a power cut must not lose, for each place.
    owed: BTreeMap<u64, u64>,
    origin: BTreeMap<u64, u64>,
}

struct Model {
    directory: tempfile::TempDir,
    journal: Journal,
    synced: Image,
    boot: u64,
    files: BTreeMap<u8, File>,
}

impl Model {
    fn new() -> Model {
        let directory = tempfile::tempdir().unwrap();
        let journal = open(directory.path(), 1, true);
        let files = (0..FILES).map(|file| (file, File::default())).collect();
        Model { directory, journal, synced: Image::new(), boot: 1, files }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("writeback")
    }

    /// All that is delayed becomes durable, if the journal follows the rules.
    fn sync(&mut self) {
        if let Some(upto) = self.journal.unsynced() {
            self.journal.sync(upto).unwrap();
        }
        if self.journal.syncing.is_careful() {
            self.synced = image(&self.path());
            self.owe_all();
        }
    }

    fn owe_all(&mut self) {
        for file in self.files.values_mut() {
            file.owed.extend(file.delayed.iter().map(|(number, place, _)| (*place, *number)));
        }
    }

    fn write(&mut self, file: u8, number: u64, place: u64, more: usize) {
        let held = self.files.get_mut(&file).unwrap();
        let journaled = held.place.get_or_insert_with(|| begin(&self.journal, file, None));
        self.journal.append(journaled, &entry(number, place, more), number).unwrap();
        held.delayed.push((number, place, more));
    }

    fn send(&mut self, file: u8, left: usize) {
        if self.files[&file].delayed.is_empty() {
            return;
        }
        self.sync();
        let held = self.files.get_mut(&file).unwrap();
        let count = held.delayed.len().saturating_sub(left);
        for (number, place, _) in held.delayed.drain(..count) {
            held.origin.insert(place, number);
            held.owed.entry(place).and_modify(|owed| *owed = number.max(*owed)).or_insert(number);
        }
        match held.delayed.first() {
            Some((oldest, ..)) => {
                held.place.iter_mut().for_each(|place| self.journal.release(place, *oldest));
            }
            None => held.place.take().into_iter().for_each(|place| self.journal.end(place)),
        }
    }

    fn anew(&mut self, file: u8) {
        let held = self.files.get_mut(&file).unwrap();
        let Some(earlier) = held.place.take() else { return };
        let mut place = begin(&self.journal, file, Some(earlier.number()));
        for (number, at, more) in &held.delayed {
            self.journal.append(&mut place, &entry(*number, *at, *more), *number).unwrap();
        }
        let last = held.delayed.last().map_or(0, |(number, ..)| *number);
        self.journal.append(&mut place, &Entry::Complete(held.delayed.len() as u64), last).unwrap();
        self.journal.replace(&mut place, earlier);
        held.place = Some(place);
    }

    fn direct(&mut self, file: u8, number: u64, place: u64) {
        if !self.files[&file].delayed.is_empty() {
            return;
        }
        self.sync();
        let held = self.files.get_mut(&file).unwrap();
        held.origin.insert(place, number);
        held.owed.insert(place, number);
    }

    /// The process ends, and the next one takes the journal over.
    fn restart(&mut self, number: u64, durable: bool) {
        let next = open(self.directory.path(), self.boot, durable);
        let mut before = std::mem::replace(&mut self.journal, next);
        before.log.get_mut().segments.clear();
        before.syncing = Syncing::new(false);
        drop(before);
        for file in self.files.values_mut() {
            (file.place, file.delayed) = (None, Vec::new());
        }
        for Restored { mut journaled, entries, .. } in self.journal.restore().unwrap().0 {
            let held = self.files.get_mut(&journaled.begin().handle.as_bytes()[0]).unwrap();
            held.delayed = entries.iter().filter_map(read).collect();
            journaled.restored_before(number);
            held.place = Some(journaled);
        }
        self.check();
    }

    fn kill(&mut self, number: u64, durable: bool) -> Image {
        let before = image(&self.path());
        // A kill loses nothing at all.
        let mut delayed: BTreeMap<u8, Vec<_>> = BTreeMap::new();
        for (file, held) in &self.files {
            delayed.insert(*file, held.delayed.clone());
        }
        self.restart(number, durable);
        for (file, held) in &self.files {
            assert!(held.delayed.ends_with(&delayed[file]), "file {file}: a kill has lost entries");
        }
        before
    }

    /// The journal is taken over.
    fn settle(&mut self) {
        // Otherwise nothing that a power cut leaves counts.
        self.synced = Image::new();
        if self.journal.syncing.is_careful() {
            self.synced = image(&self.path());
            self.owe_all();
        }
    }

    /// The disk had `synced`, and was then brought to its present state. Returns what it has after the cut,
    /// and takes that over.
    fn cut_power(&mut self, number: u64, synced: &Image, chance: u64) -> Image {
        self.lose(number, cut(synced, &image(&self.path()), chance))
    }

    /// The power is cut while a process takes over what the disk had `before`. Segments are removed at the
    /// end of that, when all marks are synced.
    fn cut_power_early(&mut self, number: u64, before: &Image, chance: u64) {
        let mut now = before.clone();
        now.append(&mut image(&self.path()));
        self.lose(number, cut(before, &now, chance));
    }

    fn lose(&mut self, number: u64, left: Image) -> Image {
        self.boot += 1;
        std::fs::remove_dir_all(self.path()).ok();
        std::fs::create_dir_all(self.path()).unwrap();
        for (number, bytes) in &left {
            std::fs::write(self.path().join(number.to_string()), bytes).unwrap();
        }
        self.restart(number, true);
        left
    }

    fn check(&self) {
        for (file, held) in &self.files {
            let mut sent = held.origin.clone();
            sent.extend(held.delayed.iter().map(|(number, place, _)| (*place, *number)));
            for (place, owed) in &held.owed {
                let found = sent.get(place);
                assert!(found >= Some(owed), "place {place} of file {file}: {found:?} instead of {owed}");
            }
        }
    }
}

fn open(directory: &Path, boot: u64, durable: bool) -> Journal {
    let mut journal = Journal::new(directory.join("writeback"), boot, 1 << 20, true, durable);
    journal.segment_bytes = 400;
    journal
}

fn begin(journal: &Journal, file: u8, replaces: Option<u64>) -> Journaled {
    let handle = Handle::new(&[file]).unwrap();
    journal.begin(Box::new(Begin { handle, lease: LeaseId(1), change: None, replaces, place: None }))
}

fn entry(number: u64, place: u64, more: usize) -> Entry {
    let bytes = Bytes::from([&number.to_le_bytes()[..], &vec![7; more]].concat());
    Entry::Write { writer: Principal::Machine, offset: place, modified: Timestamp::default(), bytes }
}

fn read(entry: &Entry) -> Option<(u64, u64, usize)> {
    let Entry::Write { offset, bytes, .. } = entry else { return None };
    let (number, more) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*number), *offset, more.len()))
}

/// Each case syncs the disk many times.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 4, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_power_cut_loses_nothing_synced_and_brings_nothing_old_back(steps in steps()) {
        let mut model = Model::new();
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Write(file, place, more) => model.write(file, number, place, more),
                Step::Sync => model.sync(),
                Step::Send(file, left) => model.send(file, left),
                Step::Anew(file) => model.anew(file),
                Step::Direct(file, place) => model.direct(file, number, place),
                Step::Kill(durable) => {
                    model.kill(number, durable);
                    model.settle();
                }
                Step::Cut(chance) => {
                    let synced = std::mem::take(&mut model.synced);
                    model.cut_power(number, &synced, chance);
                    model.settle();
                }
                Step::KillAndCut(durable, chance) => {
                    let before = model.kill(number, durable);
                    model.cut_power_early(number, &before, chance);
                    model.settle();
                }
                Step::CutTwice(one, other) => {
                    let synced = std::mem::take(&mut model.synced);
                    let left = model.cut_power(number, &synced, one);
                    model.cut_power_early(number, &left, other);
                    model.settle();
                }
            }
        }
    }
}
