//! The members in a model checker: every order of events within small bounds.
//!
//! The model has the machines themselves ([`cluster::Member`]), the store, the calls in flight, and the
//! servers that run at each member. A tick of a clock is one nanosecond. The term is two ticks and the margin
//! is one. The time between two beats rounds to zero, so a member may send at any time. How long it waits is
//! a choice.
//!
//! These are choices in each state:
//!
//! - Time passes: on all clocks, or on those of some members as long as [`Times::patience`] allows that.
//! - A member sends, the store carries a call out, the answer arrives.
//! - A caller gets no answer. The store has carried the call out, does it later, or never does it.
//! - A member is killed and starts again, in its place or in another one.
//! - A member is told to drain, to take part again, or to leave. A server that is not ordered any more stops
//!   at any later time.
//!
//! A server that is ordered starts at once, and it answers until the margin after the end of its term. To
//! start it later, or to stop it earlier, is safer.
//!
//! Each count of events has a bound ([`Bounds`]), because beats, revisions and moments grow for ever. A
//! member sends within a tick just before the store carries the call out, or just before the next tick. An
//! answer comes just after the store has carried the call out, or just after a tick. Other orders within one
//! tick look the same to the other members. The exception is a kill or a command after the member has sent
//! and before the store has carried the call out: the model has it one tick later.
//!
//! Most checks begin with the first member as the holder of all servers, as seen by all members.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "model/bounds.rs"]
mod bounds;
#[path = "model/state.rs"]
mod state;
#[path = "model/world.rs"]
mod world;

use std::time::Instant;

use bounds::{Bounds, DRIFT, Start, TIMES};
use cluster::{Moment, Times};
use stateright::{Checker, HasDiscoveries, Model};
use world::{EPOCHS, FENCED, GIVEN, ONE, World};

/// Explores all states within the bounds. Panics with the order of events that violates a property, or if no
/// order of events reaches what is expected.
fn proven(name: &str, expected: &'static [&'static str], bounds: Bounds) {
    let begin = Instant::now();
    let checker = World(bounds).checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    eprintln!("{name}: {states} states in {:.1} s", begin.elapsed().as_secs_f64());
    [ONE, EPOCHS].into_iter().for_each(|property| checker.assert_no_discovery(property));
    for property in expected {
        checker.assert_any_discovery(property);
    }
}

/// The bounds violate the safety property.
fn broken(name: &str, bounds: Bounds) {
    let checker = World(bounds).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(ONE).unwrap_or_else(|| panic!("{name}: nothing found in {states} states"));
    eprintln!("{name}: found in {states} states: {:?}", path.into_actions());
}

#[test]
fn one_member_answers_although_answers_are_late() {
    proven("late answers", &[FENCED], Bounds::default());
    proven(
        "from nothing",
        &[],
        Bounds { start: Start::Empty, sends: &[3, 3], ticks: 3, ..Bounds::default() },
    );
}

#[test]
fn nor_do_calls_without_an_answer_harm() {
    proven("no answer", &[FENCED], Bounds { unknown: 1, ..Bounds::default() });
    // The holder learns from a later answer that its beat was carried out.
    let found_later = Bounds { unknown: 1, sends: &[2, 3], ticks: 3, ..Bounds::default() };
    proven("found later", &[FENCED], found_later);
}

#[test]
fn nor_do_clocks_that_differ_as_declared() {
    let drift = Bounds { times: DRIFT, skew: 1, ticks: 5, ..Bounds::default() };
    proven("drift", &[FENCED], Bounds { sends: &[1, 2], ..drift });
}

#[test]
fn nor_do_members_that_are_killed_and_start_again() {
    proven("killed", &[FENCED], Bounds { kills: 1, sends: &[1, 2], ..Bounds::default() });
    proven("killed, other place", &[FENCED], Bounds { moves: 1, sends: &[1, 2], ..Bounds::default() });
    proven("killed first", &[], Bounds { kills: 1, sends: &[3, 1], ticks: 3, ..Bounds::default() });
    proven("moved first", &[], Bounds { moves: 1, sends: &[3, 1], ticks: 3, ..Bounds::default() });
}

#[test]
fn nor_does_a_second_member_of_the_same_name() {
    let same = Bounds { start: Start::SameName, sends: &[2, 2], ..Bounds::default() };
    proven("same name", &[FENCED], Bounds { unknown: 1, ..same });
}

#[test]
fn nor_do_servers_that_are_given_away() {
    // The first transaction says that the member drains, and the second one releases the server.
    let given = Bounds { sends: &[3, 2], ticks: 1, ..Bounds::default() };
    proven("drained", &[GIVEN], Bounds { drains: 1, ..given });
    proven("drained, and not", &[GIVEN], Bounds { drains: 2, sends: &[2, 2], ..given });
    proven("left", &[GIVEN], Bounds { leaves: 1, ..given });
    proven(
        "drained and fenced",
        &[FENCED, GIVEN],
        Bounds { drains: 1, sends: &[2, 2], ticks: 3, ..Bounds::default() },
    );
    let balanced = Times { settle: Moment::ZERO, ..TIMES };
    proven("balanced", &[FENCED], Bounds { servers: 2, times: balanced, ticks: 3, ..Bounds::default() });
}

/// Two members race for the server of one that is silent.
#[test]
fn nor_do_three_members() {
    proven("three members", &[FENCED], Bounds { sends: &[0, 2, 2], ticks: 3, ..Bounds::default() });
}

#[test]
fn bounds_that_are_too_small_are_found_out() {
    let bounds = Bounds::default();
    broken("stops late", Bounds { late: 2, ..bounds });
    broken("no margin", Bounds { times: Times { margin: Moment::ZERO, ..TIMES }, ..bounds });
    broken("drift that nobody allows for", Bounds { skew: 1, ticks: 5, ..bounds });
    broken("more drift than declared", Bounds { times: DRIFT, skew: 2, ticks: 6, ..bounds });
}

#[test]
fn a_server_that_was_reported_as_stopped_and_runs_is_found_out() {
    broken(
        "runs although it stopped",
        Bounds { lies: true, drains: 1, sends: &[2, 2], ticks: 2, ..Bounds::default() },
    );
}
