//! Tests of the record against the state, and of records that are rejected.
//!
//! Promise: held-state

use proptest::prelude::*;
use protocol::nfs4::Stateid;
use vfs::locks::{LockRange, LockRanges};
use vfs::{Handle, LeaseKind, LockKind, Owner, Principal, Share};

use super::*;
use crate::nfs4::state::{Doubt, Granted, Locks};

fn url() -> Url {
    Url::parse("nfs://filer/export?vers=4.2").unwrap()
}

fn handle(n: u8) -> Handle {
    Handle::new(&[n; 20]).unwrap()
}

fn stateid(n: u64) -> Stateid {
    let mut other = [0; 12];
    other[..8].copy_from_slice(&n.to_be_bytes());
    Stateid { seqid: 1, other }
}

fn owner(n: u8) -> Owner {
    Owner(Bytes::from(vec![n; 30]))
}

fn client() -> Client {
    Client { id: 7, sequence: 3, confirmed: true, server: Bytes::from_static(b"s"), scope: Bytes::new() }
}

fn identity() -> Identity {
    Identity { owner: Bytes::from_static(b"us"), verifier: [9; 8] }
}

fn incarnation_of(identity: &Identity) -> record::Incarnation {
    incarnation(&url(), identity, &client(), ([4; 16], Duration::from_secs(90), 0))
}

fn granted(file: u8, by: u8, access: Share, number: u64) -> Granted {
    Granted {
        handle: handle(file),
        owner: owner(by),
        shares: access.into(),
        principal: vfs::Caller::unix(10, 20, &[30, 40]).principal,
        stateid: stateid(number),
    }
}

/// The relevant parts of an open.
fn essence(open: &Open, going: bool) -> String {
    let mut locks: Vec<_> =
        open.locks().iter().map(|(owner, locks)| format!("{owner:?} {locks:?}")).collect();
    locks.sort();
    let mut doubts: Vec<_> =
        open.doubts().iter().map(|(owner, doubt)| format!("{owner:?} {doubt:?}")).collect();
    doubts.sort();
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {locks:?} {doubts:?} {going}",
        open.handle(),
        open.owner,
        open.shares,
        open.had,
        open.principal,
        open.stateid
    )
}

fn held_essence(held: &Delegation, going: bool) -> String {
    format!("{:?} {:?} {:?} {:?} {going}", held.handle, held.kind, held.stateid, held.principal)
}

/// Checks that the record matches the state.
fn agree(held: &RecordedState, past: &Past, ids: u64) -> Result<(), TestCaseError> {
    let state = held.lock();
    for id in 0..=ids {
        let recorded = past.opens.get(&OpenId(id)).map(|(open, going)| essence(open, *going));
        let there = state.any_open(OpenId(id)).filter(|(open, _)| open.stateid.is_some());
        prop_assert_eq!(recorded, there.map(|(open, going)| essence(open, going)));
        let recorded = past.leases.get(&LeaseId(id)).map(|(held, going)| held_essence(held, *going));
        let there = state.any_lease(LeaseId(id));
        prop_assert_eq!(recorded, there.map(|(held, going)| held_essence(held, going)));
    }
    prop_assert!(past.last_name >= ids);
    Ok(())
}

fn read_back(path: &Path) -> Past {
    Past::parse(&journal::read(path).unwrap().unwrap()).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Open(u8, u8, bool),
    Close(usize),
    Closed(usize),
    Lose(usize),
    Lock(usize, u8, u64, u64, bool),
    Doubt(usize, u8, u64, bool),
    Delegate(u8, bool),
    GiveUp(usize),
    Returned(usize),
    Opening(bool),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0usize..20;
    prop_oneof![
        4 => (0u8..4, 0u8..3, any::<bool>()).prop_map(|(file, by, write)| Step::Open(file, by, write)),
        1 => which.clone().prop_map(Step::Close),
        1 => which.clone().prop_map(Step::Closed),
        1 => which.clone().prop_map(Step::Lose),
        3 => (which.clone(), 0u8..3, 0u64..50, 1u64..50, any::<bool>())
            .prop_map(|(id, by, from, length, exclusive)| Step::Lock(id, by, from, length, exclusive)),
        1 => (which.clone(), 0u8..3, 0u64..50, any::<bool>())
            .prop_map(|(id, by, from, unlocking)| Step::Doubt(id, by, from, unlocking)),
        2 => (0u8..4, any::<bool>()).prop_map(|(file, write)| Step::Delegate(file, write)),
        1 => which.clone().prop_map(Step::GiveUp),
        1 => which.prop_map(Step::Returned),
        1 => any::<bool>().prop_map(Step::Opening),
        1 => Just(Step::Restart),
    ]
}

/// Does one step.
fn take(held: &RecordedState, step: &Step, turn: u64) {
    let mut state = held.lock();
    let pick = |at: usize, last: u64| 1 + at as u64 % last.max(1);
    let last = state.last_name();
    match *step {
        Step::Open(file, by, write) => {
            let access = if write { Share::READ | Share::WRITE } else { Share::READ };
            state.opened(granted(file, by, access, turn));
        }
        Step::Close(at) => drop(state.close(OpenId(pick(at, last)))),
        Step::Closed(at) => state.closed(OpenId(pick(at, last))),
        Step::Lose(at) => state.lose(OpenId(pick(at, last))),
        Step::Lock(at, by, from, length, exclusive) => {
            let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
            let range = LockRange { start: from, end: from.saturating_add(length), kind };
            if let Some(open) = state.open_mut(OpenId(pick(at, last))) {
                let fresh = || Locks { stateid: stateid(turn), ranges: LockRanges::default() };
                open.locking_mut().locks.entry(owner(by)).or_insert_with(fresh).ranges.lock(range);
                open.locking_mut().doubts.remove(&owner(by));
            }
        }
        Step::Doubt(at, by, from, unlocking) => {
            let range = LockRange { start: from, end: from + 5, kind: LockKind::Shared };
            state.doubt(OpenId(pick(at, last)), &owner(by), Doubt { range, unlocking });
        }
        Step::Delegate(file, write) => {
            let kind = if write { LeaseKind::Write } else { LeaseKind::Read };
            let principal = Principal::Machine;
            let stateid = stateid(turn);
            let (handle, directory) = (handle(file), file == 7);
            let recalled = false;
            state.delegated(Delegation {
                handle: (&handle).into(),
                kind,
                directory,
                stateid,
                principal,
                recalled,
                change: None,
            });
        }
        Step::GiveUp(at) => drop(state.give_up(LeaseId(pick(at, last)))),
        Step::Returned(at) => state.returned(LeaseId(pick(at, last))),
        Step::Opening(by_name) => {
            let opening = Opening {
                handle: handle(9),
                name: by_name.then(|| vfs::Name::new(b"name").unwrap()),
                owner: owner(1),
                principal: Principal::Machine,
            };
            let number = state.opening(opening);
            if turn.is_multiple_of(2) {
                state.opening_ended(number);
            }
        }
        Step::Restart => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// After every step the file matches the state, and an incarnation that takes it over has the same state.
    #[test]
    fn the_record_is_what_is_held(steps in proptest::collection::vec(step(), 0..50)) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.state");
        let mut held = RecordedState::default();
        held.keep(&path, &incarnation_of(&identity()), None).unwrap();
        let mut ever = 0;
        for (turn, step) in steps.iter().enumerate() {
            take(&held, step, turn as u64);
            let past = read_back(&path);
            let names = held.lock().last_name().min(past.last_name);
            agree(&held, &past, names)?;
            if let Step::Restart = step {
                let next = RecordedState::default();
                {
                    let mut state = next.lock();
                    state.skip_names(past.last_name);
                    past.opens.iter().for_each(|(id, (open, going))| state.adopt_open(*id, open.clone(), *going));
                    past.leases.iter().for_each(|(id, (held, going))| state.adopt_lease(*id, held.clone(), *going));
                }
                let incarnation = record::Incarnation { last_name: past.last_name, ..incarnation_of(&identity()) };
                next.keep(&path, &incarnation, None).unwrap();
                ever = ever.max(past.last_name);
                held = next;
                let names = held.lock().last_name();
                prop_assert!(names >= ever, "no name is given twice");
                agree(&held, &read_back(&path), ever)?;
            }
        }
    }

    #[test]
    fn no_entry_panics(
        key in proptest::collection::vec(0u8..8, 0..20),
        value in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let _ = record::decode(&key, &value);
        let mut contents = Contents::default();
        contents.entries.insert(key, value);
        prop_assert!(Past::parse(&contents).is_err(), "without a life it says nothing");
    }
}

#[test]
fn a_record_is_gone_on_with_if_it_is_of_this_origin_and_boot_and_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("client.state");
    let us = identity().owner;
    let (first, reason) = Incarnation::resume(&url(), us.clone(), &path);
    assert!(!first.resumes() && reason.is_none(), "nothing was there, and nothing is said");
    let held = RecordedState::default();
    held.keep(&path, &incarnation_of(&first.identity), None).unwrap();
    held.lock().opened(granted(1, 1, Share::READ, 1));
    let (next, reason) = Incarnation::resume(&url(), us.clone(), &path);
    assert_eq!((next.identity.clone(), reason), (first.identity.clone(), None));
    assert_eq!(next.past.unwrap().opens.len(), 1);

    let clean = |url: &Url, owner: &Bytes, why: &str| {
        let (incarnation, reason) = Incarnation::resume(url, owner.clone(), &path);
        let reason = reason.unwrap();
        assert!(!incarnation.resumes() && reason.contains(why) && !reason.contains('\n'), "{reason}");
        assert_ne!(
            incarnation.identity.verifier, first.identity.verifier,
            "the origin is to drop what was held"
        );
    };
    let other = Url::parse("nfs://other/export?vers=4.2").unwrap();
    clean(&other, &us, "nfs://filer/export");
    let (elsewhere, _) = Incarnation::resume(&other, us.clone(), &path);
    assert_ne!(elsewhere.owner(), &us, "what is held at the first one stays held");
    clean(&url(), &Bytes::from_static(b"them"), "another client");
    let complete = std::fs::read(&path).unwrap();
    let mut damaged = complete.clone();
    damaged[complete.len() / 2] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    clean(&url(), &us, "damaged");
    let of_another_boot = record::Incarnation { boot: opaque(b"another"), ..incarnation_of(&first.identity) };
    held.keep(&path, &of_another_boot, None).unwrap();
    clean(&url(), &us, "restarted");
}

#[test]
fn a_record_that_cannot_be_written_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("client.state");
    let held = RecordedState::default();
    held.keep(&path, &incarnation_of(&identity()), None).unwrap();
    let mut opened = granted(1, 1, Share::READ, 1);
    opened.owner = Owner(Bytes::from(vec![1; 10_000]));
    held.lock().opened(opened);
    assert!(!path.exists() && !held.lock().is_recorded());
    held.lock().opened(granted(2, 1, Share::READ, 2));
    assert!(!path.exists());
}

#[test]
fn a_lease_that_may_have_run_out_is_not_claimed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("client.state");
    RecordedState::default().keep(&path, &incarnation_of(&identity()), None).unwrap();
    let past = read_back(&path);
    assert!(past.is_within_lease());
    let short = record::Incarnation { lease_seconds: 0, ..past.incarnation.clone() };
    assert!(!Past { incarnation: short, ..past }.is_within_lease());
}
