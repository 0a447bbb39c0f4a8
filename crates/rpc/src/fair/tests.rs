//! The line against a model, and turns with a clock that stands still until all wait.

use std::collections::VecDeque;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const HOLD_US: u64 = 100;

fn peer(number: u8) -> Peer {
    Peer::from(IpAddr::from([10, 0, 0, number]))
}

#[derive(Clone, Debug)]
enum Step {
    /// A call that counts so much comes.
    Come(u32),
    /// The call in progress at this index ends.
    End(usize),
    /// Time passes.
    Pass(u64),
    /// The part of the window changes.
    Part(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u32..5).prop_map(Step::Come),
        2 => any::<usize>().prop_map(Step::End),
        2 => (1u64..150).prop_map(Step::Pass),
        1 => (1u32..10).prop_map(Step::Part),
    ];
    proptest::collection::vec(step, 1..200)
}

/// The calls in progress as a list: when each began, what it counts, and its entry.
struct Model {
    now: u64,
    part: u32,
    running: Vec<(u64, u32, Begun)>,
    waiting: VecDeque<(u32, u32)>,
    last: u32,
}

impl Model {
    fn counted(&self) -> u32 {
        let generation = self.now / HOLD_US;
        let counts = |since: &u64| since / HOLD_US + 1 >= generation;
        self.running.iter().filter(|(since, ..)| counts(since)).map(|(_, cost, _)| cost).sum()
    }

    /// Lets all begin whose turn has come, and checks that the others have a reason to wait.
    fn call(&mut self, line: &mut Line<u32>) {
        loop {
            let may_begin = self.counted() < self.part;
            match line.next(self.now, self.part, |_| false) {
                Next::Nobody => return assert!(self.waiting.is_empty()),
                Next::NotBefore(at) => {
                    assert!(!may_begin, "waits although its peer is below its part");
                    assert!(at > self.now && at <= self.now + 2 * HOLD_US, "waits too long");
                    return;
                }
                Next::Begin(waiter, begun) => {
                    assert!(may_begin, "begins although its peer has its part");
                    let (first, cost) = self.waiting.pop_front().unwrap();
                    assert_eq!(waiter, first, "overtakes another");
                    self.running.push((self.now, cost, begun));
                }
            }
            assert_eq!(line.running(), self.counted());
        }
    }
}

proptest! {
    #[test]
    fn the_line_does_as_the_model(steps in steps()) {
        let mut line = Line::new(HOLD_US, Buckets::new(Rates::default()));
        let mut model = Model { now: 0, part: 4, running: vec![], waiting: VecDeque::new(), last: 0 };
        for step in steps {
            match step {
                Step::Come(cost) => {
                    let must_wait = !model.waiting.is_empty() || model.counted() >= model.part;
                    prop_assert_eq!(line.may_begin(model.now, model.part), !must_wait);
                    if must_wait {
                        model.last += 1;
                        model.waiting.push_back((model.last, cost));
                        line.enter(model.last, cost, 0);
                    } else {
                        let begun = line.begin(model.now, cost);
                        model.running.push((model.now, cost, begun));
                    }
                }
                Step::End(at) if !model.running.is_empty() => {
                    let (_, _, begun) = model.running.remove(at % model.running.len());
                    line.end(&begun);
                }
                Step::End(_) => {}
                Step::Pass(micros) => model.now += micros,
                Step::Part(part) => model.part = part,
            }
            model.call(&mut line);
        }
        // No call ends any more, and yet all have their turn.
        let limit = model.now + 2 * HOLD_US * (model.waiting.len() as u64 + 1);
        while !model.waiting.is_empty() {
            prop_assert!(model.now <= limit, "{} wait for ever", model.waiting.len());
            model.now += HOLD_US;
            model.call(&mut line);
        }
    }

    #[test]
    fn no_peer_exceeds_its_rates(
        calls in proptest::collection::vec((0u64..3_000, 0i64..100_000), 1..300),
        operations in 100u64..10_000,
        bytes in 100_000u64..10_000_000,
    ) {
        let rates = Rates { operations: Some(operations), bytes: Some(bytes) };
        let mut line = Line::new(HOLD_US, Buckets::new(rates));
        let (mut now, mut done, mut moved) = (0, 0u64, 0i64);
        for (pause, size) in calls {
            now += pause;
            line.enter((), 1, size);
            while let Next::NotBefore(at) = line.next(now, u32::MAX, |()| false) {
                prop_assert!(at > now);
                now = at;
            }
            (done, moved) = (done + 1, moved + size);
            let most = |rate: u64, least: u64| rate * (now + 100_000) / 1_000_000 + least;
            prop_assert!(done <= most(operations, 2), "{done} calls by {now} µs");
            prop_assert!((moved - size) as u64 <= most(bytes, 64 << 10), "{moved} bytes by {now} µs");
        }
    }
}

/// A server of two active peers: the turns of both.
fn shared(sharing: Sharing) -> [Arc<Turns>; 2] {
    let fair = Fair::new(sharing);
    let turns = [1, 2].map(|number| fair.turns(peer(number)));
    turns.iter().for_each(|turns| turns.note(Instant::now()));
    turns
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_holds_up_no_other() {
    let [one, _] = shared(Sharing { window: 2, active: Duration::from_secs(3600), ..Sharing::default() });
    assert!(!one.must_wait(0));
    let endless = one.count(0);
    assert!(one.must_wait(0));
    let waiting: Vec<_> = (0..50).map(|_| one.enter(0)).collect();
    assert!(one.must_wait(0), "the line has an order");
    let mut begun = Vec::new();
    for turn in waiting {
        begun.push(turn.await.unwrap());
    }
    assert_eq!(one.fair.waited(), 50);
    drop((endless, begun));
    assert!(!one.must_wait(0));
}

#[test]
fn calls_that_were_given_up_count_nothing() {
    let rates = Rates { operations: Some(10), bytes: None };
    let mut line = Line::new(HOLD_US, Buckets::new(rates));
    line.charge(2, 0);
    (0..100).for_each(|waiter| line.enter(waiter, 1, 0));
    let is_gone = |waiter: &i32| *waiter < 99;
    let Next::NotBefore(at) = line.next(0, u32::MAX, is_gone) else { panic!("it has used its rate up") };
    assert_eq!(line.waiting(), 1);
    assert!(matches!(line.next(at, u32::MAX, is_gone), Next::Begin(99, _)));
}

#[tokio::test(start_paused = true)]
async fn a_peer_counts_once_however_often_it_connects() {
    let fair = Fair::new(Sharing::default());
    for _ in 0..100 {
        fair.turns(peer(1)).note(Instant::now());
    }
    assert!(!fair.is_shared());
    (2..50).for_each(|number| fair.turns(peer(number)).note(Instant::now()));
    assert_eq!((fair.active.load(Relaxed), fair.part()), (49, PART_MIN));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_alone_never_waits() {
    let fair = Fair::new(Sharing { window: 2, ..Sharing::default() });
    let (one, two) = (fair.turns(peer(1)), fair.turns(peer(2)));
    one.note(Instant::now());
    let begun: Vec<_> = (0..100).map(|_| one.count(1 << 20)).collect();
    assert!(!one.must_wait(0) && one.slice() == SLICE);
    two.note(Instant::now());
    one.note(Instant::now());
    assert!(one.must_wait(0) && !two.must_wait(0) && one.slice() == QUANTUM);
    // The other has been silent for long.
    for _ in 0..3 {
        tokio::time::advance(ACTIVE).await;
        one.note(Instant::now());
    }
    assert!(!one.must_wait(0) && one.slice() == SLICE);
    drop(begun);
}

#[tokio::test(start_paused = true)]
async fn the_connections_of_a_peer_share_its_quantum() {
    let [one, two] = shared(Sharing::default());
    let busy: Vec<_> = (0..4).map(|_| one.busy()).collect();
    assert_eq!((one.slice(), two.slice()), (QUANTUM / 4, QUANTUM));
    drop(busy);
    assert_eq!(one.slice(), QUANTUM);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_comes_back_owes_what_it_owed() {
    let rates = Rates { operations: Some(10), bytes: None };
    let fair = Fair::new(Sharing { rates, ..Sharing::default() });
    let turns = fair.turns(peer(1));
    assert!(!turns.must_wait(0), "the first call");
    assert!(turns.must_wait(0));
    drop(turns);
    let turns = fair.turns(peer(1));
    assert!(turns.must_wait(0));
    let begun = Instant::now();
    for turn in [turns.enter(0), turns.enter(0)] {
        turn.await.unwrap();
    }
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(90) && waited < Duration::from_millis(200), "{waited:?}");
    drop(turns);
    tokio::time::advance(Duration::from_secs(1)).await;
    fair.forget_absent();
    assert!(fair.absent.lock().is_empty());
}
