//! The journal against a list of what each file has entered, with kills, torn ends and full disks.
//!
//! Promise: killed-mounts

mod any;
mod power_cuts;

use proptest::prelude::*;
use std::path::Path;

use bytes::Bytes;
use vfs::{Handle, LeaseId, Principal, Timestamp};

use super::header::HEADER_BYTES;
use super::reading::{NO_LEASE, numbers};
use super::*;
use crate::journal::entry::Begin;

const BOOT: u64 = 7;
/// So that a few entries fill a segment.
const SEGMENT: u64 = 400;

fn journal(directory: &Path) -> Journal {
    let mut journal = Journal::new(directory.join("writeback"), BOOT, 1 << 20, true, false);
    journal.segment_bytes = SEGMENT;
    journal
}

fn begin(journal: &Journal, handle: u8) -> Journaled {
    let handle = Handle::new(&[handle]).unwrap();
    journal.begin(Box::new(Begin { handle, lease: LeaseId(1), change: None, replaces: None, place: None }))
}

fn write(offset: u64, length: usize) -> Entry {
    Entry::Write {
        writer: Principal::Machine,
        offset,
        modified: Timestamp::default(),
        bytes: Bytes::from(vec![offset as u8; length]),
    }
}

/// The process is killed: its files are closed, and stay.
fn kill(mut journal: Journal) {
    journal.log.get_mut().segments.clear();
    drop(journal);
}

/// The segments on disk.
fn segments(directory: &Path) -> Vec<u64> {
    numbers(&directory.join("writeback")).unwrap()
}

/// A file of the model: its place, and its entries with their numbers.
#[derive(Default)]
struct Model {
    place: Option<Journaled>,
    entries: Vec<(u64, Entry)>,
}

#[derive(Clone, Debug)]
enum Step {
    Write(u8, usize),
    /// All but the last so many writes are durable.
    Release(u8, usize),
    End(u8),
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let file = 0..4_u8;
    let step = prop_oneof![
        8 => (file.clone(), 0..90_usize).prop_map(|(file, length)| Step::Write(file, length)),
        2 => (file.clone(), 0..6_usize).prop_map(|(file, left)| Step::Release(file, left)),
        1 => file.prop_map(Step::End),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn what_is_not_durable_comes_back_in_order(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let mut now = journal(directory.path());
        let mut files: BTreeMap<u8, Model> = BTreeMap::new();
        for (number, step) in (1..).zip(steps) {
            match step {
                Step::Write(file, length) => {
                    let model = files.entry(file).or_default();
                    let place = model.place.get_or_insert_with(|| begin(&now, file));
                    now.append(place, &write(number, length), number).unwrap();
                    model.entries.push((number, write(number, length)));
                }
                Step::Release(file, left) => {
                    let Some(Model { place: Some(place), entries }) = files.get_mut(&file) else { continue };
                    let (oldest, _) = entries[entries.len().saturating_sub(left + 1)];
                    now.release(place, oldest);
                    entries.retain(|(number, _)| *number >= oldest);
                }
                Step::End(file) => {
                    let place = files.remove(&file).and_then(|file| file.place);
                    place.into_iter().for_each(|place| now.end(place));
                }
                Step::Kill => {
                    kill(std::mem::replace(&mut now, journal(directory.path())));
                    files.values_mut().for_each(|file| file.place = None);
                    let (restored, outdated) = now.restore().unwrap();
                    prop_assert_eq!((restored.len(), outdated), (files.len(), false));
                    for Restored { mut journaled, entries, .. } in restored {
                        let file = files.get_mut(&journaled.begin().handle.as_bytes()[0]).unwrap();
                        // Earlier entries of a segment that still counts come back, too.
                        let wanted: Vec<&Entry> = file.entries.iter().map(|(_, entry)| entry).collect();
                        let last = &entries[entries.len() - wanted.len()..];
                        prop_assert_eq!(last.iter().collect::<Vec<_>>(), wanted);
                        let same = |entry: &Entry| (number, entry.clone());
                        file.entries = entries.iter().map(same).collect();
                        journaled.restored_before(number);
                        file.place = Some(journaled);
                    }
                }
            }
            let places = files.values().filter_map(|file| file.place.as_ref());
            let held: Vec<u64> = places.flat_map(|place| &place.parts).map(|part| part.segment).collect();
            let there = segments(directory.path());
            let idle = |number: &&u64| !held.contains(number) && Some(*number) != there.last();
            prop_assert_eq!(there.iter().find(idle), None, "a segment that holds nothing");
        }
        files.into_values().filter_map(|file| file.place).for_each(|place| now.end(place));
        drop(now);
        prop_assert_eq!(segments(directory.path()), Vec::<u64>::new());
    }
}

#[test]
fn each_part_knows_the_file_as_it_was_last_seen() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let mut place = begin(&first, 1);
    for number in 1..9 {
        first.append(&mut place, &write(number, 150), number).unwrap();
        place.learn(&Entry::Change(number));
        first.append(&mut place, &Entry::Change(number), number).unwrap();
    }
    assert!(place.is_long());
    first.release(&mut place, 8);
    kill(first);
    let Restored { journaled, entries, .. } = journal(directory.path()).restore().unwrap().0.pop().unwrap();
    assert_eq!(journaled.begin().change, Some(8));
    assert!(entries.len() < 16 && entries.contains(&write(8, 150)));
}

#[test]
fn a_torn_end_is_cut_off_and_the_rest_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let mut journaled = begin(&first, 1);
    first.append(&mut journaled, &write(1, 50), 1).unwrap();
    let sound = first.bytes();
    first.append(&mut journaled, &write(2, 50), 2).unwrap();
    kill(first);
    let path = directory.path().join("writeback/1");
    OpenOptions::new().write(true).open(&path).unwrap().set_len(sound + 30).unwrap();
    let second = journal(directory.path());
    let Restored { mut journaled, entries, .. } = second.restore().unwrap().0.pop().unwrap();
    assert_eq!(entries, [write(1, 50)]);
    second.append(&mut journaled, &write(3, 5), 3).unwrap();
    kill(second);
    let entries = journal(directory.path()).restore().unwrap().0.pop().unwrap().entries;
    assert_eq!(entries, [write(1, 50), write(3, 5)]);
}

#[test]
fn another_boot_and_foreign_files_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let mut journaled = begin(&first, 1);
    first.append(&mut journaled, &write(1, 50), 1).unwrap();
    kill(first);
    std::fs::write(directory.path().join("writeback/notes"), "kept").unwrap();
    let other = Journal::new(directory.path().join("writeback"), BOOT + 1, 1 << 20, true, false);
    let (files, outdated) = other.restore().unwrap();
    assert_eq!((files.len(), outdated), (0, true));
    assert_eq!(segments(directory.path()), []);
    assert!(directory.path().join("writeback/notes").exists());
}

#[test]
fn a_full_journal_refuses_and_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let mut small = journal(directory.path());
    small.max_bytes = 636;
    let mut journaled = begin(&small, 1);
    small.append(&mut journaled, &write(1, 300), 1).unwrap();
    let error = small.append(&mut journaled, &write(2, 300), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    small.append(&mut journaled, &write(3, 10), 3).unwrap();
    kill(small);
    let entries = journal(directory.path()).restore().unwrap().0.pop().unwrap().entries;
    assert_eq!(entries, [write(1, 300), write(3, 10)]);
}

#[test]
fn a_damaged_journal_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let mut journaled = begin(&first, 1);
    for number in 1..6 {
        first.append(&mut journaled, &write(number, 300), number).unwrap();
    }
    kill(first);
    let there = segments(directory.path());
    assert!(there.len() > 2);
    let damage = |at: u64, bytes: &[u8]| {
        let path = directory.path().join("writeback/1");
        let before = std::fs::read(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().write_all_at(bytes, at).unwrap();
        let journal = journal(directory.path());
        assert_eq!(journal.restore().unwrap_err().kind(), ErrorKind::InvalidData);
        drop(journal);
        assert_eq!(segments(directory.path()), there);
        std::fs::write(&path, before).unwrap();
    };
    damage(HEADER_BYTES + 30, b"damage");
    damage(0, b"lhwrite9");
    // The last segment, in its middle.
    let last = directory.path().join(format!("writeback/{}", there.last().unwrap()));
    let before = std::fs::read(&last).unwrap();
    OpenOptions::new().write(true).open(&last).unwrap().write_all_at(b"damage", HEADER_BYTES + 30).unwrap();
    assert_eq!(journal(directory.path()).restore().unwrap_err().kind(), ErrorKind::InvalidData);
    std::fs::write(&last, before).unwrap();
    let restored = journal(directory.path()).restore().unwrap().0;
    assert_eq!(restored[0].entries.len(), 5);
}

#[test]
fn a_file_that_is_entered_anew_counts_once() {
    for complete in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let first = journal(directory.path());
        let mut old = begin(&first, 1);
        first.append(&mut old, &write(1, 300), 1).unwrap();
        first.append(&mut old, &write(2, 300), 2).unwrap();
        let begin = Begin { replaces: Some(old.number()), ..old.begin().clone() };
        let mut anew = first.begin(Box::new(begin));
        first.append(&mut anew, &write(2, 300), 2).unwrap();
        if complete {
            first.append(&mut anew, &Entry::Complete(1), 2).unwrap();
        }
        kill(first);
        let second = journal(directory.path());
        let Restored { journaled, entries, .. } = second.restore().unwrap().0.pop().unwrap();
        let wanted =
            if complete { [write(2, 300), Entry::Complete(1)] } else { [write(1, 300), write(2, 300)] };
        assert_eq!(entries, wanted);
        assert_ne!(journaled.begin().lease, NO_LEASE);
        second.end(journaled);
        drop(second);
        assert_eq!(segments(directory.path()), []);
    }
}

#[test]
fn records_of_one_file_are_joined_and_prove_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let (mut one, mut two) = (begin(&first, 1), begin(&first, 1));
    first.append(&mut one, &write(1, 10), 1).unwrap();
    first.append(&mut two, &write(2, 10), 2).unwrap();
    first.append(&mut two, &Entry::Change(5), 2).unwrap();
    kill(first);
    let second = journal(directory.path());
    let Restored { journaled, entries, .. } = second.restore().unwrap().0.pop().unwrap();
    assert_eq!(entries, [write(1, 10), write(2, 10), Entry::Change(5)]);
    assert_eq!((journaled.begin().change, journaled.begin().lease), (None, NO_LEASE));
    second.end(journaled);
    drop(second);
    assert_eq!(segments(directory.path()), []);
}

#[test]
fn a_segment_that_was_not_read_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let first = journal(directory.path());
    let mut journaled = begin(&first, 1);
    first.append(&mut journaled, &write(1, 50), 1).unwrap();
    kill(first);
    let before = std::fs::read(directory.path().join("writeback/1")).unwrap();
    let second = journal(directory.path());
    let error = second.append(&mut begin(&second, 2), &write(2, 50), 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    drop(second);
    assert_eq!(std::fs::read(directory.path().join("writeback/1")).unwrap(), before);
}

#[test]
fn after_a_sync_that_failed_no_other_one_is_believed() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::new(directory.path().join("writeback"), BOOT, 1 << 20, true, true);
    let mut journaled = begin(&journal, 1);
    journal.append(&mut journaled, &write(1, 50), 1).unwrap();
    let upto = journal.unsynced().unwrap();
    // The system refuses to sync a device.
    let device = Arc::new(std::fs::File::open("/dev/null").unwrap());
    let sound = std::mem::replace(&mut journal.log.lock().segments.get_mut(&1).unwrap().file, device);
    assert!(journal.answers_fsync() && journal.sync(upto).is_err());
    journal.log.lock().segments.get_mut(&1).unwrap().file = sound;
    assert!(journal.sync(upto).is_err() && !journal.is_synced(upto));
    assert!(!journal.answers_fsync() && journal.has_failed() && journal.unsynced().is_none());
    journal.end(journaled);
}
