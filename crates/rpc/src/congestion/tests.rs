//! Tests of the rules one by one, of random steps against a model, and of a slow and lossy path compared with
//! fixed timers.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

const GETATTR: Kind = (100_003, 1);
const WRITE: Kind = (100_003, 7);
const FIRST_TIMER: Duration = Duration::from_millis(1100);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn fresh() -> (Congestion, Instant) {
    (Congestion::new(FIRST_TIMER), Instant::now())
}

/// A call that is answered after `takes`.
fn exchange(congestion: &mut Congestion, now: &mut Instant, xid: u32, kind: Kind, takes: Duration) {
    congestion.enter(xid, kind);
    assert_eq!(congestion.poll(*now), [Due { xid, sends: 1 }]);
    *now += takes;
    assert!(congestion.answered(*now, xid));
}

#[test]
fn each_kind_of_call_has_its_own_timer() {
    let (mut congestion, mut now) = fresh();
    for xid in 0..40 {
        exchange(&mut congestion, &mut now, 2 * xid, GETATTR, ms(5));
        exchange(&mut congestion, &mut now, 2 * xid + 1, WRITE, ms(300));
    }
    congestion.enter(100, WRITE);
    congestion.poll(now);
    assert!(congestion.next_due().unwrap() > now + ms(290));
    congestion.enter(101, GETATTR);
    congestion.poll(now);
    assert!(congestion.next_due().unwrap() < now + ms(60));
}

#[test]
fn what_was_sent_twice_teaches_nothing_and_timers_stay_long() {
    let (mut congestion, mut now) = fresh();
    (0..20).for_each(|xid| exchange(&mut congestion, &mut now, xid, GETATTR, ms(100)));
    congestion.enter(50, GETATTR);
    congestion.poll(now);
    let short = congestion.next_due().unwrap() - now;
    for sends in 2..5 {
        now = congestion.next_due().unwrap();
        assert_eq!(congestion.poll(now), [Due { xid: 50, sends }]);
        assert_eq!(congestion.next_due().unwrap() - now, short * 2u32.pow(sends - 1));
    }
    // The answer may belong to the first copy or to the last.
    congestion.answered(now + ms(1), 50);
    congestion.enter(51, GETATTR);
    congestion.poll(now);
    assert!(congestion.next_due().unwrap() - now > short * 4, "the path may be as slow as it seemed");
    congestion.answered(now + ms(100), 51);
    congestion.enter(52, GETATTR);
    congestion.poll(now);
    assert!(congestion.next_due().unwrap() - now < short * 2, "it is not");
}

#[test]
fn a_loss_halves_the_window_once_and_what_was_lost_goes_first() {
    let (mut congestion, mut now) = fresh();
    (0..40).for_each(|xid| exchange(&mut congestion, &mut now, xid, GETATTR, ms(10)));
    let window = congestion.window();
    assert!(window > FIRST_THRESHOLD);
    (100..200).for_each(|xid| congestion.enter(xid, GETATTR));
    assert_eq!(congestion.poll(now).len(), window as usize);
    now = congestion.next_due().unwrap();
    let again = congestion.poll(now);
    assert_eq!(again.len() as u32, congestion.window());
    assert_eq!((congestion.window(), again[0]), (window / 2, Due { xid: 100, sends: 2 }));
    assert!(again.iter().all(|due| due.sends == 2), "nothing new before what was lost: {again:?}");
}

#[test]
fn what_is_forgotten_or_answered_leaves_nothing() {
    let (mut congestion, now) = fresh();
    (0..100).for_each(|xid| congestion.enter(xid, GETATTR));
    congestion.poll(now);
    (0..50).for_each(|xid| congestion.forget(xid));
    assert!((50..100).all(|xid| congestion.answered(now, xid)));
    assert!(!congestion.answered(now, 3), "nobody waits for it");
    assert_eq!((congestion.poll(now), congestion.next_due(), congestion.in_network()), (Vec::new(), None, 0));
    assert!(congestion.calls.is_empty() && congestion.waiting.is_empty());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Enter(u32),
    Answer(usize),
    Forget(usize),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0u32..70).prop_map(Step::Enter),
        4 => any::<usize>().prop_map(Step::Answer),
        1 => any::<usize>().prop_map(Step::Forget),
        3 => (0u64..3000).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Every call that is neither answered nor forgotten is in the network with a timer, or waits because the
    /// window is full. No other call is ever sent, and the window stays within its bounds.
    #[test]
    fn nothing_is_lost_and_nothing_is_sent_in_vain(steps in prop::collection::vec(step(), 1..300)) {
        let (mut congestion, mut now) = fresh();
        let mut unanswered: BTreeMap<u32, u32> = BTreeMap::new();
        let mut next = 0;
        for step in steps {
            let pick = |at: usize| unanswered.keys().nth(at % unanswered.len().max(1)).copied();
            match step {
                Step::Enter(kind) => {
                    next += 1;
                    congestion.enter(next, (1, kind));
                    unanswered.insert(next, 0);
                }
                Step::Answer(at) => if let Some(xid) = pick(at) {
                    prop_assert!(congestion.answered(now, xid));
                    unanswered.remove(&xid);
                },
                Step::Forget(at) => if let Some(xid) = pick(at) {
                    congestion.forget(xid);
                    unanswered.remove(&xid);
                },
                Step::Wait(milliseconds) => now += ms(milliseconds),
            }
            for Due { xid, sends } in congestion.poll(now) {
                let before = unanswered.get_mut(&xid);
                prop_assert!(before.is_some(), "{xid} is nobody's");
                if let Some(before) = before {
                    *before += 1;
                    prop_assert_eq!(*before, sends);
                }
            }
            let window = congestion.window();
            prop_assert!((1..=WINDOW_MAX).contains(&window));
            let waiting = unanswered.len() - congestion.in_network();
            prop_assert!(waiting == 0 || congestion.in_network() >= window as usize, "{waiting} wait for nothing");
            prop_assert!(congestion.next_due().is_none_or(|due| due > now));
            prop_assert!(congestion.kinds.len() <= KINDS_MAX);
        }
    }
}

/// A path: a bottleneck that passes one datagram at a time, with a queue before it, and a propagation delay.
struct Path {
    /// Time of one datagram through the bottleneck, and propagation delay.
    takes: Duration,
    way: Duration,
    queue_max: usize,
    /// One in this many datagrams is lost in addition; none if 0.
    lost_of: u64,
    queue: VecDeque<Instant>,
    random: u64,
}

impl Path {
    /// When the answer arrives, if it does.
    fn send(&mut self, now: Instant) -> Option<Instant> {
        while self.queue.front().is_some_and(|through| *through <= now) {
            self.queue.pop_front();
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.queue.len() >= self.queue_max
            || (self.lost_of > 0 && self.random.is_multiple_of(self.lost_of))
        {
            return None;
        }
        let through = self.queue.back().map_or(now, |last| *last).max(now) + self.takes;
        self.queue.push_back(through);
        Some(through + self.way)
    }
}

/// The cost of a burst of calls.
#[derive(Debug)]
struct Cost {
    time: Duration,
    sends: u32,
}

const BURST: u32 = 400;

/// Sends a burst over a path. The closure `send` returns the calls to send now and when to call it again.
fn burst(path: &mut Path, mut send: impl FnMut(Instant, Option<u32>) -> (Vec<u32>, Option<Instant>)) -> Cost {
    let start = Instant::now();
    let (mut now, mut sends, mut left) = (start, 0, BURST);
    let mut answers: BTreeSet<(Instant, u32)> = BTreeSet::new();
    let mut done: BTreeSet<u32> = BTreeSet::new();
    let mut answered = None;
    while left > 0 {
        assert!(now < start + Duration::from_secs(3600), "{left} calls are never answered");
        let (xids, due) = send(now, answered.take());
        sends += xids.len() as u32;
        answers.extend(xids.into_iter().filter_map(|xid| Some((path.send(now)?, xid))));
        let first = answers.first().map(|(at, _)| *at);
        now = [first, due].into_iter().flatten().min().expect("something happens").max(now);
        if first == Some(now)
            && let Some((_, xid)) = answers.pop_first()
        {
            left -= u32::from(done.insert(xid));
            answered = Some(xid);
        }
    }
    Cost { time: now - start, sends }
}

/// Sends with the window and its timers.
fn careful(path: &mut Path) -> Cost {
    let mut congestion = Congestion::new(FIRST_TIMER);
    (0..BURST).for_each(|xid| congestion.enter(xid, GETATTR));
    burst(path, |now, answered| {
        answered.into_iter().for_each(|xid| {
            congestion.answered(now, xid);
        });
        let sent = congestion.poll(now).into_iter().map(|due| due.xid).collect();
        (sent, congestion.next_due())
    })
}

/// Sends with a fixed timer and no window.
fn careless(path: &mut Path) -> Cost {
    let mut due: BTreeMap<u32, Option<Instant>> = (0..BURST).map(|xid| (xid, None)).collect();
    burst(path, |now, answered| {
        answered.into_iter().for_each(|xid| {
            due.remove(&xid);
        });
        let mut sent = Vec::new();
        for (xid, at) in due.iter_mut().filter(|(_, at)| at.is_none_or(|at| at <= now)) {
            *at = Some(now + FIRST_TIMER);
            sent.push(*xid);
        }
        (sent, due.values().flatten().min().copied())
    })
}

/// A line of 56 kbit/s with datagrams of 512 bytes, a delay of 200 ms, and a queue of ten datagrams.
fn slow() -> Path {
    Path {
        takes: ms(73),
        way: ms(200),
        queue_max: 10,
        lost_of: 0,
        queue: VecDeque::new(),
        random: 88_172_645,
    }
}

#[test]
fn a_slow_path_is_kept_busy_and_not_flooded() {
    let (careful, careless) = (careful(&mut slow()), careless(&mut slow()));
    println!("slow: {careful:?}; fixed timer, no window: {careless:?}");
    let ideal = ms(73) * BURST;
    assert!(careful.sends < BURST * 115 / 100, "{careful:?}");
    assert!(careful.time < ideal * 13 / 10, "{careful:?}");
    assert!(careless.sends > BURST * 5, "{careless:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// On any path, all calls are answered, with few more datagrams than the path loses.
    #[test]
    fn any_path_is_got_through(
        takes in 1u64..100, way in 0u64..400, queue_max in 2usize..40, lost_of in prop::sample::select(vec![0u64, 50, 20, 10]),
        random in 1u64..,
    ) {
        let mut path = Path { takes: ms(takes), way: ms(way), queue_max, lost_of, queue: VecDeque::new(), random };
        let cost = careful(&mut path);
        let lost = if lost_of == 0 { 0 } else { BURST / lost_of as u32 };
        prop_assert!(cost.sends < BURST * 14 / 10 + lost * 2, "{:?}", cost);
    }
}
