//! Clients, a server and a network, simulated: the real machines of both sides ([`super::leases`] and the arbiter's) under
//! loss, repetition, reordering, slow clocks and crashes, and what everybody saw held against one register per file.
//!
//! Each run is made of a seed alone. `NQNFS_SEED=17 cargo test -p client simulation -- --nocapture` plays one again and
//! tells what happened.

mod checker;
mod host;
mod network;
mod server;
mod world;

use world::{Faults, World};

/// Runs in the test run.
const SEEDS: u64 = 1000;
/// Seeds that once found a fault.
const FOUND: [u64; 0] = [];

fn run(seed: u64, faults: Faults) -> Result<u64, String> {
    World::new(seed, faults).run()
}

/// All seeds on two threads; the first that fails.
fn first_failure(seeds: u64, faults: fn(u64) -> Faults) -> Result<u64, String> {
    let halves: Vec<_> = (0..2)
        .map(|half| {
            std::thread::spawn(move || {
                let mut seen = 0;
                for seed in (half..seeds).step_by(2) {
                    seen += run(seed, faults(seed)).map_err(|fault| format!("seed {seed}: {fault}"))?;
                }
                Ok(seen)
            })
        })
        .collect();
    let results: Vec<Result<u64, String>> = halves
        .into_iter()
        .map(|half| half.join().unwrap_or_else(|_| Err("a run ended with a panic".into())))
        .collect();
    results.into_iter().sum()
}

#[test]
fn what_everybody_sees_is_one_register() {
    if let Some(seed) = std::env::var("NQNFS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let mut faults = Faults::of(seed);
        faults.tell = true;
        println!("{:?}", run(seed, faults));
        return;
    }
    for seed in FOUND {
        run(seed, Faults::of(seed)).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    let hits = first_failure(SEEDS, Faults::of).unwrap_or_else(|fault| panic!("{fault}"));
    assert!(hits > SEEDS, "only {hits} reads were answered from caches");
}

/// The check checks: clocks that are slower than the server believes are found.
#[test]
fn clocks_beyond_the_declared_skew_are_found() {
    let faults = |seed| Faults { slowest_clock: 0.3, lost_of: 0, ..Faults::of(seed) };
    assert!(first_failure(400, faults).is_err());
}
