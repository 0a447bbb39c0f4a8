//! Leases with a term against the rules of sections 4 and 5 of the paper. A model of the holders keeps what
//! each may still trust.
//!
//! Promise: leases-with-a-term

use proptest::prelude::*;
use vfs::{Share, Want};

use super::*;
use crate::leases::{Effect, Use, Wanted};
use crate::options::Options;

const SKEW: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(5);
const TERM: Duration = Duration::from_secs(30);

fn file() -> Handle {
    Handle::new(b"f").unwrap()
}

fn options() -> Options {
    let terms = Terms { clock_skew: SKEW, write_slack: SLACK, leases_max: 4, workers: 3, ..Terms::default() };
    Options { terms, quiet: Duration::from_secs(20), ..Options::default() }
}

/// A state machine over a layer that grants write leases with every open.
struct Stage {
    leases: Leases,
    now: Instant,
    below: u64,
}

impl Stage {
    fn new(options: &Options) -> Stage {
        Stage { leases: Leases::new(options), now: Instant::now(), below: 1_000_000 }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.leases.expire(self.now);
        self.effects();
    }

    /// Carries out effects. Returns the recalled leases.
    fn effects(&mut self) -> Vec<LeaseId> {
        let mut recalled = Vec::new();
        loop {
            let effects = self.leases.effects();
            if effects.is_empty() {
                return recalled;
            }
            for effect in effects {
                match effect {
                    Effect::Recall(recall) => recalled.push(recall.id),
                    Effect::Gone(_, handle) => self.leases.closed(self.now, &handle),
                    Effect::GiveBack(id) => self.leases.gave_back(id),
                    Effect::Revoked(..) => panic!("a lease with a term is never revoked"),
                    Effect::RecallAny(..) => panic!("there is no want of room"),
                }
            }
        }
    }

    fn ask(&mut self, of: &Handle, holder: u64, kind: LeaseKind, term: Duration) -> Result<Lease, Renewal> {
        let holder = HolderId(holder);
        let asked = Termed { holder, kind, term, others: Others::default() };
        match self.leases.renew(self.now, of, &asked) {
            Renewal::Held(lease) => return Ok(lease),
            Renewal::Open => {}
            other => return Err(other),
        }
        let grant = self.leases.begin_open();
        self.below += 1;
        let under = Lease {
            id: LeaseId(self.below),
            kind: LeaseKind::Write,
            until: None,
            change: 1,
            space_limit: Lease::NO_SPACE_LIMIT,
        };
        self.leases.granted_below(of, Some(under));
        self.leases.end_open(grant);
        let write = kind == LeaseKind::Write;
        let usage = if write { Use::Change } else { Use::Read };
        let mut granted = None;
        if self.leases.clear(self.now, of, Some(holder), usage) {
            let access = if write { Share::WRITE } else { Share::READ };
            let (want, others) = (Want::Any, Others::default());
            let (holder, directory, term) = (Some(holder), false, Some(term));
            let wanted = Wanted { holder, access, want, others, change: 1, directory, term };
            granted = self.leases.grant(self.now, of, &wanted);
        }
        self.effects();
        granted.ok_or(Renewal::NonCaching)
    }

    fn get(&mut self, holder: u64, kind: LeaseKind) -> Result<Lease, Renewal> {
        self.ask(&file(), holder, kind, TERM)
    }

    fn clear(&mut self, holder: u64, usage: Use) -> bool {
        let clear = self.leases.clear(self.now, &file(), Some(HolderId(holder)), usage);
        self.effects();
        clear
    }
}

/// The smallest step of the clock.
const MOMENT: Duration = Duration::from_millis(1);

#[test]
fn one_for_reading_ends_when_no_clock_can_say_otherwise() {
    let mut stage = Stage::new(&options());
    let lease = stage.get(1, LeaseKind::Read).unwrap();
    assert_eq!(lease.until, Some(stage.now + TERM));
    assert!(stage.get(2, LeaseKind::Read).is_ok(), "many may read");
    assert!(stage.clear(3, Use::Read));
    stage.wait((TERM + SKEW).saturating_sub(MOMENT));
    assert!(!stage.clear(3, Use::Change));
    stage.wait(MOMENT);
    assert!(stage.clear(3, Use::Change));
    assert!(stage.leases.is_empty());
    assert_eq!((stage.leases.counts().expired, stage.leases.counts().revoked), (2, 0));
}

#[test]
fn one_for_writing_ends_when_nothing_was_written_for_the_slack() {
    let mut stage = Stage::new(&options());
    stage.get(1, LeaseKind::Write).unwrap();
    stage.wait((TERM + SKEW + SLACK).saturating_sub(Duration::from_secs(1)));
    assert!(!stage.clear(2, Use::Read), "within the slack");
    // A late write of its holder.
    stage.leases.begin_change(&file());
    stage.wait(SLACK * 3);
    assert!(!stage.clear(2, Use::Read), "while it is being written");
    stage.leases.end_change(stage.now, &file());
    assert!(!stage.clear(2, Use::Read));
    stage.wait(SLACK.saturating_sub(MOMENT));
    assert!(!stage.clear(2, Use::Read), "within the slack of the write");
    stage.wait(MOMENT);
    assert!(stage.clear(2, Use::Read));
}

#[test]
fn one_for_writing_does_not_end_while_all_workers_are_busy() {
    let mut stage = Stage::new(&options());
    stage.get(1, LeaseKind::Write).unwrap();
    let elsewhere: Vec<Handle> = (0..3).map(|name| Handle::new(&[name]).unwrap()).collect();
    elsewhere.iter().for_each(|handle| stage.leases.begin_change(handle));
    stage.wait(TERM * 10);
    assert!(!stage.clear(2, Use::Read), "its writes may be waiting");
    stage.leases.end_change(stage.now, &elsewhere[0]);
    stage.wait(LOOK_AGAIN);
    assert!(stage.clear(2, Use::Read));
}

#[test]
fn it_is_renewed_until_it_is_recalled() {
    let mut stage = Stage::new(&options());
    let lease = stage.get(1, LeaseKind::Write).unwrap();
    for _ in 0..5 {
        // Late, but before the lease has truly ended: no other holder was admitted.
        stage.wait(TERM + SKEW);
        let renewed = stage.get(1, LeaseKind::Write).unwrap();
        assert_eq!((renewed.id, renewed.until), (lease.id, Some(stage.now + TERM)));
    }
    assert_eq!(stage.get(1, LeaseKind::Read).unwrap().kind, LeaseKind::Write);
    assert!(!stage.clear(2, Use::Read));
    assert_eq!(stage.get(1, LeaseKind::Write), Err(Renewal::NonCaching), "it is recalled");
    stage.leases.returned(stage.now, lease.id);
    assert!(stage.clear(2, Use::Read));
    // After the conflict, no client may cache for a while.
    assert_eq!(stage.get(1, LeaseKind::Read), Err(Renewal::NonCaching));
    stage.wait(Duration::from_secs(20));
    assert!(stage.get(1, LeaseKind::Read).is_ok());
}

#[test]
fn a_reader_that_is_alone_becomes_a_writer() {
    let mut stage = Stage::new(&options());
    let lease = stage.get(1, LeaseKind::Read).unwrap();
    let wider = stage.get(1, LeaseKind::Write).unwrap();
    assert_eq!((wider.id, wider.kind), (lease.id, LeaseKind::Write));
    assert_eq!(stage.leases.writes(), 1);
    let mut stage = Stage::new(&options());
    let (one, two) = (stage.get(1, LeaseKind::Read).unwrap(), stage.get(2, LeaseKind::Read).unwrap());
    assert!(stage.get(1, LeaseKind::Write).is_err(), "the other reader is evicted first");
    assert!(stage.leases.list(None, 9).iter().any(|lease| lease.id == two.id && lease.recalled.is_some()));
    assert!(stage.leases.list(None, 9).iter().any(|lease| lease.id == one.id && lease.recalled.is_none()));
}

#[test]
fn no_term_is_longer_than_the_longest() {
    let mut stage = Stage::new(&options());
    let lease = stage.ask(&file(), 1, LeaseKind::Read, Duration::from_secs(4_000_000)).unwrap();
    assert_eq!(lease.until, Some(stage.now + Duration::from_secs(60)));
}

#[test]
fn when_all_records_are_taken_one_waits_for_the_first_to_end() {
    let mut stage = Stage::new(&options());
    for name in 0..4u8 {
        let of = Handle::new(&[name]).unwrap();
        stage.ask(&of, 1, LeaseKind::Read, TERM).unwrap();
        stage.wait(Duration::from_secs(1));
    }
    let Err(Renewal::Full(free)) = stage.get(1, LeaseKind::Read) else { panic!("there are four records") };
    assert_eq!(free, stage.now + TERM + SKEW - Duration::from_secs(4));
    // A lease that is held is renewed nevertheless.
    assert!(stage.ask(&Handle::new(&[1]).unwrap(), 1, LeaseKind::Read, TERM).is_ok());
    stage.wait(free - stage.now);
    assert!(stage.get(1, LeaseKind::Read).is_ok());
    assert_eq!(stage.leases.len(), 4);
}

#[test]
fn a_record_is_not_much_larger_than_it_must_be() {
    println!("a lease with a term takes {RECORD_BYTES} bytes and its handle");
    const { assert!(RECORD_BYTES <= 336) };
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Lease { holder: u64, write: bool, seconds: u64 },
    Use { holder: u64, change: bool },
    Return(u64),
    Write(u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let holder = 0u64..3;
    prop_oneof![
        4 => (holder.clone(), any::<bool>(), 1u64..60)
            .prop_map(|(holder, write, seconds)| Step::Lease { holder, write, seconds }),
        3 => (holder.clone(), any::<bool>()).prop_map(|(holder, change)| Step::Use { holder, change }),
        1 => holder.clone().prop_map(Step::Return),
        1 => holder.prop_map(Step::Write),
        4 => (1u64..20_000).prop_map(Step::Wait),
    ]
}

/// The lease that a holder may still trust, by the slowest permitted clock.
#[derive(Clone, Copy, Debug)]
struct Belief {
    id: LeaseId,
    kind: LeaseKind,
    until: Instant,
    /// When its last write arrived.
    wrote: Option<Instant>,
}

proptest! {
    /// When a request is admitted, no other holder may trust a conflicting lease or have writes in flight.
    /// When a lease is granted, it breaks no lease of another holder.
    #[test]
    fn nobody_is_let_in_while_a_holder_may_believe(steps in prop::collection::vec(step(), 1..60)) {
        let mut stage = Stage::new(&Options { quiet: Duration::ZERO, ..options() });
        let mut beliefs: [Option<Belief>; 3] = [None; 3];
        for step in steps {
            let (now, mut let_in) = (stage.now, None);
            match step {
                Step::Lease { holder, write, seconds } => {
                    let kind = if write { LeaseKind::Write } else { LeaseKind::Read };
                    if let Ok(lease) = stage.ask(&file(), holder, kind, Duration::from_secs(seconds)) {
                        prop_assert!(lease.kind >= kind);
                        let until = lease.until.unwrap() + SKEW;
                        let wrote = beliefs[holder as usize].and_then(|before: Belief| before.wrote.filter(|_| before.id == lease.id));
                        beliefs[holder as usize] = Some(Belief { id: lease.id, kind: lease.kind, until, wrote });
                        let_in = Some((holder, lease.kind == LeaseKind::Write));
                    }
                }
                Step::Use { holder, change } => {
                    let usage = if change { Use::Change } else { Use::Read };
                    let_in = stage.clear(holder, usage).then_some((holder, change));
                }
                Step::Return(holder) => {
                    if let Some(belief) = beliefs[holder as usize].take() {
                        stage.leases.returned(now, belief.id);
                        stage.effects();
                    }
                }
                Step::Write(holder) => {
                    // Under its lease, or late.
                    if let Some(belief) = &mut beliefs[holder as usize]
                        && stage.leases.list(None, 9).iter().any(|lease| lease.id == belief.id && lease.kind == LeaseKind::Write)
                        && stage.clear(holder, Use::Change)
                    {
                        stage.leases.begin_change(&file());
                        stage.leases.end_change(now, &file());
                        belief.wrote = Some(now);
                    }
                }
                Step::Wait(milliseconds) => stage.wait(Duration::from_millis(milliseconds)),
            }
            let Some((who, changes)) = let_in else { continue };
            for (holder, belief) in beliefs.iter().enumerate() {
                let Some(belief) = belief.filter(|_| holder as u64 != who) else { continue };
                let writes = belief.kind == LeaseKind::Write;
                let end = if writes { belief.wrote.map_or(belief.until, |wrote| wrote.max(belief.until)) + SLACK } else { belief.until };
                prop_assert!(
                    end <= now || !(changes || writes),
                    "{who} was let in {:?} before the end of {belief:?}", end - now
                );
            }
        }
    }
}
