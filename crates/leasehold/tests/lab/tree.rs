//! What it costs to build up a source tree through the proxy: time, and calls for each file.

use std::time::Instant;

use lab::{Guest, Lab, Origin, V4_0, V4_2, suite};

use crate::stack::{self, Leasehold, between};

/// What is done, one after the other.
const STEPS: [(&str, &str); 6] = [
    ("copy", "cp -a /mnt/lab/tree tree"),
    ("check", "echo 3 >/proc/sys/vm/drop_caches; cd tree && sha256sum --quiet -c /mnt/lab/tree.sha256"),
    ("walk", "find tree -type f -printf '%P %s %T@\\n' | sort >/dev/null"),
    ("pack", "tar cf tree.tar tree"),
    ("unpack", "mkdir unpacked; tar xf tree.tar -C unpacked"),
    ("remove", "rm -r tree unpacked tree.tar"),
];

fn steps(guest: &Guest, origin: &Origin, options: &str, proxy: Option<&Leasehold>) {
    guest.mount_nfs(origin, "/mnt/nfs", options);
    for (name, script) in STEPS {
        let before = proxy.map(Leasehold::upstream_calls).unwrap_or_default();
        let begun = Instant::now();
        guest.sh(&format!("cd /mnt/nfs; {script}"));
        let seconds = begun.elapsed().as_secs_f64();
        let calls = proxy.map(|proxy| between(&before, &proxy.upstream_calls())).unwrap_or_default();
        eprintln!("lab: tree: {name} {seconds:.1} s {calls:?}");
    }
    guest.unmount("/mnt/nfs");
}

#[test]
fn a_tree_is_built_up_with_few_calls_for_each_file() {
    let Some(lab) = Lab::enter("tree") else { return };
    suite::tree::provide(&lab);
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &[]);
    for (name, options) in [("4.0", V4_0), ("4.2", V4_2)] {
        eprintln!("lab: tree: {name} on serve");
        steps(&guest, &serve.origin(), options, None);
        eprintln!("lab: tree: {name} through the proxy");
        steps(&guest, &proxy.origin(), options, Some(&proxy));
    }
}
