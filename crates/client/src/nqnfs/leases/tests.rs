//! Tests of each rule of the module's header on its own. The simulation tests all of them together.

use super::*;

const TERM: Duration = Duration::from_secs(30);

fn file() -> Handle {
    Handle::new(&[7; 32]).unwrap()
}

struct Stage {
    leases: Leases,
    now: Instant,
}

impl Stage {
    fn new() -> Stage {
        Stage { leases: Leases::new(Margin::default()), now: Instant::now() }
    }

    fn grant(&mut self, kind: LeaseKind) -> Lease {
        let asked = self.leases.ask(self.now, &file()).unwrap();
        self.answered(asked, kind).unwrap()
    }

    fn answered(&mut self, asked: Asked, kind: LeaseKind) -> Option<Lease> {
        self.leases.answered(self.now, &file(), asked, Some(Grant { kind, term: TERM, change: 1 }))
    }

    fn wait(&mut self, time: Duration) -> Vec<Effect> {
        self.now += time;
        self.leases.tick(self.now);
        self.leases.effects()
    }

    fn held(&self) -> Option<LeaseKind> {
        self.leases.held(self.now, &file())
    }
}

#[test]
fn it_counts_from_when_it_was_asked_for() {
    let mut stage = Stage::new();
    let asked = stage.leases.ask(stage.now, &file()).unwrap();
    stage.now += TERM.saturating_sub(Duration::from_secs(1));
    assert!(stage.answered(asked, LeaseKind::Read).is_some());
    assert_eq!(stage.held(), Some(LeaseKind::Read));
    stage.now += Duration::from_millis(750);
    assert_eq!(stage.held(), None, "the margin");
    let late = stage.leases.ask(stage.now, &file()).unwrap();
    stage.now += TERM;
    assert_eq!(stage.answered(late, LeaseKind::Read), None);
}

#[test]
fn it_is_renewed_while_it_is_in_use_and_asked_back_when_it_is_not() {
    let mut stage = Stage::new();
    let lease = stage.grant(LeaseKind::Write);
    for _ in 0..10 {
        stage.leases.used(stage.now, &file());
        assert_eq!(
            stage.wait(TERM.saturating_sub(Duration::from_secs(10))),
            [Effect::Renew(file(), LeaseKind::Write)]
        );
        assert_eq!(stage.grant(LeaseKind::Write).id, lease.id);
    }
    let mut effects = Vec::new();
    for _ in 0..12 {
        effects = stage.wait(TERM.saturating_sub(Duration::from_secs(10)));
        match effects[..] {
            [Effect::Renew(..)] => drop(stage.grant(LeaseKind::Write)),
            _ => break,
        }
    }
    assert!(effects.is_empty(), "nobody uses it: {effects:?}");
    let effects = stage.wait(Duration::from_secs(5));
    assert!(matches!(effects[..], [Effect::Recall(id, ..)] if id == lease.id), "{effects:?}");
    stage.leases.returned(lease.id);
    assert_eq!(stage.leases.effects(), [Effect::Vacate(file())]);
}

#[test]
fn a_renewal_that_is_not_answered_is_tried_again_and_then_it_is_lost() {
    let mut stage = Stage::new();
    let lease = stage.grant(LeaseKind::Write);
    assert_eq!(
        stage.wait(TERM.saturating_sub(Duration::from_secs(10))),
        [Effect::Renew(file(), LeaseKind::Write)]
    );
    stage.leases.ask(stage.now, &file()).unwrap();
    stage.leases.unanswered(stage.now, &file());
    assert_eq!(stage.wait(Duration::from_secs(1)), [Effect::Renew(file(), LeaseKind::Write)]);
    stage.leases.ask(stage.now, &file()).unwrap();
    let effects = stage.wait(Duration::from_secs(5));
    assert!(matches!(effects[..], [Effect::Recall(..)]), "{effects:?}");
    assert!(stage.leases.write_begins(stage.now, &file()));
    assert_eq!(stage.wait(Duration::from_secs(5)), [Effect::Lost(lease.id, file())]);
    assert_eq!(stage.held(), None);
    // Writes under the lease are pushed late, and still recognized as pushed.
    stage.leases.unanswered(stage.now, &file());
    stage.wait(LATE_MAX * 3);
    assert!(stage.leases.write_begins(stage.now, &file()), "another is on its way since before the end");
    stage.leases.write_ended(stage.now, &file(), true);
    stage.leases.write_ended(stage.now, &file(), true);
    stage.wait(LATE_MAX.saturating_sub(Duration::from_secs(1)));
    assert!(stage.leases.write_begins(stage.now, &file()), "one was a moment ago");
    stage.leases.write_ended(stage.now, &file(), true);
    // Later than that, another client may have been let in: it is a write like any other.
    stage.wait(LATE_MAX);
    assert!(!stage.leases.write_begins(stage.now, &file()));
    stage.leases.write_ended(stage.now, &file(), false);
    assert_eq!(stage.leases.len(), 0, "and nothing is remembered");
}

#[test]
fn an_eviction_ends_it_and_whatever_was_asked_for_before() {
    let mut stage = Stage::new();
    let lease = stage.grant(LeaseKind::Read);
    let before = stage.leases.ask(stage.now, &file()).unwrap();
    stage.leases.evicted(stage.now, &file());
    stage.leases.evicted(stage.now, &file());
    assert!(matches!(stage.leases.effects()[..], [Effect::Recall(id, ..)] if id == lease.id), "once");
    assert_eq!(stage.held(), None);
    assert_eq!(stage.leases.ask(stage.now, &file()), None, "nothing is asked for until it is vacated");
    stage.leases.returned(lease.id);
    assert_eq!(stage.leases.effects(), [Effect::Vacate(file())]);
    assert_eq!(stage.answered(before, LeaseKind::Read), None, "asked for before");
    assert_eq!(stage.leases.ask(stage.now, &file()), None);
    stage.leases.vacated(&file());
    assert_ne!(stage.grant(LeaseKind::Read).id, lease.id);
}

/// VACATED lets other clients in, so it must not arrive before the last byte.
#[test]
fn nothing_is_vacated_while_it_is_pushed() {
    let mut stage = Stage::new();
    let lease = stage.grant(LeaseKind::Write);
    stage.leases.evicted(stage.now, &file());
    assert!(stage.leases.write_begins(stage.now, &file()));
    assert!(matches!(stage.leases.effects()[..], [Effect::Recall(..)]));
    stage.leases.returned(lease.id);
    stage.leases.evicted(stage.now, &file());
    assert_eq!(stage.leases.effects(), [], "the layer above had no more time, and the write is on its way");
    stage.leases.write_ended(stage.now, &file(), true);
    stage.leases.evicted(stage.now, &file());
    assert_eq!(stage.leases.effects(), [], "there may be more");
    stage.now += LATE_MAX;
    stage.leases.evicted(stage.now, &file());
    assert_eq!(stage.leases.effects(), [Effect::Vacate(file())]);
}

#[test]
fn an_eviction_of_what_is_not_held_is_answered_at_once_and_nothing_is_kept() {
    let mut stage = Stage::new();
    stage.leases.evicted(stage.now, &file());
    assert_eq!(stage.leases.effects(), [Effect::Vacate(file())]);
    stage.leases.evicted(stage.now, &file());
    assert_eq!(stage.leases.effects(), []);
    stage.leases.vacated(&file());
    assert_eq!(stage.leases.len(), 0);
    assert_eq!(stage.leases.next_tick(), None);
}

#[test]
fn the_late_answer_to_a_create_grants_no_lease_that_has_ended() {
    let lost = |stage: &mut Stage, _| stage.leases.expired(&file());
    let returned = |stage: &mut Stage, id| {
        stage.leases.returned(id);
        stage.leases.vacated(&file());
    };
    let ends: [fn(&mut Stage, LeaseId); 2] = [lost, returned];
    for end in ends {
        let mut stage = Stage::new();
        let create = stage.leases.ask_unknown(stage.now);
        let lease = stage.grant(LeaseKind::Read);
        end(&mut stage, lease.id);
        assert_eq!(stage.leases.len(), 0, "nothing is kept of the file");
        let grant = Some(Grant { kind: LeaseKind::Write, term: TERM, change: 1 });
        assert_eq!(stage.leases.answered_unknown(stage.now, &file(), create, grant), None);
        assert_eq!(stage.held(), None);
        let other = stage.leases.ask_unknown(stage.now);
        assert!(stage.leases.answered_unknown(stage.now, &file(), other, grant).is_some());
    }
}
