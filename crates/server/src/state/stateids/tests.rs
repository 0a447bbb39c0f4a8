//! Tests the table of state ids and their sequence ids against the rules of the RFCs.

use std::sync::Arc;

use super::*;
use proptest::prelude::*;

const ALIVE: fn(u32) -> bool = |_| true;

fn requester(minor: u32, client: Option<Clientid>) -> Requester {
    Requester { minor, client }
}

fn file(number: u8) -> FileKey {
    FileKey { export: ExportId(1), handle: Handle::new(&[number]).unwrap() }
}

fn open(owner: &'static [u8], id: u64) -> Kind {
    Kind::Open {
        open: OpenId(id),
        owner: Bytes::from_static(owner),
        access: Share::READ,
        deny: Share::empty(),
        opener: Principal::Machine,
        confirmed: true,
    }
}

const KEY: IdKey = IdKey::of(1, 2);

fn client(number: u32) -> (Clientid, HolderId) {
    (KEY.client(7, number), HolderId(number.into()))
}

fn delegation(lease: u64) -> Kind {
    Kind::Delegation {
        lease: LeaseId(lease),
        kind: LeaseKind::Read,
        opener: Principal::Machine,
        standing: Standing::Good,
    }
}

#[test]
fn a_state_that_is_refused_leaves_nothing() {
    let mut table = Stateids::new((7, KEY)).up_to(0, 0);
    assert_eq!(table.insert(client(1), file(1), open(b"o", 1)).err(), Some(Status::Delay));
    assert!(table.counts.is_empty() && table.held.is_empty());
}

#[test]
fn delegations_take_no_capacity_of_opens_and_are_refused_to_a_client_that_frees_none() {
    let mut table = Stateids::new((7, KEY)).up_to(2, REVOKED_PER_CLIENT_MAX + 2);
    let delegate = |table: &mut Stateids, by: u32, lease: u64| {
        table.insert(client(by), file(1), delegation(lease)).map(|held| held.key)
    };
    let leases = 1..=REVOKED_PER_CLIENT_MAX as u64;
    let keys: Vec<StateKey> = leases.map(|lease| delegate(&mut table, 1, lease).unwrap()).collect();
    for owner in [b"o", b"p"] {
        table.insert(client(1), file(1), open(owner, 1)).unwrap();
    }
    assert_eq!(table.insert(client(2), file(1), open(b"o", 1)).err(), Some(Status::Delay));
    keys.iter().for_each(|key| table.set_standing(*key, Standing::Revoked));
    assert_eq!(delegate(&mut table, 1, 10_001), Err(Status::Delay));
    delegate(&mut table, 2, 10_002).unwrap();
    table.remove(keys[0]).unwrap();
    delegate(&mut table, 1, 10_003).unwrap();
    assert!(delegate(&mut table, 2, 10_004).is_ok());
    assert_eq!(delegate(&mut table, 2, 10_005), Err(Status::Delay), "all are in use");
    table.remove_all(client(1).0);
    table.remove_all(client(2).0);
    assert_eq!((table.delegations, table.held.len(), table.counts.len()), (0, 0, 0));
}

#[test]
fn a_state_id_is_good_for_its_client_at_its_seqid_in_its_life() {
    let mut table = Stateids::new((7, KEY));
    let held = table.insert(client(1), file(1), open(b"o", 1)).unwrap().clone();
    let now = table.wire(&held);
    let status =
        |table: &Stateids, stateid, minor, client| table.find(stateid, requester(minor, client), ALIVE).err();
    assert_eq!(status(&table, now, 0, None), None);
    assert_eq!(status(&table, now, 1, Some(held.client)), None);
    // The session was destroyed while its compound runs.
    assert_eq!(status(&table, now, 1, None), Some(Status::BadStateid));
    assert_eq!(status(&table, now, 1, Some(held.client + 1)), Some(Status::BadStateid));
    let current = Stateid { seqid: 0, ..now };
    assert_eq!(status(&table, current, 1, Some(held.client)), None);
    assert_eq!(status(&table, current, 0, None), Some(Status::OldStateid));
    assert_eq!(status(&table, Stateid { seqid: 2, ..now }, 0, None), Some(Status::BadStateid));
    let then = now;
    let now = table.change(held.key, |_| {}).unwrap();
    assert_eq!(now.seqid, 2);
    assert_eq!(status(&table, then, 1, Some(held.client)), Some(Status::OldStateid));
    for special in [Stateid::ANONYMOUS, Stateid::BYPASS, Stateid::INVALID, Stateid::CURRENT] {
        assert_eq!(status(&table, special, 1, None), Some(Status::BadStateid));
    }
    let next_incarnation = Stateids::new((8, KEY));
    assert_eq!(status(&next_incarnation, now, 0, None), Some(Status::StaleStateid));
    assert_eq!(status(&next_incarnation, now, 1, None), Some(Status::BadStateid));
    table.remove(held.key).unwrap();
    assert_eq!(status(&table, now, 0, None), Some(Status::BadStateid));
    let expired = table.find(now, requester(0, None), |_| false).err();
    assert_eq!(expired, Some(Status::Expired));
}

#[test]
fn an_open_takes_its_locks_along() {
    let mut table = Stateids::new((7, KEY));
    let open = table.insert(client(1), file(1), open(b"o", 1)).unwrap().key;
    let owner = Bytes::from_static(b"l");
    let lock = Kind::Lock { by: open, owner: owner.clone() };
    table.insert(client(1), file(1), lock).unwrap();
    assert!(table.lock_of(open, &owner).is_some());
    assert_eq!(table.of_client(client(1).0).count(), 2);
    table.remove(open).unwrap();
    assert!(!table.has(client(1).0) && table.lock_of(open, &owner).is_none());
    assert!(table.held.is_empty() && table.files.is_empty() && table.counts.is_empty());
}

#[test]
fn a_revoked_delegation_stays_until_it_is_freed() {
    let mut table = Stateids::new((7, KEY));
    let held = table.insert(client(1), file(1), delegation(5)).unwrap().clone();
    let stateid = table.wire(&held);
    assert!(table.has(held.client) && !table.has_revoked(held.client));
    table.set_standing(held.key, Standing::Recalled);
    assert!(table.find(stateid, requester(1, Some(held.client)), ALIVE).is_ok());
    table.set_standing(held.key, Standing::Revoked);
    table.set_standing(held.key, Standing::Revoked);
    assert_eq!(table.find(stateid, requester(1, Some(held.client)), ALIVE).err(), Some(Status::DelegRevoked));
    assert_eq!(table.find(stateid, requester(0, None), ALIVE).err(), Some(Status::BadStateid));
    assert!(table.find_any(stateid, requester(1, Some(held.client)), ALIVE).is_ok());
    assert!(!table.has(held.client) && table.has_revoked(held.client));
    table.remove(held.key).unwrap();
    assert!(!table.has_revoked(held.client) && table.delegation(ExportId(1), LeaseId(5)).is_none());
}

proptest! {
    /// Against a list: the indices agree with the states after any insertions and removals.
    #[test]
    fn indices_agree_with_what_is_held(
        steps in proptest::collection::vec((0u8..5, 1u32..4, 0u8..3, 0u8..3), 1..80)
    ) {
        const OWNERS: [&[u8]; 3] = [b"a", b"b", b"c"];
        let mut table = Stateids::new((7, KEY));
        let mut model: Vec<(u32, u8, u8, StateKey)> = Vec::new();
        for (step, number, of, who) in steps {
            let owner = OWNERS[who as usize];
            let bytes = Bytes::from_static(owner);
            let position = model.iter().position(|entry| (entry.0, entry.1, entry.2) == (number, of, who));
            let found = table.open_of(client(number).0, file(of), &bytes).map(|held| held.key);
            prop_assert_eq!(found, position.map(|at| model[at].3));
            match (step, position) {
                (0..=2, None) => {
                    let key = table.insert(client(number), file(of), open(owner, 1)).unwrap().key;
                    model.push((number, of, who, key));
                }
                (3, Some(at)) => {
                    prop_assert!(table.remove(model.remove(at).3).is_some());
                }
                (4, _) => {
                    let before = model.len();
                    model.retain(|entry| entry.0 != number);
                    prop_assert_eq!(table.remove_all(client(number).0).len(), before - model.len());
                }
                _ => {}
            }
            for number in 1..4 {
                let expected = model.iter().filter(|entry| entry.0 == number).count();
                prop_assert_eq!(table.of_client(client(number).0).count(), expected);
                prop_assert_eq!(table.has(client(number).0), expected > 0);
            }
            for of in 0..3 {
                let expected = model.iter().filter(|entry| entry.1 == of).count();
                prop_assert_eq!(table.of_file(&file(of)).count(), expected);
            }
        }
    }
}

#[test]
fn a_state_is_small_and_shares_its_credential() {
    const { assert!(size_of::<HeldState>() <= 104) };
    let mut table = Stateids::new((7, KEY));
    let mut opener_of = |lease, uid| {
        let opener = Principal::Unix(Arc::new(vfs::Credential { uid, gid: 1, groups: vec![1, 2] }));
        let (lease, kind) = (LeaseId(lease), LeaseKind::Read);
        let kind = Kind::Delegation { lease, kind, opener, standing: Standing::Good };
        match &table.insert(client(1), file(1), kind).unwrap().kind {
            Kind::Delegation { opener: Principal::Unix(credential), .. } => credential.clone(),
            other => panic!("{other:?}"),
        }
    };
    let (first, same, other) = (opener_of(1, 7), opener_of(2, 7), opener_of(3, 8));
    assert!(Arc::ptr_eq(&first, &same) && other.uid == 8);
}
