//! A lease for writing on a directory, in a model checker: every order of events within small bounds.
//!
//! The holder of the lease answers its users' creations, removals and renames at once, keeps them in a
//! journal, and sends them to the server in their order. Another client that looks, or changes a name, waits
//! until the holder has sent all of them and returned the lease.
//!
//! The network loses, repeats and reorders messages. The server dies and comes back, with or without the last
//! change that was not durable. The holder dies and comes back with its journal. The server may revoke the
//! lease. The checker shows which rules the protocol needs: without one of them it finds an order of events
//! that loses a change, does one twice, or shows an old name.
//!
//! Nothing in the product speaks this protocol yet.

#[path = "names/model.rs"]
mod model;
#[path = "names/state.rs"]
mod state;

use model::{Bounds, Protocol};
use stateright::{Checker, HasDiscoveries, Model};

/// Explores all states within the bounds. Panics with the order of events that violates a property.
fn proven(bounds: Bounds) -> usize {
    let checker = Protocol(bounds).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// The rules violate this property.
fn broken(property: &'static str, bounds: Bounds) {
    let one = HasDiscoveries::AnyOf([property].into());
    let checker = Protocol(bounds).checker().threads(2).finish_when(one).spawn_bfs().join();
    let found = checker.discovery(property).is_some();
    assert!(found, "nothing was found in {} states", checker.unique_state_count());
}

#[test]
fn changes_are_done_once_in_their_order_and_seen_by_who_asks_later() {
    let states = proven(Bounds { changes: 4, looks: 2, ..Bounds::default() });
    assert!(states > 10_000, "only {states} states: the bounds leave nothing to happen");
}

#[test]
fn also_when_the_server_restarts() {
    proven(Bounds { server_crashes: 2, ..Bounds::default() });
    proven(Bounds { server_crashes: 1, changes: 4, ..Bounds::default() });
}

#[test]
fn also_when_the_holder_restarts() {
    proven(Bounds { holder_crashes: 2, ..Bounds::default() });
    proven(Bounds { holder_crashes: 1, server_crashes: 1, ..Bounds::default() });
}

#[test]
fn also_when_the_lease_is_revoked_and_others_change_the_names() {
    let revoking = Bounds { revokes: true, others: 1, changes: 2, ..Bounds::default() };
    proven(revoking);
    proven(Bounds { server_crashes: 1, ..revoking });
    proven(Bounds { holder_crashes: 1, ..revoking });
}

/// Sending again what was not acknowledged takes a rename for a new one: the first file is lost.
#[test]
fn without_a_comparison_a_restart_breaks_it() {
    broken(model::ORDER, Bounds { compares: false, server_crashes: 1, ..Bounds::default() });
    broken(model::ORDER, Bounds { compares: false, holder_crashes: 1, ..Bounds::default() });
}

/// The names alone do not tell which changes are done.
#[test]
fn without_tags_on_the_files_a_restart_breaks_it() {
    broken(
        model::ORDER,
        Bounds { tags: false, server_crashes: 1, changes: 4, batch: 4, ..Bounds::default() },
    );
}

/// The checker found this first: the names that the holder sees may be gone after the next crash.
#[test]
fn a_comparison_with_what_is_not_durable_breaks_it() {
    broken(model::KEPT, Bounds { durable: false, holder_crashes: 1, server_crashes: 1, ..Bounds::default() });
}

/// The lease may be gone, and another client may have changed the names.
#[test]
fn a_comparison_without_the_lease_breaks_it() {
    let rules = Bounds { checks: false, holder_crashes: 1, revokes: true, others: 1, ..Bounds::default() };
    broken(model::ORDER, rules);
}

/// Changes of the session before may be done after the comparison.
#[test]
fn a_session_that_goes_on_beside_the_next_one_breaks_it() {
    broken(model::ORDER, Bounds { ends: false, holder_crashes: 1, ..Bounds::default() });
}

#[test]
fn changes_under_a_lease_that_was_revoked_break_it() {
    broken(model::ORDER, Bounds { fences: false, revokes: true, others: 1, ..Bounds::default() });
}

#[test]
fn a_lease_that_is_returned_before_the_acknowledgements_breaks_it() {
    broken(model::FRESH, Bounds { waits: false, ..Bounds::default() });
}

#[test]
fn a_look_in_the_grace_period_breaks_it() {
    broken(model::FRESH, Bounds { grace: false, server_crashes: 1, ..Bounds::default() });
}
