//! The state machine against its rules. A model keeps the leases held, without knowledge of the
//! implementation.

use proptest::prelude::*;
use vfs::{Lease, Share, Want};

use super::*;
use crate::shares::Others;

const FILES: u8 = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A holder opens a file; the layer below grants this kind of lease with it.
    Open {
        holder: u64,
        file: u8,
        write: bool,
        below: Option<LeaseKind>,
    },
    /// A holder, or an anonymous caller, reads or changes a file.
    Use {
        holder: Option<u64>,
        file: u8,
        usage: Use,
    },
    /// A holder returns one of its leases.
    Return(usize),
    /// The layer below recalls its lease on a file, or has lost it.
    RecallBelow(u8),
    RevokeBelow(u8),
    KeepBelow(usize),
    /// The layer below has no capacity for this many requests.
    FreeUp(usize),
    /// A change by a holder begins or ends.
    BeginChange(Option<u64>, u8),
    EndChange,
    Closed(u8),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let holder = 0u64..3;
    let kind = prop_oneof![Just(None), Just(Some(LeaseKind::Read)), Just(Some(LeaseKind::Write))];
    let usage = prop_oneof![Just(Use::Read), Just(Use::Change)];
    prop_oneof![
        6 => (holder.clone(), 0..FILES, any::<bool>(), kind)
            .prop_map(|(holder, file, write, below)| Step::Open { holder, file, write, below }),
        3 => (proptest::option::of(holder.clone()), 0..FILES, usage)
            .prop_map(|(holder, file, usage)| Step::Use { holder, file, usage }),
        3 => (0usize..8).prop_map(Step::Return),
        1 => (0..FILES).prop_map(Step::RecallBelow),
        1 => (0..FILES).prop_map(Step::RevokeBelow),
        1 => (0usize..3).prop_map(Step::KeepBelow),
        1 => (1usize..4).prop_map(Step::FreeUp),
        1 => (proptest::option::of(holder), 0..FILES).prop_map(|(holder, file)| Step::BeginChange(holder, file)),
        1 => Just(Step::EndChange),
        1 => (0..FILES).prop_map(Step::Closed),
        2 => (1u64..40).prop_map(Step::Wait),
    ]
}

fn file(number: u8) -> Handle {
    Handle::new(&[number]).unwrap()
}

fn options(leases_max: usize) -> Options {
    Options {
        leases_max,
        recall_deadline: Duration::from_secs(10),
        quiet: Duration::from_secs(20),
        idle_min: Duration::from_secs(5),
        ..Options::default()
    }
}

#[derive(Clone, Copy, Debug)]
struct Out {
    id: LeaseId,
    holder: u64,
    file: u8,
    kind: LeaseKind,
    recalled: Option<Instant>,
}

struct Model {
    leases: Leases,
    now: Instant,
    out: Vec<Out>,
    /// The leases that the layer below has granted, as it sees them.
    below: HashMap<u8, (LeaseId, LeaseKind)>,
    changing: Vec<u8>,
    next_below: u64,
}

impl Model {
    fn new(leases_max: usize) -> Model {
        Model {
            leases: Leases::new(&options(leases_max)),
            now: Instant::now(),
            out: Vec::new(),
            below: HashMap::new(),
            changing: Vec::new(),
            next_below: 1_000_000,
        }
    }

    fn conflicting(&self, holder: Option<u64>, of: u8, usage: Use) -> Vec<LeaseId> {
        let theirs = self.out.iter().filter(|out| out.file == of && Some(out.holder) != holder);
        theirs.filter(|out| usage == Use::Change || out.kind == LeaseKind::Write).map(|out| out.id).collect()
    }

    /// Carries effects out as the shell does, and checks that the rules permit them.
    fn effects(&mut self) {
        for effect in self.leases.effects() {
            match effect {
                Effect::Recall(recall) => {
                    let out = self.out.iter_mut().find(|out| out.id == recall.id).expect("it is out");
                    assert_eq!(out.recalled.replace(self.now), None, "recalled once");
                    assert_eq!(file(out.file), recall.handle);
                    assert!(recall.deadline <= self.now + Duration::from_secs(10));
                }
                Effect::Revoked(id, _) => self.out.retain(|out| out.id != id),
                Effect::Gone(id, _) => self.out.retain(|out| out.id != id),
                Effect::RecallAny(..) => {}
                Effect::GiveBack(id) => {
                    let under: Vec<u8> =
                        self.below.iter().filter(|(_, lease)| lease.0 == id).map(|(of, _)| *of).collect();
                    for of in under {
                        assert!(self.out.iter().all(|out| out.file != of), "ours come back first");
                        self.below.remove(&of);
                    }
                    self.leases.gave_back(id);
                }
            }
        }
    }

    fn open(&mut self, holder: u64, of: u8, write: bool, below: Option<LeaseKind>) {
        let grant = self.leases.begin_open();
        let lease = below.map(|kind| {
            let next = LeaseId(self.next_below);
            self.next_below += 1;
            let entry = self.below.entry(of).or_insert((next, kind));
            entry.1 = entry.1.max(kind);
            Lease { id: entry.0, kind: entry.1, until: None, change: 1, space_limit: Lease::NO_SPACE_LIMIT }
        });
        self.leases.granted_below(&file(of), lease);
        self.leases.end_open(grant);
        self.effects();
        let usage = if write { Use::Change } else { Use::Read };
        if !self.leases.clear(self.now, &file(of), Some(HolderId(holder)), usage) {
            return;
        }
        let access = if write { Share::READ | Share::WRITE } else { Share::READ };
        let wanted = Wanted {
            holder: Some(HolderId(holder)),
            access,
            want: Want::Any,
            others: Others::default(),
            change: 1,
            directory: false,
            term: None,
        };
        let Some(lease) = self.leases.grant(self.now, &file(of), &wanted) else { return };
        assert!(self.below.get(&of).is_some_and(|(_, kind)| *kind >= lease.kind), "under a lease from below");
        assert!(!self.changing.contains(&of), "not while the file is changed");
        self.out.push(Out { id: lease.id, holder, file: of, kind: lease.kind, recalled: None });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Open { holder, file, write, below } => self.open(holder, file, write, below),
            Step::Use { holder, file: of, usage } => {
                let in_way = self.conflicting(holder, of, usage);
                let clear = self.leases.clear(self.now, &file(of), holder.map(HolderId), usage);
                assert_eq!(clear, in_way.is_empty());
                self.effects();
                let recalled = |id| self.out.iter().any(|out| out.id == id && out.recalled.is_some());
                assert!(in_way.into_iter().all(recalled));
            }
            Step::Return(index) => {
                let id = self.out.get(index).map_or(LeaseId(u64::MAX), |out| out.id);
                self.leases.returned(self.now, id);
            }
            Step::RecallBelow(of) => {
                let id = self.below.get(&of).map_or(LeaseId(u64::MAX), |lease| lease.0);
                let deadline = self.now + Duration::from_secs(8);
                self.leases.recalled_below(self.now, &Recall { id, handle: file(of), keep: None, deadline });
            }
            Step::RevokeBelow(of) => {
                if let Some((id, _)) = self.below.remove(&of) {
                    self.leases.revoked_below(self.now, id);
                    self.effects();
                    assert!(self.out.iter().all(|out| out.file != of));
                }
            }
            Step::KeepBelow(keep) => self.leases.keep_below(self.now, keep),
            Step::FreeUp(waiters) => {
                self.leases.free_up(self.now, waiters);
                self.effects();
                let on_their_way = self.out.iter().filter(|out| out.recalled.is_some()).count();
                assert!(on_their_way >= waiters.min(self.out.len()), "each asker has something to wait for");
            }
            Step::BeginChange(holder, of) => {
                if self.leases.clear(self.now, &file(of), holder.map(HolderId), Use::Change) {
                    self.leases.begin_change(&file(of));
                    self.changing.push(of);
                }
            }
            Step::EndChange => {
                if let Some(of) = self.changing.pop() {
                    self.leases.end_change(self.now, &file(of));
                }
            }
            Step::Closed(of) => self.leases.closed(self.now, &file(of)),
            Step::Wait(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.leases.expire(self.now);
            }
        }
        self.effects();
    }

    fn holds_the_rules(&self, leases_max: usize) {
        assert_eq!(self.leases.len(), self.out.len());
        assert!(self.out.len() <= leases_max);
        assert_eq!(self.leases.writes(), self.out.iter().filter(|out| out.kind == LeaseKind::Write).count());
        for one in &self.out {
            let others = self.out.iter().filter(|other| other.id != one.id && other.file == one.file);
            assert!(others.clone().all(|other| other.kind == LeaseKind::Read && one.kind == LeaseKind::Read));
            assert!(others.clone().all(|other| other.holder != one.holder), "one for each holder");
            assert!(self.below.contains_key(&one.file));
            let overdue = one.recalled.is_some_and(|at| self.now >= at + Duration::from_secs(10));
            assert!(!overdue, "revoked by its deadline");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn leases_never_conflict(steps in proptest::collection::vec(step(), 1..120), leases_max in 1usize..6) {
        let mut model = Model::new(leases_max);
        for step in steps {
            model.step(step);
            model.holds_the_rules(leases_max);
        }
        for out in model.out.clone() {
            model.leases.returned(model.now, out.id);
        }
        while let Some(of) = model.changing.pop() {
            model.leases.end_change(model.now, &file(of));
        }
        for of in 0..FILES {
            model.leases.closed(model.now, &file(of));
        }
        model.effects();
        model.leases.expire(model.now + Duration::from_secs(21));
        let leases = &model.leases;
        prop_assert!(leases.is_empty() && leases.ends.is_empty() && leases.idle.is_empty());
        prop_assert!(leases.files.is_empty() && leases.holders.is_empty() && leases.under_of.is_empty());
        prop_assert!(leases.grants_in_flight.news_len() == 0 && leases.next_expiry().is_none(), "nothing is left: {:?}", leases);
    }
}

fn wanted(holder: u64) -> Wanted {
    let (holder, access) = (Some(HolderId(holder)), Share::READ);
    Wanted {
        holder,
        access,
        want: Want::Any,
        others: Others::default(),
        change: 1,
        directory: false,
        term: None,
    }
}

fn below(id: u64) -> Lease {
    Lease {
        id: LeaseId(id),
        kind: LeaseKind::Write,
        until: None,
        change: 1,
        space_limit: Lease::NO_SPACE_LIMIT,
    }
}

fn recall(id: u64, deadline: Instant) -> Recall {
    Recall { id: LeaseId(id), handle: file(0), keep: None, deadline }
}

#[test]
fn a_recall_from_below_before_the_answer_that_grants_keeps_it_from_being_used() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    let grant = leases.begin_open();
    leases.recalled_below(now, &recall(7, now + Duration::from_secs(9)));
    assert_eq!(leases.effects(), [], "the answer may still name it");
    leases.granted_below(&file(0), Some(below(7)));
    assert_eq!(leases.effects(), [Effect::GiveBack(LeaseId(7))]);
    assert_eq!(leases.grant(now, &file(0), &wanted(1)), None);
    leases.end_open(grant);
    leases.gave_back(LeaseId(7));
    assert_eq!(leases.grants_in_flight.news_len(), 0);
}

#[test]
fn a_recall_from_below_of_what_no_answer_names_is_answered_in_the_end() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    let grant = leases.begin_open();
    leases.recalled_below(now, &recall(7, now + Duration::from_secs(9)));
    let later = leases.begin_open();
    leases.end_open(grant);
    assert_eq!(
        leases.effects(),
        [Effect::GiveBack(LeaseId(7))],
        "an open that began later is not waited for"
    );
    leases.end_open(later);
}

#[test]
fn an_answer_from_before_a_lease_was_given_back_does_not_bring_it_back() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    leases.granted_below(&file(0), Some(below(7)));
    let grant = leases.begin_open();
    leases.closed(now, &file(0));
    assert_eq!(leases.effects(), [Effect::GiveBack(LeaseId(7))]);
    leases.gave_back(LeaseId(7));
    leases.granted_below(&file(0), Some(below(7)));
    assert_eq!(leases.grant(now, &file(0), &wanted(1)), None);
    leases.end_open(grant);
    assert_eq!(leases.grants_in_flight.news_len(), 0);
}

#[test]
fn a_late_answer_does_not_replace_a_lease_from_below_by_an_older_one() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    let grant = leases.begin_open();
    leases.granted_below(&file(0), Some(below(8)));
    let lease = leases.grant(now, &file(0), &wanted(1)).unwrap();
    leases.granted_below(&file(0), Some(below(7)));
    leases.revoked_below(now, LeaseId(7));
    assert_eq!(leases.effects(), [], "the older one had ended");
    leases.recalled_below(now, &recall(8, now + Duration::from_secs(9)));
    leases.returned(now, lease.id);
    assert!(leases.effects().contains(&Effect::GiveBack(LeaseId(8))));
    leases.end_open(grant);
}

/// The layer below grants a lease anew, by a reply in flight, while it is given back.
#[test]
fn a_recall_from_below_of_what_was_given_back_is_answered() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    leases.granted_below(&file(0), Some(below(7)));
    let grant = leases.begin_open();
    leases.closed(now, &file(0));
    assert_eq!(leases.effects(), [Effect::GiveBack(LeaseId(7))]);
    leases.gave_back(LeaseId(7));
    leases.recalled_below(now, &recall(7, now + Duration::from_secs(9)));
    assert_eq!(leases.effects(), [Effect::GiveBack(LeaseId(7))]);
    leases.granted_below(&file(0), Some(below(7)));
    leases.end_open(grant);
    assert_eq!(leases.grant(now, &file(0), &wanted(1)), None);
    leases.gave_back(LeaseId(7));
    assert_eq!(leases.grants_in_flight.news_len(), 0);
}

#[test]
fn a_file_that_changed_hands_gets_no_lease_until_it_has_been_quiet() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    leases.granted_below(&file(0), Some(below(7)));
    let lease = leases.grant(now, &file(0), &wanted(1)).unwrap();
    assert!(!leases.clear(now, &file(0), None, Use::Change));
    leases.returned(now + Duration::from_secs(5), lease.id);
    assert!(leases.clear(now, &file(0), None, Use::Change));
    let quiet_from = now + Duration::from_secs(5);
    assert_eq!(leases.grant(quiet_from + Duration::from_secs(19), &file(0), &wanted(1)), None);
    assert!(leases.grant(quiet_from + Duration::from_secs(20), &file(0), &wanted(1)).is_some());
}

#[test]
fn nothing_is_granted_while_a_change_of_an_unknown_file_is_under_way() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    let grant = leases.begin_open();
    leases.begin_nameless_change();
    leases.granted_below(&file(0), Some(below(7)));
    assert_eq!(leases.grant(now, &file(0), &wanted(1)), None);
    leases.end_nameless_change();
    assert!(leases.changed_since(grant), "so attributes have to be read anew");
    assert!(leases.grant(now, &file(0), &wanted(1)).is_some());
}

#[test]
fn a_lease_lasts_no_longer_than_that_from_below() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    let until = now + Duration::from_secs(3);
    leases.granted_below(&file(0), Some(Lease { until: Some(until), ..below(7) }));
    assert_eq!(leases.grant(now, &file(0), &wanted(1)).unwrap().until, Some(until));
    assert!(leases.clear(until, &file(0), None, Use::Change));
    leases.expire(until);
    assert_eq!(leases.counts().revoked, 0, "it ended as its holder knew it would");
    assert!(leases.is_empty());
}

#[test]
fn the_least_useful_lease_goes_first() {
    let (mut leases, now) = (Leases::new(&options(3)), Instant::now());
    let mut granted = Vec::new();
    for of in 0..2 {
        leases.granted_below(&file(of), Some(below(10 + u64::from(of))));
        granted.push(leases.grant(now, &file(of), &wanted(1)).unwrap().id);
    }
    leases.touch(now, &file(0), Some(HolderId(1)));
    leases.effects();
    leases.granted_below(&file(2), Some(below(12)));
    assert!(leases.grant(now + Duration::from_secs(5), &file(2), &wanted(1)).is_some());
    let recalled: Vec<LeaseId> = leases
        .effects()
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Recall(recall) => Some(recall.id),
            _ => None,
        })
        .collect();
    assert_eq!(recalled, [granted[1]]);
}

#[test]
fn room_is_made_with_what_was_of_use_for_longest_ago_and_with_no_more_than_is_on_its_way() {
    let (mut leases, now) = (Leases::new(&options(100)), Instant::now());
    let mut granted = Vec::new();
    for of in 0..20 {
        leases.granted_below(&file(of), Some(below(100 + u64::from(of))));
        granted.push(leases.grant(now, &file(of), &wanted(1)).unwrap().id);
    }
    leases.touch(now, &file(0), Some(HolderId(1)));
    let recalled = |leases: &mut Leases| {
        let of = |effect| if let Effect::Recall(recall) = effect { Some(recall.id) } else { None };
        leases.effects().into_iter().filter_map(of).collect::<Vec<LeaseId>>()
    };
    leases.free_up(now, 1);
    assert_eq!(recalled(&mut leases), granted[1..=4]);
    leases.free_up(now, 1);
    assert_eq!(recalled(&mut leases), [], "those are still awaited");
    leases.free_up(now, 3);
    assert_eq!(recalled(&mut leases), granted[5..=6]);
    leases.returned(now, granted[1]);
    leases.effects();
    leases.free_up(now, 3);
    assert_eq!(recalled(&mut leases), granted[7..=7]);
}

#[test]
fn nothing_is_granted_to_others_while_somebody_waits() {
    let always = Options { delegations: Delegations::Always, ..options(10) };
    let (mut leases, now) = (Leases::new(&always), Instant::now());
    leases.granted_below(&file(0), Some(below(7)));
    let lease = leases.grant(now, &file(0), &wanted(1)).unwrap();
    assert!(!leases.clear(now, &file(0), None, Use::Change));
    leases.claim(&file(0));
    leases.returned(now, lease.id);
    assert_eq!(leases.grant(now, &file(0), &wanted(2)), None, "who waits comes first");
    leases.unclaim(now, &file(0));
    assert!(leases.grant(now, &file(0), &wanted(2)).is_some());
}

#[test]
fn leases_are_listed_in_parts() {
    let (mut leases, now) = (Leases::new(&options(10)), Instant::now());
    for holder in 1..=5 {
        leases.granted_below(&file(0), Some(below(7)));
        leases.grant(now, &file(0), &wanted(holder)).unwrap();
    }
    let first = leases.list(None, 3);
    let rest = leases.list(first.last().map(|lease| lease.id), 3);
    let holders: Vec<u64> = first.iter().chain(&rest).map(|lease| lease.holder.0).collect();
    assert_eq!((first.len(), holders), (3, vec![1, 2, 3, 4, 5]));
}
