//! Tests that the ledger detects violations, and accepts everything that is permitted.

use super::{BLOCKS, Ledger};
use crate::coherence::stamp::BLOCK_BYTES;

/// A name of an empty file with inode 7, closed by player 0.
fn ledger() -> (Ledger, usize, usize) {
    let mut ledger = Ledger::default();
    let file = ledger.create(0, 7);
    let name = ledger.add_name(file);
    ledger.end_writing(file);
    (ledger, name, file)
}

#[test]
fn a_read_gives_what_was_settled_at_the_open_or_later() {
    let (mut ledger, name, file) = ledger();
    let old = ledger.write(file, 0, 0).block();
    ledger.settle(file, 0..BLOCKS, 0, false);
    let opening = ledger.opening(name);
    let (opened, mut floors) = ledger.opened(&opening, 3, 7).expect("it leads there");
    assert_eq!(opened, file);
    let new = ledger.write(file, 0, 1).block();
    assert!(ledger.check(file, 0..1, &old, &mut floors).is_ok(), "not settled when it was opened");
    let torn = [&new[..1024], &old[1024..]].concat();
    assert!(ledger.check(file, 0..1, &torn, &mut floors).is_ok(), "a read may cross a write");
    assert!(ledger.check(file, 0..1, &new, &mut floors).is_ok());
    assert!(ledger.check(file, 0..1, &old, &mut floors).is_err(), "time does not go back");
    ledger.settle(file, 0..BLOCKS, 1, false);
    let mut later = ledger.floors(file);
    assert!(ledger.check(file, 0..1, &old, &mut later).is_err());
    assert!(ledger.check(file, 0..1, &torn, &mut later).is_err());
    assert!(ledger.check(file, 0..1, &[0; BLOCK_BYTES], &mut later).is_err());
    assert!(ledger.check(file, 1..2, &new, &mut later).is_err(), "it is of another block");
}

#[test]
fn a_cut_is_seen_and_undone_by_a_write() {
    let (mut ledger, _, file) = ledger();
    let written = ledger.write(file, 2, 0).block();
    ledger.settle(file, 0..BLOCKS, 0, true);
    let before = ledger.floors(file);
    ledger.cut(file, 1);
    assert!(ledger.check(file, 2..3, &[0; BLOCK_BYTES], &mut before.clone()).is_ok());
    assert!(ledger.check(file, 2..3, &written, &mut before.clone()).is_ok());
    ledger.cut_settled(file, 1);
    let mut after = ledger.floors(file);
    assert!(ledger.check(file, 2..3, &written, &mut after).is_err());
    assert!(ledger.check(file, 2..3, &written[..64], &mut after).is_err());
    assert!(ledger.check(file, 2..3, &[0; 100], &mut after).is_ok());
}

#[test]
fn locks_exclude_and_show_the_last_write() {
    let (mut ledger, _, file) = ledger();
    let mut floors = [0; BLOCKS];
    ledger.claim(file, 1, 0..2, true);
    assert!(ledger.granted(file, 1, &mut floors).is_ok());
    ledger.write(file, 1, 1);
    ledger.claim(file, 2, 1..3, false);
    assert!(ledger.granted(file, 2, &mut floors).is_err(), "both hold block 1");
    assert!(ledger.denied(file, 2).is_ok());
    ledger.claim(file, 2, 2..3, true);
    assert!(ledger.denied(file, 2).is_err(), "nobody was there");
    ledger.claim(file, 2, 0..3, false);
    ledger.releasing(file, 1);
    assert!(ledger.granted(file, 2, &mut floors).is_ok());
    assert_eq!(floors[1], 1);
}

#[test]
fn names_lead_to_the_last_file_or_one_that_comes() {
    let (mut ledger, name, _) = ledger();
    let opening = ledger.opening(name);
    let other = ledger.create(1, 8);
    ledger.end_writing(other);
    ledger.replace(name, other);
    assert!(ledger.opened(&opening, 3, 7).is_ok() && ledger.opened(&opening, 3, 8).is_ok());
    assert!(ledger.is_moving(&opening));
    ledger.replaced(name);
    let opening = ledger.opening(name);
    assert!(ledger.opened(&opening, 3, 7).is_err());
    assert!(ledger.opened(&opening, 3, 8).is_ok_and(|(file, _)| file == other));
}

#[test]
fn what_a_lost_client_only_closed_may_be_lost() {
    let (mut ledger, _, file) = ledger();
    let kept = ledger.write(file, 0, 1).block();
    ledger.settle(file, 0..BLOCKS, 1, true);
    let lost = ledger.write(file, 0, 1).block();
    ledger.settle(file, 0..BLOCKS, 1, false);
    assert!(ledger.check(file, 0..1, &kept, &mut ledger.floors(file)).is_err());
    ledger.leave(1);
    assert!(ledger.check(file, 0..1, &kept, &mut ledger.floors(file)).is_ok());
    assert!(ledger.check(file, 0..1, &lost, &mut ledger.floors(file)).is_ok());
    assert!(ledger.check(file, 0..1, &[0; BLOCK_BYTES], &mut ledger.floors(file)).is_err());
}
