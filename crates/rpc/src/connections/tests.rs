//! Tests which connection gives way, against the rules of the module.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

/// A connection whose activity the test sets.
struct Fake {
    activity: Mutex<Activity>,
    ended: Mutex<bool>,
}

impl Occupant for Fake {
    fn activity(&self) -> Activity {
        *self.activity.lock()
    }

    fn end(&self) {
        *self.ended.lock() = true;
    }

    fn rest(&self) -> usize {
        1
    }
}

impl Fake {
    fn is_ended(&self) -> bool {
        *self.ended.lock()
    }

    fn is(&self, change: impl FnOnce(&mut Activity)) {
        change(&mut self.activity.lock());
    }
}

struct Bed {
    table: Connections<Fake>,
    start: Instant,
}

fn peer(number: u8) -> Peer {
    Peer::from(IpAddr::from([10, 0, 0, number]))
}

impl Bed {
    fn new(all: usize) -> Bed {
        Bed { table: Connections::new(Bounds::of(all)), start: Instant::now() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn connect(&mut self, of: u8, admitted: bool, seconds: u64) -> Option<Arc<Fake>> {
        let now = self.at(seconds);
        if !self.table.admit(peer(of), admitted, now) {
            return None;
        }
        let activity = Activity { received: now, sent: 0, unsent: 0, calls: 0, charged_record: false };
        let fake = Arc::new(Fake { activity: Mutex::new(activity), ended: Mutex::new(false) });
        self.table.enter(peer(of), admitted, Arc::downgrade(&fake), now);
        assert!(self.table.len() <= self.table.bounds.all);
        Some(fake)
    }

    fn connect_many(&mut self, of: u8, admitted: bool, count: usize) -> Vec<Arc<Fake>> {
        (0..count).map(|_| self.connect(of, admitted, 0).unwrap()).collect()
    }
}

fn ended(fakes: &[Arc<Fake>]) -> usize {
    fakes.iter().filter(|fake| fake.is_ended()).count()
}

#[test]
fn the_longest_silent_connection_of_the_greatest_holder_gives_way() {
    let mut bed = Bed::new(20);
    let modest = bed.connect_many(1, true, 10);
    let greedy = bed.connect_many(2, true, 10);
    assert_eq!(bed.table.len(), 20);
    // A peer with half of all connections makes space for itself.
    greedy[3].is(|it| it.received -= Duration::from_secs(5));
    let more = bed.connect(2, true, 1).unwrap();
    assert!(greedy[3].is_ended() && ended(&greedy) == 1 && ended(&modest) == 0);
    drop(modest);
    let modest = bed.connect_many(1, true, 3);
    let others = bed.connect_many(3, true, 7);
    let first = bed.connect(4, true, 2).unwrap();
    assert_eq!((ended(&greedy), ended(&modest), ended(&others)), (2, 0, 0));
    assert!(!first.is_ended() && !more.is_ended());
}

#[test]
fn a_busy_connection_never_gives_way_but_for_one_on_which_nothing_moves() {
    let mut bed = Bed::new(20);
    let busy = bed.connect_many(1, true, 10);
    busy.iter().for_each(|busy| busy.is(|it| it.calls = 1));
    let others = bed.connect_many(2, true, 10);
    others.iter().for_each(|other| other.is(|it| it.unsent = 1));
    assert!(bed.connect(3, true, 1).is_none());
    assert!(bed.connect(1, true, 1).is_none());
    assert_eq!((ended(&busy), ended(&others)), (0, 0));
    // Each tick sees connections on which bytes leave.
    for second in 2..40 {
        others.iter().skip(1).for_each(|other| other.is(|it| it.sent += 1));
        busy.iter().for_each(|busy| busy.is(|it| it.received += Duration::from_secs(1)));
        bed.table.tick(bed.at(second));
    }
    assert!(bed.connect(3, true, 40).is_some());
    assert!(others[0].is_ended() && ended(&others) == 1 && ended(&busy) == 0);
}

#[test]
fn nobody_loses_a_connection_to_who_has_more() {
    let mut bed = Bed::new(20);
    let busy = bed.connect_many(1, true, 10);
    busy.iter().for_each(|busy| busy.is(|it| it.calls = 1));
    let also = bed.connect_many(2, true, 9);
    also.iter().for_each(|busy| busy.is(|it| it.calls = 1));
    let single = bed.connect(3, true, 0).unwrap();
    assert!(bed.connect(2, true, 1).is_none(), "the only one that is idle is another's only one");
    assert!(!single.is_ended());
}

#[test]
fn strangers_have_a_bound_and_a_time_of_their_own() {
    let mut bed = Bed::new(20);
    let admitted = bed.connect_many(1, true, 3);
    let many: Vec<_> = (0..50).map(|_| bed.connect(9, false, 0).unwrap()).collect();
    assert_eq!((bed.table.len(), bed.table.strangers), (8, 5));
    assert_eq!((ended(&many), ended(&admitted)), (45, 0));
    let late = bed.connect(8, false, 9).unwrap();
    bed.table.tick(bed.at(11));
    assert_eq!(bed.table.strangers, 1);
    for second in (0..56).step_by(5) {
        late.is(|it| it.received = bed.start + Duration::from_secs(9 + second));
        bed.table.tick(bed.at(10 + second));
    }
    assert!(!late.is_ended());
    late.is(|it| it.received += Duration::from_secs(7));
    bed.table.tick(bed.at(70));
    assert!(late.is_ended() && ended(&admitted) == 0);
}

#[test]
fn strangers_make_place_for_who_is_admitted() {
    let mut bed = Bed::new(20);
    let strangers = bed.connect_many(9, false, 5);
    let busy: Vec<_> = (0..15).map(|number| bed.connect(number / 5, true, 0).unwrap()).collect();
    busy.iter().for_each(|busy| busy.is(|it| it.calls = 1));
    assert!(bed.connect(7, true, 1).is_some());
    assert_eq!((ended(&strangers), ended(&busy)), (1, 0));
}

#[test]
fn a_change_of_who_is_admitted_ends_the_connections_that_it_concerns() {
    let mut bed = Bed::new(20);
    let (admitted, strangers) = (bed.connect_many(1, true, 2), bed.connect_many(2, false, 2));
    bed.table.judge_again(|connection, was| {
        was == admitted.iter().any(|it| std::ptr::eq(&raw const **it, connection))
    });
    assert_eq!((ended(&admitted), ended(&strangers)), (0, 0), "nothing has changed");
    bed.table.judge_again(|_, was| was);
    assert_eq!((ended(&admitted), ended(&strangers)), (0, 2));
    bed.table.judge_again(|_, was| !was);
    assert_eq!((ended(&admitted), bed.table.len()), (2, 0));
}

#[test]
fn what_holds_memory_and_does_not_move_ends_and_records_have_their_time() {
    let mut bed = Bed::new(20);
    let of = bed.connect_many(1, true, 4);
    of[0].is(|it| it.unsent = 9);
    of[1].is(|it| it.unsent = 9);
    of[2].is(|it| it.charged_record = true);
    of[1].is(|it| it.sent = 1);
    bed.table.tick(bed.at(1));
    assert_eq!(bed.table.end_stalled(peer(1), bed.at(2)), 2);
    assert!(
        of[0].is_ended() && of[2].is_ended() && ended(&of) == 2,
        "one has sent a second ago, one holds nothing"
    );
    assert_eq!(bed.table.end_stalled(peer(2), bed.at(9)), 0);
    let slow = bed.connect(3, true, 10).unwrap();
    slow.is(|it| it.charged_record = true);
    bed.table.tick(bed.at(39));
    assert!(!slow.is_ended());
    bed.table.tick(bed.at(41));
    assert!(slow.is_ended());
}

#[test]
fn an_ended_connection_counts_while_its_calls_have_its_descriptor() {
    let mut bed = Bed::new(16);
    let held = bed.connect_many(1, true, 8);
    bed.table.tick(bed.at(1));
    assert_eq!(bed.table.len(), 8);
    drop(held);
    bed.table.tick(bed.at(2));
    assert_eq!(bed.table.len(), 0);
}

#[test]
fn most_descriptors_are_for_work() {
    let of = [0, 256, 1024, 20_000, usize::MAX].map(for_descriptors);
    assert_eq!(of, [16, 32, 128, 2500, 4096]);
    assert!(descriptors() >= 256);
}
