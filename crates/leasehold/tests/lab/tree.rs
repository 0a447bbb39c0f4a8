//! What it costs to build up a source tree through the proxy: time, and calls for each file.

use std::time::Instant;

use lab::{Lab, V3, V4_0, V4_2, suite};

use crate::stack::{self, between};

/// Files and directories in the tree.
const OBJECTS: u64 = 560;

#[test]
fn a_tree_is_built_up_with_few_calls_for_each_file() {
    let Some(lab) = Lab::enter("tree") else { return };
    suite::tree::provide(&lab);
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    for (name, options) in [("v3", V3), ("v40", V4_0), ("v42", V4_2)] {
        guest.mount_nfs(&serve.origin(), "/mnt/nfs", options);
        let begun = Instant::now();
        guest.sh(&format!("cp -a /mnt/lab/tree /mnt/nfs/direct-{name} && sync"));
        eprintln!("lab: tree: {name} direct {:.1} s", begun.elapsed().as_secs_f64());
        guest.unmount("/mnt/nfs");
    }
    for vers in ["3", "4.2"] {
        let proxy = stack::proxy_in(&lab, &serve.origin(), vers, &format!("cache-{vers}"), &[]);
        for (name, options) in [("v3", V3), ("v40", V4_0), ("v42", V4_2)] {
            guest.mount_nfs(&proxy.origin(), "/mnt/nfs", options);
            let before = proxy.upstream_calls();
            let begun = Instant::now();
            guest.sh(&format!("cp -a /mnt/lab/tree /mnt/nfs/through-{vers}-{name} && sync"));
            let seconds = begun.elapsed().as_secs_f64();
            let calls = between(&before, &proxy.upstream_calls());
            let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
            eprintln!(
                "lab: tree: {name} through the proxy over {vers} {seconds:.1} s, {:.1} calls for each: {calls:?}",
                all as f64 / OBJECTS as f64
            );
            guest.unmount("/mnt/nfs");
        }
    }
}
