//! Nache's Figures 15 to 17 (2007, section 6) at small scale. A source tree is at the origin, and each
//! client keeps its objects locally. One client of the proxy builds, then another, then two at once, then
//! four, two of them new. Files that the proxy has cost the origin nothing again. Neither do files that do
//! not exist: the compiler looks for each header beside the source first, and the proxy has leases on the
//! directories.
//!
//! The clients are kernels (4.1) in guests. A shell loop runs the C compiler over the lab's tree of 25
//! modules and 217 headers.
//!
//! Promise: directory-leases

use std::time::Duration;

use lab::{Guest, Lab, V4_1, suite};

use crate::stack::{self, Leasehold, between};

const BUILD: &str = "rm -rf /tmp/objects; mkdir /tmp/objects; cd /mnt/nfs/tree
    for source in src/*.c; do gcc -O0 -Iinclude -c -o /tmp/objects/$(basename $source .c).o $source; done
    gcc -o /tmp/objects/program /tmp/objects/*.o; [ $(/tmp/objects/program) = $(cat ANSWER) ]";

/// Builds on these guests, with empty caches of their own. Returns the calls to the origin: OPENs, and all
/// others.
fn build(proxy: &Leasehold, guests: &[&Guest]) -> (u64, u64) {
    guests.iter().for_each(|guest| guest.drop_caches());
    let before = proxy.upstream_calls();
    let running: Vec<_> = guests.iter().map(|guest| guest.spawn(BUILD)).collect();
    for task in running {
        let output = task.wait(Duration::from_secs(150));
        assert!(output.ok(), "{}", output.tail());
    }
    let mut calls = between(&before, &proxy.upstream_calls());
    calls.retain(|(operation, _)| operation != "SEQUENCE");
    eprintln!("lab: builds: {} at once: {calls:?}", guests.len());
    let count = |opens: bool| {
        let counted = calls.iter().filter(|(operation, _)| (operation == "OPEN") == opens);
        counted.map(|(_, count)| count).sum()
    };
    (count(true), count(false))
}

#[test]
fn further_clients_build_at_no_cost_to_the_origin() {
    let Some(lab) = Lab::enter("builds") else { return };
    let served = lab.subdirectory("served");
    suite::tree::generate(&served.join("tree"), suite::tree::Size::Large).unwrap();
    let serve = stack::serve(&lab, &served);
    let proxy = stack::patient_proxy(&lab, &serve.origin(), "4.2", "cache");
    let guests = ["one", "two", "three", "four"].map(|name| lab.guest(name));
    for guest in &guests {
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V4_1);
    }
    let cold = build(&proxy, &[&guests[0]]);
    let second = build(&proxy, &[&guests[1]]);
    let both = build(&proxy, &[&guests[0], &guests[1]]);
    let [one, two, three, four] = &guests;
    let all = build(&proxy, &[one, two, three, four]);
    eprintln!(
        "lab: builds: OPENs and other calls: cold {cold:?}, the second client {second:?}, both again {both:?}, \
         four at once {all:?}"
    );
    assert!(cold.0 + cold.1 > 200, "{cold:?}");
    // No OPENs at all. Access rights expire with time, independent of the number of clients.
    assert!(second.0 == 0 && second.1 <= 5, "{second:?}");
    assert!(both.0 == 0 && both.1 <= 5, "{both:?}");
    assert!(all.0 == 0 && all.1 <= 5, "{all:?}");
}
