//! Tests that run every workload in a directory of this machine, at the smallest scale.

use super::*;
use crate::target::{Forgetting, Mounted};

const SMALL: Plan = Plan { seed: 7, scale: 0.001 };

/// Runs two passes of a workload in a new directory. Returns the names of the phases, and the operations by
/// kind.
fn two_passes(workload: &Workload) -> (Vec<String>, Vec<(String, u64)>) {
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    let target: Arc<dyn Target> = Arc::new(Mounted::new(&shared, Forgetting::Everything));
    (workload.prepare)(&SMALL, &*target).unwrap();
    let meter = Arc::new(Meter::default());
    let mut names = Vec::new();
    for pass in 0..2 {
        let local = directory.path().join(format!("local{pass}"));
        std::fs::create_dir(&local).unwrap();
        let client = || Metered::new(target.clone(), meter.clone());
        let mut run = Run {
            plan: SMALL,
            clients: (0..workload.clients).map(|_| client()).collect(),
            first_client: 0,
            beside: &*target,
            pass,
            local: &local,
            meter: meter.clone(),
            calls: None,
            phases: Vec::new(),
        };
        (workload.run)(&mut run).unwrap_or_else(|error| panic!("{}: {error}", workload.name));
        assert!(!run.phases.is_empty(), "{}", workload.name);
        names.extend(run.phases.into_iter().map(|phase| phase.name));
    }
    let counts = meter.latencies().into_iter().map(|(kind, latencies)| (kind, latencies.count)).collect();
    (names, counts)
}

#[test]
fn every_workload_runs_and_a_seed_always_does_the_same() {
    for workload in ALL {
        let (names, counts) = two_passes(workload);
        // The compiler is slow, and its input depends only on the seed, as `source` shows: run these
        // workloads only once.
        if !["andrew", "badros", "build", "lookups"].contains(&workload.name) {
            assert_eq!((names.clone(), counts.clone()), two_passes(workload), "{}", workload.name);
        }
        let (cold, warm) = names.split_at(names.len() / 2);
        assert_eq!(cold, warm, "{}", workload.name);
        if workload.name == "badros" {
            assert_eq!((cold.len(), cold[12].as_str()), (26, "small reads and writes"));
            assert_eq!(
                (cold[0].as_str(), cold[25].as_str()),
                ("making directories", "small reads and writes x 4")
            );
        }
        assert!(counts.iter().map(|(_, count)| count).sum::<u64>() >= 10, "{}: {counts:?}", workload.name);
    }
}

#[test]
fn names_are_unique_and_an_unknown_one_is_told_the_others() {
    let mut names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
    assert!(named("andrew").is_ok() && named("oltq").unwrap_err().contains("oltp"));
}

#[test]
fn scale_never_leaves_nothing() {
    let plan = Plan { seed: 1, scale: 0.01 };
    assert_eq!((plan.count(25_000, 50), plan.count(100, 10)), (250, 10));
}
