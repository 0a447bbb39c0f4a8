//! The cost of making a source tree through the proxy: time, and calls for each file.

use std::time::Instant;

use lab::{Guest, Lab, Origin, V4_2, suite};

use crate::stack::{self, between};

fn copy(guest: &Guest, origin: &Origin, to: &str) -> f64 {
    guest.mount_nfs(origin, "/mnt/nfs", V4_2);
    let begun = Instant::now();
    guest.sh(&format!("cp -a /mnt/lab/tree /mnt/nfs/{to}"));
    let seconds = begun.elapsed().as_secs_f64();
    guest.unmount("/mnt/nfs");
    seconds
}

#[test]
fn a_tree_is_copied_with_no_more_calls_than_the_client_makes() {
    let Some(lab) = Lab::enter("tree") else { return };
    suite::tree::provide(&lab, suite::tree::Size::Large);
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    let direct = copy(&guest, &serve.origin(), "direct");
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &[]);
    let before = proxy.upstream_calls();
    let through = copy(&guest, &proxy.origin(), "through");
    let calls = between(&before, &proxy.upstream_calls());
    let count = guest.sh("find /mnt/lab/tree | wc -l; find /mnt/lab/tree -type f | wc -l");
    let (objects, files) = count.trim().split_once('\n').unwrap();
    let [objects, files] = [objects, files].map(|number| number.parse::<u64>().unwrap());
    eprintln!(
        "lab: tree: {objects} objects: {direct:.1} s on serve, {through:.1} s through the proxy: {calls:?}"
    );
    let of = |name: &str| calls.iter().find(|(other, _)| other == name).map_or(0, |(_, calls)| *calls);
    assert_eq!(of("OPEN"), files);
    // For each file the client sets owner, mode and times, and the proxy passes on no more than that. A file
    // with content costs one or two WRITEs, and there is an occasional query.
    assert!(of("SETATTR") <= 3 * objects + objects / 10, "{calls:?}");
    let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
    assert!(all <= 6 * objects, "{all} calls for {objects} objects: {calls:?}");
}
