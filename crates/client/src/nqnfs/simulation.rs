//! A simulation of clients, a server and a network. It runs the real state machines of both sides
//! ([`super::leases`] and the arbiter's) under loss, repetition, reordering, cuts, slow clocks and crashes.
//! What all clients saw is checked against one register per file.
//!
//! A seed determines a run completely. `NQNFS_SEED=17 cargo test -p client simulation -- --nocapture` replays
//! one run and prints its events. The same seeds also find a server limit that is too small.
//!
//! Promise: leases-with-a-term

mod checker;
mod faults;
mod host;
mod network;
mod server;
mod world;

use faults::Faults;
use world::{Outcome, World};

/// Number of runs in a test.
const SEEDS: u64 = 4000;
/// Number of runs within which a limit that is too small must be found.
const SEEDS_TO_FIND: u64 = 1000;
/// Longest time that a client waits before it asks again, plus the time of a message, in milliseconds.
const ASKED_AGAIN: u64 = 3000;

fn run(seed: u64, faults: Faults) -> Result<Outcome, String> {
    World::new(seed, faults).run()
}

/// Runs all seeds on two threads. Each thread stops at its first failure.
fn runs(seeds: u64, faults: fn(u64) -> Faults) -> Result<Vec<Outcome>, String> {
    let half = |half: u64| {
        let each = move |seed| run(seed, faults(seed)).map_err(|fault| format!("seed {seed}: {fault}"));
        std::thread::spawn(move || (half..seeds).step_by(2).map(each).collect::<Result<Vec<_>, _>>())
    };
    let halves: Vec<_> = (0..2).map(half).collect();
    let joined = halves.into_iter().map(|half| half.join().unwrap_or_else(|_| Err("a panic".into())));
    Ok(joined.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Replays the run of one seed and prints its events, if the environment variable names a seed.
fn is_told(variable: &str, faults: fn(u64) -> Faults) -> bool {
    let seed = std::env::var(variable).ok().and_then(|seed| seed.parse().ok());
    if let Some(seed) = seed {
        println!("{:?}", run(seed, Faults { tell: true, ..faults(seed) }));
    }
    seed.is_some()
}

/// Does some seed fail with a limit that is too small?
fn is_found(faults: fn(u64) -> Faults) -> bool {
    runs(SEEDS_TO_FIND, faults).is_err()
}

#[test]
fn what_everybody_sees_is_one_register() {
    if is_told("NQNFS_SEED", Faults::of) {
        return;
    }
    let outcomes = runs(SEEDS, Faults::of).unwrap_or_else(|fault| panic!("{fault}"));
    let hits: u64 = outcomes.iter().map(|outcome| outcome.hits).sum();
    let delayed: u64 = outcomes.iter().map(|outcome| outcome.delayed).sum();
    println!("{SEEDS} runs: {hits} reads answered from caches, {delayed} writes under leases");
    assert!(hits > 5 * SEEDS, "only {hits} reads were answered from caches");
    assert!(delayed > 5 * SEEDS, "only {delayed} writes under leases");
}

/// The same, while files are created with a lease in one call. Clients also leave with one VACATED of
/// everything, and come back. `NQNFS_BUSY_SEED=17` replays one of these runs.
#[test]
fn nor_does_it_matter_that_files_are_made_and_clients_come_and_go() {
    if is_told("NQNFS_BUSY_SEED", Faults::busy) {
        return;
    }
    let outcomes = runs(SEEDS, Faults::busy).unwrap_or_else(|fault| panic!("{fault}"));
    let made: u64 = outcomes.iter().map(|outcome| outcome.made).sum();
    let departures: u64 = outcomes.iter().map(|outcome| outcome.departures).sum();
    println!("{SEEDS} runs: {made} files made with a lease, {departures} departures");
    assert!(made > SEEDS && departures > SEEDS, "{made} files made with a lease, {departures} departures");
}

/// The simulation found this bug. A push was in flight when its client crashed. It arrived after the client's
/// next incarnation had read the file, and was taken for a write of that incarnation. A VACATED of everything
/// may come as late. So each incarnation has its own name. These clients come back at once, over a slow
/// network. `NQNFS_HASTY_SEED=934` replays one of these runs.
#[test]
fn what_one_life_has_said_last_is_nothing_to_the_next() {
    if is_told("NQNFS_HASTY_SEED", Faults::hasty) {
        return;
    }
    let outcomes = runs(SEEDS_TO_FIND, Faults::hasty).unwrap_or_else(|fault| panic!("{fault}"));
    let departures: u64 = outcomes.iter().map(|outcome| outcome.departures).sum();
    assert!(departures > 2 * SEEDS_TO_FIND, "{departures} departures");
}

/// Tests the checker: it finds clocks that are slower than the server assumes, whatever else happens.
#[test]
fn clocks_beyond_the_declared_skew_are_found() {
    assert!(is_found(|seed| Faults { slowest_clock: 0.5, ..Faults::of(seed) }));
}

/// Our clients stop well before the end of a lease, which hides limits that are too small. Clients that do
/// not stop early reveal them.
#[test]
fn a_clock_skew_that_is_too_small_is_found() {
    runs(SEEDS_TO_FIND, Faults::slow).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(is_found(|seed| Faults { clock_skew_ms: 0, ..Faults::slow(seed) }));
}

/// Tests a server that does not wait for writes in flight.
#[test]
fn a_write_slack_that_is_too_small_is_found() {
    runs(SEEDS_TO_FIND, Faults::late).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(is_found(|seed| Faults { write_slack_ms: 0, ..Faults::late(seed) }));
}

/// The simulation found this bug. A client had lost a write lease a minute before. During recovery, the
/// server served the client's next write, under no lease, as if it were pushed. Another client still relied
/// on a lease from before the crash.
#[test]
fn a_write_long_after_a_lost_lease_is_no_push() {
    let seed = 1229;
    run(seed, Faults::of(seed)).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
}

/// The simulation found this bug. An EVICTED came after the lease had ended, and the client answered with
/// VACATED while its last push was in flight. The push then arrived after the next client's write.
#[test]
fn nothing_is_vacated_before_a_late_push_has_come() {
    let seed = 2337;
    run(seed, Faults::of(seed)).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
}

/// The same faults, with a server that serves at once after a crash.
#[test]
fn a_restart_without_recovery_is_found() {
    assert!(is_found(|seed| Faults { recovers: false, ..Faults::of(seed) }));
}

/// Section 4.1: the server is killed while ten clients write under leases. In the end, all acknowledged
/// writes are there, in order. The storm ends when the paper's rules say. That is the longest term, the skew
/// of clocks and `write_slack` after the restart, or `write_slack` after the last write.
#[test]
fn a_storm_of_ten_writers_loses_nothing_and_is_over_in_time() {
    let outcomes = runs(200, Faults::storm).unwrap_or_else(|fault| panic!("{fault}"));
    for (seed, outcome) in outcomes.iter().enumerate() {
        let (Some(restarted), Some(recovered), Some(served)) =
            (outcome.restarted, outcome.recovered, outcome.served)
        else {
            panic!("run {seed} had no storm: {outcome:?}")
        };
        let terms = restarted + 60_000 + 3000;
        assert!(recovered >= terms + 8000, "run {seed}: {outcome:?}");
        assert!(served >= recovered && served < recovered + ASKED_AGAIN, "run {seed}: {outcome:?}");
        assert!(outcome.delayed > 20 && outcome.asked_meanwhile > 20, "run {seed}: {outcome:?}");
    }
    let longest = outcomes.iter().filter_map(|outcome| Some(outcome.served? - outcome.restarted?)).max();
    println!("the longest storm: {longest:?} ms");
}
