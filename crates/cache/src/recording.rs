//! What readers use of a tree, in the order of first use.
//!
//! A **recording** notes each object that a reader uses through this cache, once, with its strongest
//! [`Use`]. An object that gets a stronger use moves to the end: so files stand in the order in which they
//! were opened, even if all of them were looked at before. The operations report uses whether the answer
//! came from this disk or from the origin.
//!
//! While nothing is recorded, a report costs one load of a flag. One recording runs at a time. It has
//! bounds: [`USES_MAX`] objects, and [`RANGES_MAX`] ranges for each file. Uses beyond the first bound are
//! counted. Ranges beyond the second are joined, with the bytes between them.
//!
//! This module is pure: it knows handles, not paths.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use vfs::{Handle, Name};

/// Objects that one recording holds.
pub const USES_MAX: usize = 1 << 17;
/// Ranges of one file.
pub const RANGES_MAX: usize = 16;
/// Ranges of a file with at most so many bytes between them become one.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// How an object was used, the weakest use first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its attributes were asked for, or its name was looked up.
    Looked,
    /// The name was looked up and did not exist.
    Absent,
    /// The symbolic link was followed.
    Linked,
    /// The directory was listed.
    Listed,
    /// The file was opened for reading. The kernel may have read it without asking.
    Opened,
    /// These bytes of the file were read: sorted, disjoint, and at most [`RANGES_MAX`] ranges.
    Read(Vec<Range<u64>>),
}

impl Use {
    fn strength(&self) -> u8 {
        match self {
            Use::Looked => 0,
            Use::Absent => 1,
            Use::Linked | Use::Listed => 2,
            Use::Opened => 3,
            Use::Read(_) => 4,
        }
    }

    /// Joins a later use of the same object: the stronger use counts, and of two reads the bytes of both.
    /// True if the object moves to the place of the later use. A file that is read keeps the place of its
    /// open.
    pub fn join(&mut self, later: Use) -> bool {
        if let (Use::Read(ranges), Use::Read(more)) = (&mut *self, &later) {
            more.iter().for_each(|range| add(ranges, range.clone()));
            return false;
        }
        if later.strength() <= self.strength() {
            return false;
        }
        std::mem::replace(self, later) != Use::Opened
    }
}

/// An object, or a name that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An object.
    Object(Handle),
    /// A name in a directory.
    Absent(Handle, Name),
}

/// All uses, in order, and the number of those that did not fit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The uses.
    pub list: Vec<(Subject, Use)>,
    /// Objects that were used when the recording was full.
    pub surplus: u64,
}

#[derive(Debug, Default)]
struct Log {
    id: u64,
    uses: HashMap<Subject, (u64, Use)>,
    /// The number of the last use.
    last: u64,
    surplus: u64,
}

impl Log {
    fn note(&mut self, subject: Subject, used: Use) {
        self.last += 1;
        if let Some((at, known)) = self.uses.get_mut(&subject) {
            if known.join(used) {
                *at = self.last;
            }
        } else if self.uses.len() < USES_MAX {
            self.uses.insert(subject, (self.last, used));
        } else {
            self.surplus += 1;
        }
    }

    fn into_uses(self) -> Uses {
        let mut list: Vec<_> =
            self.uses.into_iter().map(|(subject, (at, used))| (at, subject, used)).collect();
        list.sort_by_key(|(at, ..)| *at);
        let list = list.into_iter().map(|(_, subject, used)| (subject, used)).collect();
        Uses { list, surplus: self.surplus }
    }
}

/// Adds a range to sorted and disjoint ones.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    let first = ranges.partition_point(|there| there.end.saturating_add(GAP_BYTES_MAX) < range.start);
    let last = ranges.partition_point(|there| there.start <= range.end.saturating_add(GAP_BYTES_MAX));
    let joined = ranges[first..last]
        .iter()
        .fold(range, |all, there| all.start.min(there.start)..all.end.max(there.end));
    ranges.splice(first..last, [joined]);
    if ranges.len() > RANGES_MAX {
        let gap = |at: usize| ranges[at].start - ranges[at - 1].end;
        let closest = (1..ranges.len()).min_by_key(|at| gap(*at)).unwrap_or(1);
        let end = ranges.remove(closest).end;
        ranges[closest - 1].end = end;
    }
}

/// The recording that is running, if one is.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Changes only under the lock of the log.
    on: AtomicBool,
    log: Mutex<Option<Log>>,
}

impl Recorder {
    /// Begins a recording. Returns its number, or `None` if one is running. No other recording has the same
    /// number, not even one of another process.
    pub fn begin(&self) -> Option<u64> {
        let mut log = self.log.lock();
        if log.is_some() {
            return None;
        }
        let id = RandomState::new().hash_one(());
        *log = Some(Log { id, ..Log::default() });
        self.on.store(true, Ordering::Release);
        Some(id)
    }

    /// Ends this recording and returns its uses. `None` if it is not running any more.
    pub fn end(&self, id: u64) -> Option<Uses> {
        let mut log = self.log.lock();
        let ended = log.take_if(|log| log.id == id)?;
        self.on.store(false, Ordering::Release);
        drop(log);
        Some(ended.into_uses())
    }

    /// A reader has used an object.
    pub fn object(&self, handle: &Handle, used: impl FnOnce() -> Use) {
        if self.on.load(Ordering::Relaxed) {
            self.note(Subject::Object(*handle), used());
        }
    }

    /// A reader has looked for a name that does not exist.
    pub fn absent(&self, directory: &Handle, name: &Name) {
        if self.on.load(Ordering::Relaxed) {
            self.note(Subject::Absent(*directory, name.clone()), Use::Absent);
        }
    }

    /// A reader has read bytes of a file.
    pub fn read(&self, handle: &Handle, offset: u64, bytes: u64) {
        self.object(handle, || {
            let range = offset..offset.saturating_add(bytes);
            if range.is_empty() { Use::Opened } else { Use::Read(vec![range]) }
        });
    }

    fn note(&self, subject: Subject, used: Use) {
        if let Some(log) = self.log.lock().as_mut() {
            log.note(subject, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle(text: &str) -> Handle {
        Handle::new(text.as_bytes()).unwrap()
    }

    fn recorder() -> (Recorder, u64) {
        let recorder = Recorder::default();
        let id = recorder.begin().unwrap();
        (recorder, id)
    }

    #[test]
    fn the_strongest_use_counts_and_files_stand_in_the_order_of_their_opens() {
        let (recorder, id) = recorder();
        recorder.object(&handle("d"), || Use::Listed);
        for file in ["a", "b", "c"] {
            recorder.object(&handle(file), || Use::Looked);
        }
        recorder.object(&handle("c"), || Use::Opened);
        recorder.object(&handle("a"), || Use::Opened);
        recorder.read(&handle("c"), 0, 10);
        recorder.object(&handle("c"), || Use::Looked);
        recorder.absent(&handle("d"), &Name::new(b"n").unwrap());
        let uses = recorder.end(id).unwrap();
        let all: Vec<_> = uses.list.into_iter().collect();
        let object = |text| Subject::Object(handle(text));
        assert_eq!(
            all,
            [
                (object("d"), Use::Listed),
                (object("b"), Use::Looked),
                (object("c"), Use::Read(std::iter::once(0..10).collect())),
                (object("a"), Use::Opened),
                (Subject::Absent(handle("d"), Name::new(b"n").unwrap()), Use::Absent),
            ]
        );
    }

    #[test]
    fn one_recording_runs_at_a_time_and_nothing_is_noted_without_one() {
        let (recorder, id) = recorder();
        assert_eq!(recorder.begin(), None);
        assert_eq!(recorder.end(id.wrapping_add(1)), None);
        assert_eq!(recorder.end(id), Some(Uses::default()));
        recorder.object(&handle("a"), || unreachable!("nothing is recorded"));
        assert_eq!(recorder.end(id), None);
        assert!(recorder.begin().is_some_and(|next| next != id));
        assert_eq!(recorder.end(id), None, "the next recording is not that of the first");
        recorder.object(&handle("a"), || Use::Looked);
        let next = recorder.log.lock().as_ref().map(|log| log.id).unwrap();
        assert_eq!(recorder.end(next).map(|uses| uses.list.len()), Some(1));
    }

    #[test]
    fn a_full_recording_counts_what_it_leaves_out() {
        let (recorder, id) = recorder();
        for n in 0..USES_MAX as u64 + 3 {
            recorder.object(&Handle::new(&n.to_be_bytes()).unwrap(), || Use::Looked);
        }
        recorder.object(&Handle::new(&0u64.to_be_bytes()).unwrap(), || Use::Opened);
        let uses = recorder.end(id).unwrap();
        assert_eq!((uses.list.len(), uses.surplus), (USES_MAX, 3));
    }

    proptest! {
        #[test]
        fn ranges_stay_few_sorted_and_disjoint_and_lose_no_byte(
            reads in prop::collection::vec((0..1u64 << 40, 1..1u64 << 22), 1..100)
        ) {
            let mut ranges = Vec::new();
            for (start, bytes) in &reads {
                add(&mut ranges, *start..start + bytes);
            }
            prop_assert!(ranges.len() <= RANGES_MAX);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            for (start, bytes) in reads {
                prop_assert!(ranges.iter().any(|range| range.start <= start && start + bytes <= range.end));
            }
        }
    }
}
