//! Which bytes of a file a list of entries has, and since when.

use std::ops::Range;

use vfs::Timestamp;

use super::conflicts::is_done;
use super::entry::{Entry, Set};

/// The bytes that the entries have, sorted and without overlaps. A truncation takes away the bytes behind it,
/// unless the origin has refused it.
pub fn ranges(entries: &[Entry]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        match entry {
            Entry::Write { offset, bytes, .. } => ranges.push(*offset..offset + bytes.len() as u64),
            Entry::Cut(end) if is_done(entries, at) => {
                join(&mut ranges);
                ranges.retain_mut(|range| {
                    range.end = range.end.min(*end);
                    !range.is_empty()
                });
            }
            _ => {}
        }
    }
    join(&mut ranges);
    ranges
}

/// The time of the earliest write.
pub fn oldest(entries: &[Entry]) -> Option<Timestamp> {
    let written = entries.iter().filter_map(|entry| match entry {
        Entry::Write { modified, .. } => Some(*modified),
        _ => None,
    });
    written.min()
}

/// The size of a truncation of which it is not known whether the origin carried it out.
pub fn cut(entries: &[Entry]) -> Option<u64> {
    match entries.iter().rev().find(|entry| matches!(entry, Entry::Cut(_) | Entry::CutEnd(_))) {
        Some(Entry::Cut(end)) => Some(*end),
        _ => None,
    }
}

/// Attributes that are to be set after the writes.
pub fn pending(entries: &[Entry]) -> Option<&Set> {
    match entries.iter().rev().find(|entry| matches!(entry, Entry::Attributes(_) | Entry::AttributesEnd)) {
        Some(Entry::Attributes(set)) => Some(set),
        _ => None,
    }
}

fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|later, earlier| {
        let joins = later.start <= earlier.end;
        if joins {
            earlier.end = earlier.end.max(later.end);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use vfs::Principal;

    use super::*;

    fn write(offset: u64, length: usize, seconds: i64) -> Entry {
        Entry::Write {
            writer: Principal::Machine,
            offset,
            modified: Timestamp { seconds, nanoseconds: 0 },
            bytes: Bytes::from(vec![1; length]),
        }
    }

    #[test]
    fn writes_join_and_truncations_take_bytes_away() {
        let entries = [write(10, 10, 7), write(0, 4, 5), write(20, 5, 6), write(3, 2, 8)];
        assert_eq!(ranges(&entries), [0..5, 10..25]);
        assert_eq!(oldest(&entries), Some(Timestamp { seconds: 5, nanoseconds: 0 }));
        let ended = [&entries[..], &[Entry::Cut(12), Entry::CutEnd(true)]].concat();
        assert_eq!((ranges(&ended), cut(&ended)), (vec![0..5, 10..12], None));
        let refused = [&entries[..], &[Entry::Cut(12), Entry::CutEnd(false)]].concat();
        assert_eq!((ranges(&refused), cut(&refused)), (vec![0..5, 10..25], None));
        let unknown = [&entries[..], &[Entry::Cut(0)]].concat();
        assert_eq!((ranges(&unknown), cut(&unknown)), (vec![], Some(0)));
        assert_eq!((ranges(&[]), oldest(&[])), (vec![], None));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, usize),
        Cut(u64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..60u64, 0..10usize).prop_map(|(offset, length)| Step::Write(offset, length)),
            1 => (0..70u64, any::<bool>()).prop_map(|(end, done)| Step::Cut(end, done)),
        ]
    }

    proptest! {
        #[test]
        fn ranges_are_the_bytes_of_a_model(steps in prop::collection::vec(step(), 0..30)) {
            let (mut model, mut entries) = ([false; 80], Vec::new());
            for step in steps {
                match step {
                    Step::Write(offset, length) => {
                        model[offset as usize..][..length].fill(true);
                        entries.push(write(offset, length, 0));
                    }
                    Step::Cut(end, done) => {
                        if done {
                            model[end as usize..].fill(false);
                        }
                        entries.extend([Entry::Cut(end), Entry::CutEnd(done)]);
                    }
                }
            }
            let found = ranges(&entries);
            let has = |at: usize| found.iter().any(|range| range.contains(&(at as u64)));
            prop_assert!((0..80).all(|at| has(at) == model[at]), "{found:?}");
            prop_assert!(found.windows(2).all(|two| two[0].end < two[1].start), "{found:?}");
        }
    }
}
