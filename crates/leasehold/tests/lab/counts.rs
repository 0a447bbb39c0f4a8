//! Counts the calls to the origin and compares them with the table in docs/reference/costs.md.

use std::time::Duration;

use lab::{Ganesha, Guest, Lab, V3, V4_1};

use crate::stack::{self, Leasehold, between};

const READ_ALL: &str = "cd /mnt/nfs/tree && find . -type f -print0 | sort -z | xargs -0 cat | sha256sum";

/// Makes a tree at the origin with nonracy timestamps, old enough for any error of the origin's clock.
fn aged_tree(lab: &Lab, guest: &Guest) -> Leasehold {
    let served = lab.subdirectory("served");
    let serve = stack::serve(lab, &served);
    guest.mount_nfs(&serve.origin(), "/mnt/origin", V3);
    // ctime cannot be set, so the change must really be in the past.
    guest.sh(
        "cd /mnt/origin; mkdir tree; cd tree
         for d in a b c d; do mkdir $d; for f in $(seq 25); do head -c $((f * 3000)) /dev/urandom >$d/$f; done; done
         head -c 30000000 /dev/urandom >big
         sync; touch /tmp/done; while [ $(($(date +%s) - $(stat -c %Z /mnt/origin/tree/big))) -lt 5 ]; do sleep 0.2; done
         cd /; umount /mnt/origin",
    );
    serve
}

/// All calls except GETATTR, which close-to-open needs, and FSSTAT, which a mount sends and nobody caches.
fn other_than_getattr(calls: &[(String, u64)]) -> Vec<(String, u64)> {
    calls.iter().filter(|(name, _)| name != "GETATTR" && name != "FSSTAT").cloned().collect()
}

// Promise: cache-after-a-kill
#[test]
fn a_warm_read_costs_the_origin_what_close_to_open_demands() {
    let Some(lab) = Lab::enter("counts") else { return };
    let guest = lab.guest("client");
    let serve = aged_tree(&lab, &guest);
    let mut proxy = stack::patient_proxy(&lab, &serve.origin(), "3", "cache");
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    let cold = guest.sh(READ_ALL);
    let remount = || {
        guest.unmount("/mnt/nfs");
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
        guest.drop_caches();
    };
    remount();
    let (before, asked_before) = (proxy.upstream_calls(), guest.nfs3_calls());
    assert_eq!(guest.sh(READ_ALL), cold);
    let (calls, asked) = (between(&before, &proxy.upstream_calls()), guest.nfs3_calls().since(&asked_before));
    eprintln!("lab: counts: warm, the client called {asked:?}, the proxy {calls:?}");
    assert_eq!(other_than_getattr(&calls), [], "a warm read asks nothing but GETATTR");
    let opens = ["GETATTR", "ACCESS", "LOOKUP", "READDIR", "READDIRPLUS"].map(|name| asked.of(name));
    let getattrs = calls.iter().find(|(name, _)| name == "GETATTR").map_or(0, |(_, calls)| *calls);
    assert!(getattrs <= opens.iter().sum(), "{getattrs} GETATTRs for {opens:?}");
    assert!(
        asked.of("READ") > 100 && asked.of("LOOKUP") + asked.of("READDIRPLUS") > 0,
        "the client did ask us"
    );

    // A restart loses nothing. Meanwhile the attributes have expired, and the client asks for them with
    // READDIRPLUS. The proxy may answer each of those with one of its own.
    proxy.kill_and_restart();
    guest.drop_caches();
    let (before, asked_before) = (proxy.upstream_calls(), guest.nfs3_calls());
    assert_eq!(guest.sh(READ_ALL), cold);
    let (calls, asked) = (between(&before, &proxy.upstream_calls()), guest.nfs3_calls().since(&asked_before));
    eprintln!("lab: counts: after kill -9, the client called {asked:?}, the proxy {calls:?}");
    // A proxy asks once at its start what the origin's file system supports.
    let mut others = other_than_getattr(&calls);
    others.retain(|(name, _)| name != "FSINFO" && name != "PATHCONF");
    let listings = asked.of("READDIRPLUS");
    others.retain(|(name, calls)| !(name == "READDIRPLUS" && *calls <= listings));
    assert!(others.is_empty(), "and after kill -9 neither: {others:?}");
}

// Promise: remembered-rights
#[test]
fn a_second_credential_costs_access_calls_and_no_data() {
    let Some(lab) = Lab::enter("counts-credential") else { return };
    let guest = lab.guest("client");
    let serve = aged_tree(&lab, &guest);
    let proxy = stack::proxy(&lab, &serve.origin(), "cache", &["--prefetch", "0"]);
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    guest.sh(READ_ALL);
    guest.drop_caches();
    let before = proxy.upstream_calls();
    guest.sh("cd /mnt/nfs/tree; setpriv --reuid=1234 --regid=1234 --clear-groups cat a/3 b/4 >/dev/null");
    let calls = between(&before, &proxy.upstream_calls());
    eprintln!("lab: counts-credential: {calls:?}");
    let others = other_than_getattr(&calls);
    // The root, tree, a, b and the two files, once each.
    assert!(matches!(&others[..], [(name, count)] if name == "ACCESS" && *count <= 6), "{others:?}");

    guest.sh("chmod 600 /mnt/nfs/tree/c/5");
    let denied = guest.run("setpriv --reuid=1234 --regid=1234 --clear-groups cat /mnt/nfs/tree/c/5");
    assert!(!denied.ok() && denied.text.contains("Permission denied"), "{}", denied.text);
}

/// The first READ is piggybacked on the OPEN, under the current stateid, by handle and by name. `tails` and
/// `nache` test this with the kernel's server.
#[test]
fn a_first_read_comes_with_its_open_before_ganesha() {
    let Some(lab) = Lab::enter("along-ganesha") else { return };
    let ganesha = Ganesha::start(&lab);
    let content = "word ".repeat(2000);
    for name in ["one", "two"] {
        std::fs::write(ganesha.directory().join(name), &content).unwrap();
    }
    let proxy = stack::proxy_in(&lab, &ganesha.origin(), "4.2", "cache", &["--prefetch", "0"]);
    let guest = lab.guest("client");
    // Bytes of a file that changed just now are not used at a later READ, because a change within the
    // granularity of the timestamps would not show.
    let age = || ganesha.directory().join("two").metadata().unwrap().modified().unwrap().elapsed();
    lab::wait_for("files that are 5 s old", Duration::from_secs(20), || {
        age().ok().filter(|age| *age >= Duration::from_secs(5))
    });
    for (version, name) in [(V3, "one"), (V4_1, "two")] {
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", version);
        assert_eq!(guest.sh(&format!("wc -w </mnt/nfs/{name}")).trim(), "2000");
        guest.unmount("/mnt/nfs");
    }
    assert_eq!((proxy.reads(), proxy.upstream("READ")), (2, 0));
}
