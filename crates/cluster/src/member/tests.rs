//! Sequences by hand: one member, or two, and a store in memory.

use std::time::Duration;

use super::*;
use crate::store::Memory;

const SERVER: &str = "10.0.0.5:2049";

fn times() -> Times {
    Times::default()
}

fn member(name: &str, place: &str, digest: &str) -> Member {
    let identity = Identity {
        name: name.into(),
        life: format!("{name}-life"),
        place: place.into(),
        version: "1".into(),
        digest: digest.into(),
    };
    Member::new("site", identity, vec![SERVER.into()], times())
}

fn at(seconds: u64) -> Moment {
    Duration::from_secs(1000 + seconds)
}

/// Sends the next transaction, and gives the answer.
fn exchange(member: &mut Member, now: Moment, store: &mut Memory) -> Result<(), Refusal> {
    let transaction = member.next(now);
    member.answered(now, Ok(store.commit(&transaction)))
}

/// Exchanges until the member runs the server.
fn take(member: &mut Member, now: Moment, store: &mut Memory) -> Run {
    for _ in 0..4 {
        exchange(member, now, store).unwrap();
    }
    member.orders(now).run[SERVER]
}

#[test]
fn a_member_that_is_alone_takes_everything_and_keeps_it_while_it_beats() {
    let (mut store, mut one) = (Memory::default(), member("one", "p1", "d"));
    assert_eq!(one.orders(at(0)), Orders::default());
    let run = take(&mut one, at(0), &mut store);
    assert_eq!(run.epoch, 1);
    assert_eq!(one.orders(at(0)).until, Some(at(0) + times().term));
    // The term counts from when the transaction was sent, not from its answer.
    let transaction = one.next(at(2));
    one.answered(at(4), Ok(store.commit(&transaction))).unwrap();
    let orders = one.orders(at(4));
    assert_eq!((orders.until, orders.run[SERVER]), (Some(at(2) + times().term), run));
    assert_eq!(one.due(at(4)), at(2) + times().period());
}

#[test]
fn a_silent_member_is_fenced_when_its_term_is_over_and_not_before() {
    let (mut store, mut one, mut two) =
        (Memory::default(), member("one", "p1", "d"), member("two", "p2", "d"));
    take(&mut one, at(0), &mut store);
    for second in 1..=6 {
        exchange(&mut two, at(second), &mut store).unwrap();
        assert!(two.orders(at(second)).run.is_empty());
    }
    // It has seen the last beat of the other one at 1 s.
    let patience = at(1) + times().patience();
    assert!(patience > at(0) + times().term);
    exchange(&mut two, patience.saturating_sub(Duration::from_millis(1)), &mut store).unwrap();
    assert!(two.orders(patience).run.is_empty());
    assert_eq!(take(&mut two, patience, &mut store).epoch, 2);
    // The other one learns of it, runs nothing, and joins again under another incarnation.
    exchange(&mut one, patience, &mut store).unwrap();
    assert_eq!(one.orders(patience), Orders::default());
    for _ in 0..3 {
        exchange(&mut one, patience, &mut store).unwrap();
    }
    let orders = one.orders(patience);
    assert!(orders.until.is_some() && orders.run.is_empty());
}

#[test]
fn a_transaction_without_an_answer_counts_from_when_it_was_sent() {
    let (mut store, mut one) = (Memory::default(), member("one", "p1", "d"));
    take(&mut one, at(0), &mut store);
    let unknown = || Err(StoreError::Unknown("no answer".into()));
    // This one is carried out, and nobody hears of it.
    let lost = one.next(at(2));
    store.commit(&lost);
    one.answered(at(4), unknown()).unwrap();
    assert_eq!(one.orders(at(4)).until, Some(at(0) + times().term), "nothing is known");
    // The next one fails, because the record has changed, and shows that the earlier one was carried out.
    exchange(&mut one, at(4), &mut store).unwrap();
    assert_eq!(one.orders(at(4)).until, Some(at(2) + times().term));
    exchange(&mut one, at(4), &mut store).unwrap();
    assert_eq!(one.orders(at(4)).until, Some(at(4) + times().term));
    // An earlier one that comes late does nothing.
    let late = one.next(at(5));
    one.answered(at(7), unknown()).unwrap();
    exchange(&mut one, at(7), &mut store).unwrap();
    assert!(!store.commit(&late).succeeded);
}

#[test]
fn a_server_is_given_away_by_a_drain_even_if_it_never_ran() {
    let (mut store, mut one, mut two) =
        (Memory::default(), member("one", "p1", "d"), member("two", "p2", "d"));
    let run = take(&mut one, at(0), &mut store);
    for _ in 0..3 {
        exchange(&mut two, at(0), &mut store).unwrap();
    }
    one.drain(true);
    exchange(&mut one, at(1), &mut store).unwrap();
    assert!(one.orders(at(1)).give.is_empty(), "first the others hear of it");
    exchange(&mut two, at(1), &mut store).unwrap();
    assert!(two.due(at(1)) < at(1) + times().period() / 8, "and look often");
    let later = at(1) + times().period();
    let orders = one.orders(later);
    assert_eq!((orders.run.len(), orders.give[SERVER]), (0, run));
    one.stopped(SERVER, run.epoch + 1);
    exchange(&mut one, later, &mut store).unwrap();
    assert_eq!(one.orders(later).give.len(), 1, "that was of another epoch");
    one.stopped(SERVER, run.epoch);
    exchange(&mut one, later, &mut store).unwrap();
    assert!(one.orders(later).give.is_empty());
    assert_eq!(take(&mut two, later, &mut store).epoch, 2);
    // Without another member, a drain changes nothing.
    let (mut store, mut alone) = (Memory::default(), member("one", "p1", "d"));
    take(&mut alone, at(0), &mut store);
    alone.drain(true);
    for second in 1..5 {
        exchange(&mut alone, at(second), &mut store).unwrap();
    }
    assert_eq!(alone.orders(at(4)).run.len(), 1);
    alone.leave();
    exchange(&mut alone, at(5), &mut store).unwrap();
    let given = alone.orders(at(5) + times().period()).give[SERVER];
    alone.stopped(SERVER, given.epoch);
    for _ in 0..3 {
        exchange(&mut alone, at(7), &mut store).unwrap();
    }
    assert!(alone.is_out());
}

#[test]
fn the_same_place_replaces_its_record_at_once() {
    let (mut store, mut one) = (Memory::default(), member("one", "p1", "d"));
    take(&mut one, at(0), &mut store);
    let mut again = member("one", "p1", "d");
    again.identity.life = "another".into();
    assert_eq!(take(&mut again, at(1), &mut store).epoch, 2);
}

#[test]
fn members_that_do_not_fit_are_refused() {
    let (mut store, mut one) = (Memory::default(), member("one", "p1", "d"));
    take(&mut one, at(0), &mut store);
    let told = exchange(&mut member("two", "p2", "other"), at(0), &mut store);
    assert_eq!(told, Err(Refusal::Differs { member: "one".into() }));
    let mut same = member("one", "p9", "d");
    same.identity.life = "another".into();
    let told = exchange(&mut same, at(0), &mut store);
    assert_eq!(told, Err(Refusal::NameInUse { name: "one".into(), place: "p1".into() }));
    // When the other one is certainly dead, the name is free.
    let later = at(0) + times().patience();
    assert_eq!(take(&mut same, later, &mut store).epoch, 2);

    let mut foreign = Memory::default();
    let key = Keys::new("site").server(SERVER);
    let odd = Change::Put { key: key.clone(), value: b"odd".to_vec() };
    foreign.commit(&Transaction { changes: vec![odd], ..Transaction::default() });
    let told = exchange(&mut member("two", "p2", "d"), at(0), &mut foreign);
    assert_eq!(told, Err(Refusal::Foreign { key }));

    let before = one.view().map_or(0, |view| view.revision);
    let transaction = one.next(at(1));
    let answer = Memory::default().commit(&transaction);
    assert_eq!(one.answered(at(1), Ok(answer)), Err(Refusal::WentBack { before, now: 0 }));
}
