//! The lease protocol of NQNFS in a model checker: every order of events within small bounds.
//!
//! The model has one file, two clients, a server, and a network that loses, delays, reorders and repeats
//! messages. Clocks of clients fall behind, and either side crashes. In some runs the file must be created
//! first, with a lease in the same call. Clients may leave with one VACATED for all leases, and come back.
//! While the assumptions of the protocol hold, no client sees a value older than the last one acknowledged
//! to a writer. If a bound of the server is smaller than what it must cover, the checker finds an order of
//! events that violates this.
//!
//! The assumptions about the network are those of section 5 of the paper. A message arrives within `delay`
//! or never. A write is repeated until it is answered. It arrives within `delay` of its first transmission,
//! and its reply takes no longer.
//!
//! Promise: leases-with-a-term

#[path = "nqnfs/model.rs"]
mod model;

use model::{Bounds, Protocol};
use stateright::{Checker, Model};

/// Explores all states within the bounds. Panics with the order of events that violates a property.
fn proven(bounds: Bounds) -> usize {
    let checker = Protocol(bounds).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// The bounds violate the property. Returns the number of events until the violation.
fn broken(bounds: Bounds) -> usize {
    let checker = Protocol(bounds).checker().threads(2).spawn_bfs().join();
    let path = checker.discovery(model::FRESH);
    path.unwrap_or_else(|| panic!("nothing was found in {} states", checker.unique_state_count()))
        .into_actions()
        .len()
}

#[test]
fn nobody_sees_an_old_value_while_the_assumptions_hold() {
    let states = proven(Bounds::default());
    assert!(states > 10_000, "only {states} states: the bounds leave nothing to happen");
}

#[test]
fn nor_when_leases_are_renewed_and_asked_for_again() {
    proven(Bounds { ticks: 5, asks: [2, 1], writes: 1, ..Bounds::default() });
}

#[test]
fn nor_when_the_server_restarts() {
    proven(Bounds { server_crashes: 1, writes: 1, ..Bounds::default() });
}

#[test]
fn nor_when_a_client_crashes() {
    proven(Bounds { client_crashes: 1, writes: 1, ..Bounds::default() });
}

#[test]
fn clocks_that_drift_beyond_the_declared_skew_break_it() {
    broken(Bounds { clock_skew: 0, ..Bounds::default() });
    broken(Bounds { drift: 2, ..Bounds::default() });
}

#[test]
fn a_write_slack_that_is_too_small_breaks_it() {
    broken(Bounds { write_slack: 0, drift: 0, clock_skew: 0, ..Bounds::default() });
}

#[test]
fn a_restart_that_does_not_wait_for_writes_breaks_it() {
    broken(Bounds { server_crashes: 1, recovery_slack: 0, ..Bounds::default() });
}

/// The checker found this first: VACATED is the only message of the protocol that must not be executed
/// twice.
#[test]
fn a_vacated_that_is_carried_out_twice_breaks_it() {
    broken(Bounds { vacated_once: false, ticks: 3, asks: [2, 2], writes: 1, ..Bounds::default() });
}

/// The checker found this first: data read before a write of the same client must not be cached after the
/// write.
#[test]
fn an_answer_from_before_an_own_write_breaks_it() {
    broken(Bounds { own_writes_count: false, ticks: 3, asks: [2, 1], writes: 1, ..Bounds::default() });
}

#[test]
fn nor_when_the_file_is_made_with_the_lease_on_it() {
    let made = Bounds { created: true, ..Bounds::default() };
    proven(Bounds { writes: 2, ticks: 6, ..made });
    proven(Bounds { server_crashes: 1, writes: 1, ticks: 6, ..made });
}

/// The reply to a CREATE may be old. An eviction since the request may have been of the file that it
/// created.
#[test]
fn a_lease_on_what_was_made_that_outlives_its_eviction_breaks_it() {
    broken(Bounds { created: true, evictions_count: false, ..Bounds::default() });
}

#[test]
fn nor_when_clients_leave_with_one_vacated_of_everything_and_come_back() {
    let leaving = Bounds { departures: [1, 0], ticks: 3, asks: [2, 1], writes: 1, ..Bounds::default() };
    proven(leaving);
    proven(Bounds { created: true, ..leaving });
    // Long enough for a lease that was left behind to end.
    proven(Bounds { ticks: 7, asks: [1, 1], ..leaving });
}

/// The checker found this: a late VACATED for all leases gives up the leases of the client's next
/// incarnation, if that has the same name.
#[test]
fn who_comes_back_under_the_same_name_breaks_it() {
    broken(Bounds { departures: [1, 0], own_names: false, asks: [2, 1], ..Bounds::default() });
}
