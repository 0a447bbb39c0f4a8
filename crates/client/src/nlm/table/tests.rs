//! The table of locks, and what the journal hears of it.

use proptest::prelude::*;
use vfs::LockKind;

use super::*;

fn handle(n: u8) -> Handle {
    Handle::new(&[n; 8]).unwrap()
}

fn owner(n: u8) -> Owner {
    Owner(vec![n].into())
}

fn range(start: u64, end: u64) -> LockRange {
    LockRange { start, end, kind: LockKind::Exclusive }
}

fn lock(table: &mut Table, id: OpenId, of: u8, part: LockRange) -> u32 {
    let svid = table.begin_lock(id, &owner(of), &Principal::Machine, part).unwrap();
    assert!(table.locked(id, &owner(of), Some(part)));
    svid
}

#[test]
fn an_owner_has_one_number_while_it_holds_a_lock() {
    let mut table = Table::new(SVIDS - 1);
    let (one, two) = (table.open(handle(1)).unwrap(), table.open(handle(2)).unwrap());
    assert_eq!(table.open(handle(1)), Ok(one), "a file has one registration");
    let first = lock(&mut table, one, 1, range(0, 10));
    assert_eq!(first, SVID_MIN, "the numbers go round");
    assert_eq!(lock(&mut table, two, 1, range(0, 10)), first);
    assert_ne!(lock(&mut table, one, 2, range(20, 30)), first);
    assert_eq!(table.owner_of(first), Some(&owner(1)));
    for id in [one, two] {
        assert_eq!(table.begin_unlock(id, &owner(1), range(0, u64::MAX)).unwrap().svid, first);
        table.unlocked(id, &owner(1), range(0, u64::MAX));
    }
    assert_eq!(table.owner_of(first), None);
    assert_ne!(lock(&mut table, one, 1, range(0, 10)), first, "a new time, a new number");
}

#[test]
fn a_denied_lock_leaves_what_was_held() {
    let mut table = Table::new(0);
    let id = table.open(handle(1)).unwrap();
    lock(&mut table, id, 1, range(0, 10));
    table.begin_lock(id, &owner(1), &Principal::Machine, range(5, 20)).unwrap();
    assert_eq!(table.held(id, &owner(1)).unwrap().doubt, Some(range(5, 20)));
    table.locked(id, &owner(1), None);
    let held = table.held(id, &owner(1)).unwrap();
    assert_eq!((held.doubt, held.ranges.iter().collect::<Vec<_>>()), (None, vec![range(0, 10)]));
    table.begin_lock(id, &owner(2), &Principal::Machine, range(5, 20)).unwrap();
    table.locked(id, &owner(2), None);
    assert!(table.held(id, &owner(2)).is_none());
    assert!(table.begin_unlock(id, &owner(2), range(0, 5)).is_none(), "nothing to unlock");
}

#[test]
fn a_closed_file_gives_its_numbers_back() {
    let mut table = Table::new(0);
    let id = table.open(handle(1)).unwrap();
    let svid = lock(&mut table, id, 1, range(0, 10));
    let held = table.close(id);
    assert_eq!((held.len(), held[0].1.svid), (1, svid));
    assert_eq!(table.owner_of(svid), None);
    assert_eq!(table.begin_lock(id, &owner(1), &Principal::Machine, range(0, 1)), Err(Status::BadStateId));
    assert!(table.take_touched().iter().all(|(_, _, held)| held.is_none()));
}

proptest! {
    /// The journal is told of all that the table holds, and no two owners have one number.
    #[test]
    fn the_journal_follows(steps in prop::collection::vec((0..2u8, 0..3u8, 0..4u8, 0..20u64), 1..60)) {
        let mut table = Table::new(7);
        let mut journal = BTreeMap::new();
        for (file, of, what, start) in steps {
            let id = table.open(handle(file)).unwrap();
            let part = range(start, start + 5);
            match what {
                0 => drop(lock(&mut table, id, of, part)),
                1 => {
                    if table.begin_unlock(id, &owner(of), part).is_some() {
                        table.unlocked(id, &owner(of), part);
                    }
                }
                2 => drop(table.begin_lock(id, &owner(of), &Principal::Machine, part)),
                _ => drop(table.close(id)),
            }
            for (handle, owner, held) in table.take_touched() {
                match held {
                    Some(held) => drop(journal.insert((handle, owner), held)),
                    None => drop(journal.remove(&(handle, owner))),
                }
            }
            let mut now = BTreeMap::new();
            for id in table.locked_files() {
                let handle = table.file(id).unwrap().0;
                now.extend(table.owners(id).into_iter().map(|(owner, held)| ((handle, owner), held)));
            }
            prop_assert_eq!(&journal, &now);
            let mut numbers: BTreeMap<u32, Owner> = BTreeMap::new();
            for ((_, owner), held) in now {
                let other = numbers.insert(held.svid, owner.clone());
                prop_assert!(other.is_none_or(|other| other == owner));
            }
        }
    }
}
