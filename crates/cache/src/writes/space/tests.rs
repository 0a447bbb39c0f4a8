//! The account against a model of an origin with limited space.
//!
//! Promise: closes-on-a-full-origin

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn seen(available: u64, now: Instant) -> Space {
    let mut space = Space::default();
    let asked = space.begin_ask();
    space.end_ask(asked, Some(available), now);
    space
}

fn verdict(space: &mut Space, bytes: u64, promise: Option<u64>, now: Instant) -> Verdict {
    space.decide(bytes, promise, now).0
}

#[test]
fn what_is_not_known_is_asked_for_once_a_second() {
    let now = Instant::now();
    let mut space = Space::default();
    assert_eq!(verdict(&mut space, 1, None, now), Verdict::Ask);
    let asked = space.begin_ask();
    space.end_ask(asked, None, now);
    assert_eq!(verdict(&mut space, 1, None, now), Verdict::Send, "it would not say");
    assert!(!space.may_ask(now));
    let later = now + ASK_INTERVAL;
    assert_eq!(verdict(&mut space, 1, None, later), Verdict::Ask);
    let asked = space.begin_ask();
    space.end_ask(asked, Some(1 << 40), later);
    assert_eq!(verdict(&mut space, 1 << 30, None, later), Verdict::Keep);
    assert_eq!(space.kept().unpromised, (1 << 30) + BLOCK_BYTES);
}

#[test]
fn an_eighth_is_kept_without_a_promise_and_half_with_one() {
    let now = Instant::now();
    let mut space = seen(80 * MIB, now);
    let file = MIB - BLOCK_BYTES;
    for _ in 0..10 {
        assert_eq!(verdict(&mut space, file, None, now), Verdict::Keep);
    }
    assert_eq!(verdict(&mut space, file, None, now), Verdict::Send);
    for _ in 0..30 {
        assert_eq!(verdict(&mut space, file, Some(MIB), now), Verdict::Keep);
    }
    assert_eq!(verdict(&mut space, file, Some(MIB), now), Verdict::Send);
    assert_eq!(verdict(&mut space, 0, None, now), Verdict::Keep, "nothing needs nothing");
    // The space that we used is gone. The kept files go before it is too late.
    assert!(!space.must_drain());
    space.sending(MIB);
    assert!(space.must_drain());
}

#[test]
fn a_promise_that_cannot_be_true_or_was_broken_is_none() {
    let now = Instant::now();
    let mut space = seen(80 * MIB, now);
    assert_eq!(verdict(&mut space, 20 * MIB, Some(1 << 60), now), Verdict::Send);
    assert_eq!(verdict(&mut space, 20 * MIB, Some(30 * MIB), now), Verdict::Keep);
    space.refused(Status::NoSpc, true, now);
    space.taken(now);
    let later = now + HOLD_MIN;
    let asked = space.begin_ask();
    space.end_ask(asked, Some(800 * MIB), later);
    assert_eq!(verdict(&mut space, 200 * MIB, Some(300 * MIB), later), Verdict::Send);
    assert_eq!(verdict(&mut space, 10 * MIB, Some(300 * MIB), later), Verdict::Keep, "as without one");
}

#[test]
fn others_are_thought_to_write_meanwhile() {
    let now = Instant::now();
    let mut space = seen(640 * MIB, now);
    assert_eq!(verdict(&mut space, 10 * MIB, None, now), Verdict::Keep);
    let later = now + Duration::from_secs(9);
    assert_eq!(verdict(&mut space, 10 * MIB, None, later), Verdict::Ask);
}

#[test]
fn a_refusal_is_over_when_something_was_taken_and_space_is_seen() {
    let now = Instant::now();
    let second = Duration::from_secs(1);
    let mut space = seen(1 << 40, now);
    assert!(space.refused(Status::NoSpc, false, now));
    assert!(!space.refused(Status::NoSpc, false, now), "that is known");
    assert_eq!(verdict(&mut space, 1, None, now + 10 * second), Verdict::Send, "nothing was taken");
    space.taken(now + 11 * second);
    assert_eq!(verdict(&mut space, 1, None, now + 12 * second), Verdict::Ask, "what was seen is from before");
    let asked = space.begin_ask();
    space.end_ask(asked, Some(0), now + 12 * second);
    assert_eq!(verdict(&mut space, 1, None, now + 12 * second), Verdict::Send);
    assert!(space.is_refused());
    let asked = space.begin_ask();
    space.end_ask(asked, Some(1 << 40), now + 13 * second);
    assert_eq!(verdict(&mut space, 1, None, now + 13 * second), Verdict::Keep);
    assert!(!space.is_refused());
    // A second refusal soon after holds longer, and one by a quota holds very long.
    let again = now + 14 * second;
    space.refused(Status::NoSpc, false, again);
    space.taken(again);
    assert_eq!(verdict(&mut space, 1, None, again + second), Verdict::Send);
    let mut space = seen(1 << 40, now);
    space.refused(Status::Dquot, false, now);
    space.taken(now + second);
    assert_eq!(verdict(&mut space, 1, None, now + QUOTA_HOLD_MIN - second), Verdict::Send);
    assert_eq!(verdict(&mut space, 1, None, now + QUOTA_HOLD_MIN), Verdict::Ask);
}

/// An action of a program or of the origin.
#[derive(Clone, Debug)]
enum Step {
    /// A file with so many unsent bytes is closed; the origin promises space for it, or does not.
    Close { bytes: u64, promised: bool },
    /// The kept file with this number is sent.
    SendKept(usize),
    /// A WRITE of an open file, in bytes.
    Write(u64),
    /// So many bytes are freed at the origin.
    Free(u64),
    /// Seconds pass.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..200_000u64, any::<bool>()).prop_map(|(bytes, promised)| Step::Close { bytes, promised }),
        2 => any::<usize>().prop_map(Step::SendKept),
        3 => (1..MIB).prop_map(Step::Write),
        1 => (1..MIB).prop_map(Step::Free),
        1 => (1..3000u64).prop_map(Step::Wait),
    ]
}

/// An origin with limited space, and one client.
struct Model {
    free: u64,
    space: Space,
    kept: Vec<(u64, Claim)>,
    now: Instant,
}

impl Model {
    fn ask(&mut self) {
        let asked = self.space.begin_ask();
        self.space.end_ask(asked, Some(self.free), self.now);
    }

    /// Sends bytes. Does the origin take them?
    fn send(&mut self, bytes: u64) -> bool {
        self.space.sending(bytes);
        self.space.answered(bytes);
        let needed = bytes.next_multiple_of(BLOCK_BYTES);
        let taken = needed <= self.free;
        if taken {
            self.free -= needed;
            self.space.taken(self.now);
        } else {
            self.space.refused(Status::NoSpc, false, self.now);
        }
        taken
    }

    fn send_kept(&mut self, at: usize) {
        let (bytes, claim) = self.kept.swap_remove(at);
        assert!(self.send(bytes), "a close had said that {bytes} bytes were safe");
        self.space.adjust(claim, Claim::default());
    }

    fn drain(&mut self, must: impl Fn(&Space) -> bool) {
        while must(&self.space) && !self.kept.is_empty() {
            self.send_kept(0);
        }
    }

    fn close(&mut self, bytes: u64, promised: bool) {
        let promise = promised.then_some(bytes + 1000);
        let (mut verdict, mut claim) = self.space.decide(bytes, promise, self.now);
        if verdict == Verdict::Ask {
            self.ask();
            (verdict, claim) = self.space.decide(bytes, promise, self.now);
        }
        match verdict {
            Verdict::Keep => self.kept.push((bytes, claim)),
            Verdict::Send => self.write(bytes),
            Verdict::Ask => panic!("it has just been asked"),
        }
    }

    /// The account learns of it if the origin refuses.
    fn write(&mut self, bytes: u64) {
        self.drain(|space| space.is_in_the_way(bytes));
        self.send(bytes);
        self.drain(Space::must_drain);
    }
}

proptest! {
    #[test]
    fn what_a_close_leaves_here_the_origin_takes(free in 0..64 * MIB, steps in prop::collection::vec(step(), 1..300)) {
        let mut model = Model { free, space: Space::default(), kept: Vec::new(), now: Instant::now() };
        for step in steps {
            match step {
                Step::Close { bytes, promised } => model.close(bytes, promised),
                Step::SendKept(at) if !model.kept.is_empty() => model.send_kept(at % model.kept.len()),
                Step::SendKept(_) => {}
                Step::Write(bytes) => model.write(bytes),
                Step::Free(bytes) => model.free += bytes,
                Step::Wait(millis) => model.now += Duration::from_millis(millis),
            }
            let sum = model.kept.iter().fold(Claim::default(), |sum, (_, claim)| sum.plus(*claim));
            prop_assert_eq!(model.space.kept(), sum);
            prop_assert!(sum.total() <= model.free, "more is kept than fits");
            prop_assert!(!model.space.is_refused() || sum.total() == 0, "after a refusal nothing stays here");
        }
        while !model.kept.is_empty() {
            model.send_kept(0);
        }
    }
}
