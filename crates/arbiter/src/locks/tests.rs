//! The table against a model with an entry for each byte.

use bytes::Bytes;
use proptest::prelude::*;
use vfs::LockKind::{self, Exclusive, Shared};

use super::*;

/// Number of bytes in the model. A lock to the end of the file covers all bytes from its start; the last
/// byte stands for the rest of the file.
const BYTES: u64 = 16;

#[derive(Clone, Debug)]
enum Step {
    Lock { owner: u8, open: u8, kind: LockKind, offset: u64, length: u64, refused_below: bool },
    Unlock { owner: u8, offset: u64, length: u64 },
    Close(u8),
    Wait { owner: u8, kind: LockKind, offset: u64, length: u64 },
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..BYTES, prop_oneof![1..BYTES, Just(u64::MAX)])
}

fn kind() -> impl Strategy<Value = LockKind> {
    prop_oneof![Just(Shared), Just(Exclusive)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..3, 0u8..4, kind(), range(), any::<bool>()).prop_map(|(owner, open, kind, (offset, length), refused_below)| {
            Step::Lock { owner, open, kind, offset, length, refused_below }
        }),
        3 => (0u8..3, range()).prop_map(|(owner, (offset, length))| Step::Unlock { owner, offset, length }),
        1 => (0u8..4).prop_map(Step::Close),
        2 => (0u8..3, kind(), range()).prop_map(|(owner, kind, (offset, length))| {
            Step::Wait { owner, kind, offset, length }
        }),
    ]
}

fn owner(number: u8) -> Owner {
    Owner(Bytes::copy_from_slice(&[number]))
}

fn lock(number: u8, kind: LockKind, offset: u64, length: u64) -> Lock {
    Lock { owner: owner(number), kind, offset, length }
}

fn handle() -> Handle {
    Handle::new(b"file").unwrap()
}

/// The lock of each owner on each byte.
#[derive(Default)]
struct Model {
    bytes: HashMap<(u8, u64), LockKind>,
    through: HashMap<u8, Vec<u8>>,
}

impl Model {
    fn covered(offset: u64, length: u64) -> impl Iterator<Item = u64> {
        // Two bytes more than any finite range reaches: they stand for the rest of the file.
        (0..2 * BYTES + 2).filter(move |byte| *byte >= offset && *byte < offset.saturating_add(length))
    }

    fn denied(&self, who: u8, kind: LockKind, offset: u64, length: u64) -> bool {
        Model::covered(offset, length).any(|byte| {
            (0..3).filter(|other| *other != who).any(|other| match self.bytes.get(&(other, byte)) {
                None => false,
                Some(held) => *held == Exclusive || kind == Exclusive,
            })
        })
    }

    fn set(&mut self, who: u8, offset: u64, length: u64, kind: Option<LockKind>) {
        for byte in Model::covered(offset, length) {
            match kind {
                Some(kind) => self.bytes.insert((who, byte), kind),
                None => self.bytes.remove(&(who, byte)),
            };
        }
        if !self.holds(who) {
            self.through.remove(&who);
        }
    }

    fn holds(&self, who: u8) -> bool {
        self.bytes.keys().any(|(owner, _)| *owner == who)
    }
}

fn agrees(locks: &Locks, model: &Model) {
    for who in 0..3 {
        assert_eq!(locks.holds(&handle(), &owner(who)), model.holds(who));
        for byte in 0..2 * BYTES + 2 {
            for kind in [Shared, Exclusive] {
                let denied = locks.test(&handle(), &lock(who, kind, byte, 1)).unwrap();
                assert_eq!(denied.is_some(), model.denied(who, kind, byte, 1), "byte {byte} for {who}");
                if let Some(denied) = denied {
                    assert!(denied.conflicts(&lock(who, kind, byte, 1)));
                }
            }
        }
    }
    let file = locks.files.get(&handle());
    let ranges: usize = file.map_or(0, |file| file.owners.values().map(|owned| owned.ranges.len()).sum());
    assert_eq!(locks.len(), ranges);
    assert_eq!(locks.waiting(), file.map_or(0, |file| file.waiters.len()));
    for owned in file.iter().flat_map(|file| file.owners.values()) {
        let ranges: Vec<_> = owned.ranges.iter().collect();
        for pair in ranges.windows(2) {
            assert!(
                pair[0].end < pair[1].start || (pair[0].end == pair[1].start && pair[0].kind != pair[1].kind)
            );
        }
    }
}

/// A notified waiter could have its lock; any other waiter could not.
fn all_were_told(locks: &Locks) {
    for waiter in locks.files.get(&handle()).iter().flat_map(|file| &file.waiters) {
        assert!(locks.test(&handle(), &waiter.lock).unwrap().is_some(), "{waiter:?} could have it");
    }
}

proptest! {
    #[test]
    fn ranges_are_what_every_byte_says(steps in proptest::collection::vec(step(), 1..60)) {
        let now = Instant::now();
        let (mut locks, mut model) = (Locks::default(), Model::default());
        for step in steps {
            match step {
                Step::Lock { owner: who, open, kind, offset, length, refused_below } => {
                    let wanted = lock(who, kind, offset, length);
                    let outcome = locks.lock(&handle(), OpenId(open.into()), &wanted).unwrap();
                    match outcome {
                        Outcome::Denied(other) => {
                            prop_assert!(model.denied(who, kind, offset, length));
                            prop_assert!(other.conflicts(&wanted));
                        }
                        Outcome::Granted(before) if refused_below => {
                            prop_assert!(!model.denied(who, kind, offset, length));
                            locks.undo(now, &handle(), &wanted, &before);
                            if model.holds(who) {
                                model.through.entry(who).or_default().push(open);
                            }
                            all_were_told(&locks);
                        }
                        Outcome::Granted(_) => {
                            prop_assert!(!model.denied(who, kind, offset, length));
                            model.set(who, offset, length, Some(kind));
                            locks.tell(now, &handle());
                            all_were_told(&locks);
                            model.through.entry(who).or_default().push(open);
                        }
                    }
                }
                Step::Unlock { owner: who, offset, length } => {
                    locks.unlock(now, &handle(), &owner(who), (offset, length)).unwrap();
                    model.set(who, offset, length, None);
                    all_were_told(&locks);
                }
                Step::Close(open) => {
                    locks.close(now, &handle(), OpenId(open.into()));
                    for who in 0..3 {
                        if model.through.get(&who).is_some_and(|through| through.contains(&open)) {
                            model.set(who, 0, u64::MAX, None);
                        }
                    }
                    all_were_told(&locks);
                }
                Step::Wait { owner: who, kind, offset, length } => if model.denied(who, kind, offset, length) {
                    locks.wait(now, &handle(), HolderId(who.into()), &lock(who, kind, offset, length));
                },
            }
            agrees(&locks, &model);
        }
        for who in 0..3 {
            locks.unlock(now, &handle(), &owner(who), (0, u64::MAX)).unwrap();
        }
        prop_assert!(locks.is_empty() && locks.waiting() == 0);
    }
}

#[test]
fn a_waiter_is_told_once_and_in_order() {
    let now = Instant::now();
    let mut locks = Locks::default();
    let all = |who| lock(who, Exclusive, 0, u64::MAX);
    assert!(matches!(locks.lock(&handle(), OpenId(1), &all(0)), Ok(Outcome::Granted(_))));
    for who in [2, 1, 2] {
        assert!(matches!(locks.lock(&handle(), OpenId(2), &all(who)), Ok(Outcome::Denied(_))));
        locks.wait(now, &handle(), HolderId(who.into()), &all(who));
    }
    assert_eq!(locks.waiting(), 2);
    let told = locks.unlock(now, &handle(), &owner(0), (0, u64::MAX)).unwrap();
    assert_eq!(told.iter().map(|notice| notice.holder.0).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(locks.unlock(now, &handle(), &owner(0), (0, u64::MAX)).unwrap(), []);
}

#[test]
fn a_waiter_that_was_not_seen_for_long_is_forgotten() {
    let now = Instant::now();
    let mut locks = Locks::default();
    locks.lock(&handle(), OpenId(1), &lock(0, Exclusive, 0, 10)).unwrap();
    locks.wait(now, &handle(), HolderId(1), &lock(1, Exclusive, 5, 10));
    assert_eq!(locks.unlock(now + WAIT_MAX, &handle(), &owner(0), (0, 10)).unwrap(), []);
    assert_eq!(locks.waiting(), 0);
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let mut locks = Locks::default();
    for (offset, length) in [(0, 0), (u64::MAX, 0), (2, u64::MAX - 1)] {
        let wanted = lock(0, Shared, offset, length);
        assert_eq!(locks.lock(&handle(), OpenId(1), &wanted), Err(Status::Inval));
        assert_eq!(locks.test(&handle(), &wanted), Err(Status::Inval));
    }
    assert!(locks.lock(&handle(), OpenId(1), &lock(0, Shared, 2, u64::MAX - 2)).is_ok());
}
