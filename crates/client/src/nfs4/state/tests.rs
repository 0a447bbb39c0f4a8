//! Tests of the table against a model of opens, owners and delegations.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn handle(n: u8) -> Handle {
    Handle::new(&[n]).unwrap()
}

fn owner(n: u8) -> Owner {
    Owner(Bytes::copy_from_slice(&[n]))
}

fn granted(file: u8, by: u8, access: Share, seqid: u32) -> Granted {
    Granted {
        handle: handle(file),
        owner: owner(by),
        shares: access.into(),
        principal: Principal::Machine,
        stateid: Stateid { seqid, other: [file * 16 + by; 12] },
    }
}

fn delegation(file: u8, kind: LeaseKind, other: u8) -> Delegation {
    let stateid = Stateid { seqid: 1, other: [other; 12] };
    let (handle, principal) = (handle(file), Principal::Machine);
    let handle = (&handle).into();
    Delegation { handle, kind, directory: false, stateid, principal, recalled: false, change: None }
}

#[derive(Clone, Debug)]
enum Step {
    Open(u8, u8, bool),
    Close(usize),
    Lose(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..4, 0u8..3, any::<bool>()).prop_map(|(file, by, write)| Step::Open(file, by, write)),
        (0usize..12).prop_map(Step::Close),
        (0usize..12).prop_map(Step::Lose),
    ]
}

proptest! {
    #[test]
    fn one_open_of_each_owner_of_a_file(steps in proptest::collection::vec(step(), 0..100)) {
        let mut state = State::default();
        let mut model = BTreeMap::<(u8, u8), (OpenId, Share, bool)>::new();
        let mut ever = BTreeSet::new();
        for (turn, step) in steps.into_iter().enumerate() {
            match step {
                Step::Open(file, by, write) => {
                    let access = if write { Share::WRITE } else { Share::READ };
                    let id = state.opened(granted(file, by, access, turn as u32 + 1));
                    if let Some((held, share, lost)) = model.get_mut(&(file, by)) {
                        prop_assert_eq!(*held, id);
                        *share |= access;
                        *lost = false;
                    } else {
                        prop_assert!(ever.insert(id), "a name is never used again");
                        model.insert((file, by), (id, access, false));
                    }
                }
                Step::Close(which) => {
                    let Some((&key, &(id, ..))) = model.iter().nth(which) else { continue };
                    model.remove(&key);
                    prop_assert!(state.close(id).is_some());
                    prop_assert!(state.close(id).is_none());
                }
                Step::Lose(which) => {
                    let Some((_, (id, _, lost))) = model.iter_mut().nth(which) else { continue };
                    *lost = true;
                    state.lose(*id);
                }
            }
            prop_assert_eq!(state.opens().count(), model.len());
            for (&(file, by), &(id, share, lost)) in &model {
                prop_assert_eq!(state.open_of(&handle(file), &owner(by)), Some(id));
                let open = state.open(id).unwrap();
                prop_assert_eq!((open.shares.access, open.stateid.is_none()), (share, lost));
                prop_assert_eq!(state.for_io(&handle(file), Some(id), Share::READ).is_none(), lost);
            }
            for file in 0..4 {
                let writer = model.iter().any(|((of, _), (_, share, lost))| {
                    *of == file && share.contains(Share::WRITE) && !lost
                });
                prop_assert_eq!(state.open_for(&handle(file), Share::WRITE).is_some(), writer);
            }
        }
    }
}

#[test]
fn a_file_has_one_delegation() {
    let mut state = State::default();
    let (first, new) = state.delegated(delegation(1, LeaseKind::Read, 9)).unwrap();
    assert!(new);
    assert_eq!(state.delegated(delegation(1, LeaseKind::Read, 9)), Some((first, false)));
    assert_eq!(state.delegated(delegation(1, LeaseKind::Write, 9)), Some((first, true)));
    assert_eq!(state.lease(first).unwrap().kind, LeaseKind::Write);
    let (second, new) = state.delegated(delegation(1, LeaseKind::Read, 10)).unwrap();
    assert!(new && second != first && state.lease(first).is_none());
    let named = Stateid { seqid: 77, other: [10; 12] };
    assert_eq!(state.lease_named(&named, &handle(1)), Some(second));
    assert_eq!(state.lease_named(&named, &handle(2)), None);
    assert!(state.give_up(second).is_some() && state.lease_of(&handle(1)).is_none());
}

#[test]
fn io_without_an_open_is_done_by_a_delegation_that_covers_it() {
    let mut state = State::default();
    let by = |state: &State, access| state.for_io(&handle(1), None, access).unwrap().1;
    assert_eq!(by(&state, Share::READ), Used::Nothing);
    let (id, _) = state.delegated(delegation(1, LeaseKind::Read, 9)).unwrap();
    assert_eq!((by(&state, Share::READ), by(&state, Share::WRITE)), (Used::Lease(id), Used::Nothing));
    assert!(state.delegated(delegation(1, LeaseKind::Write, 9)).is_some());
    assert_eq!(by(&state, Share::WRITE), Used::Lease(id));
}

#[test]
fn an_older_state_id_does_not_replace_a_newer_one() {
    let mut state = State::default();
    let at = |seqid| {
        let stateid = Stateid { seqid, other: [9; 12] };
        Delegation { stateid, ..delegation(1, LeaseKind::Write, 9) }
    };
    let (id, _) = state.delegated(at(2)).unwrap();
    assert_eq!(state.delegated(at(1)), Some((id, false)));
    assert_eq!(state.lease(id).unwrap().stateid.seqid, 2);
    state.delegated(at(3));
    assert_eq!(state.lease(id).unwrap().stateid.seqid, 3);
    let id = state.opened(granted(1, 1, Share::READ, 5));
    state.opened(granted(1, 1, Share::WRITE, 4));
    assert_eq!(state.open(id).unwrap().stateid.unwrap().seqid, 5);
    state.opened(granted(1, 1, Share::WRITE, 6));
    assert_eq!(state.open(id).unwrap().stateid.unwrap().seqid, 6);
}

#[test]
fn a_grant_that_was_on_its_way_when_the_delegation_went_back_is_none() {
    let mut state = State::default();
    let (id, _) = state.delegated(delegation(1, LeaseKind::Read, 9)).unwrap();
    state.give_up(id);
    assert_eq!(state.delegated(delegation(1, LeaseKind::Read, 9)), None);
    let mut newer = delegation(1, LeaseKind::Read, 9);
    newer.stateid.seqid = 2;
    assert!(state.delegated(newer).is_some_and(|(newer, new)| new && newer != id));
}
