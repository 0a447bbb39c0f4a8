//! Origins that go away in the middle of a copy, and come back.

use std::time::Duration;

use lab::{Cut, Ganesha, Guest, Knfsd, Lab, Link, Origin, Task, V3, suite};

use crate::stack::{self, Leasehold};

/// Copies a tree and a large file in, then holds them against the originals, with nothing in the client's cache.
const COPY: &str = "set -eu; cd /mnt/nfs; cp -r /mnt/lab/tree .; cp /tmp/big big; sync; echo copied";

/// The same, the large file first.
const COPY_BIG_FIRST: &str =
    "set -eu; cd /mnt/nfs; cp /tmp/big big; cp -r /mnt/lab/tree .; sync; echo copied";

fn copying(lab: &Lab, origin: &Origin) -> (Leasehold, Guest, Task) {
    copying_until(lab, origin, COPY, ("CREATE", 40))
}

/// Goes on once the origin has been asked this more often than that.
fn copying_until(
    lab: &Lab,
    origin: &Origin,
    script: &str,
    (procedure, calls): (&str, u64),
) -> (Leasehold, Guest, Task) {
    let proxy = stack::proxy(lab, origin, "cache", &[]);
    let guest = lab.guest("client");
    suite::tree::provide(lab);
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    guest.sh("head -c 60000000 /dev/urandom >/tmp/big");
    let copy = guest.spawn(script);
    // In the middle of it.
    lab::wait_for("the copy to get going", Duration::from_secs(60), || {
        (proxy.upstream(procedure) > calls).then_some(())
    });
    (proxy, guest, copy)
}

fn check(guest: &Guest, copy: Task) {
    let output = copy.wait(Duration::from_secs(180));
    assert_eq!((output.text.as_str(), output.code), ("copied\n", 0));
    guest.drop_caches();
    guest.sh("diff -r /mnt/lab/tree /mnt/nfs/tree && cmp /tmp/big /mnt/nfs/big");
}

#[test]
fn a_copy_survives_an_origin_cut_off_for_30_seconds() {
    let Some(lab) = Lab::enter("cut") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let link = Link::to(&lab, &serve.origin());
    let (_proxy, guest, copy) = copying(&lab, &link.origin());
    link.cut(Cut::BlackHole);
    assert!(copy.ended_within(Duration::from_secs(30)).is_none(), "there is no way to the origin");
    link.restore();
    check(&guest, copy);
}

#[test]
fn a_copy_survives_kills_of_serve() {
    let Some(lab) = Lab::enter("restart-serve") else { return };
    let mut serve = stack::serve(&lab, &lab.subdirectory("served"));
    let (_proxy, guest, copy) = copying(&lab, &serve.origin());
    for _ in 0..3 {
        serve.kill_and_restart();
        std::thread::sleep(Duration::from_millis(700)); // the next kill comes in the middle again
    }
    check(&guest, copy);
}

#[test]
fn a_copy_survives_a_restart_of_ganesha() {
    let Some(lab) = Lab::enter("restart-ganesha") else { return };
    let mut ganesha = Ganesha::start(&lab);
    // It is killed in the middle of a WRITE, not of a CREATE: an exclusive one, as cp makes, may leave a file without the
    // verifier, and is then answered with EEXIST when it comes again. Nobody could tell that from another client's file.
    let (_proxy, guest, copy) = copying_until(&lab, &ganesha.origin(), COPY_BIG_FIRST, ("WRITE", 10));
    ganesha.kill();
    ganesha.restart();
    check(&guest, copy);
}

#[test]
fn a_copy_survives_a_restart_of_knfsd() {
    let Some(lab) = Lab::enter("restart-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    let (_proxy, guest, copy) = copying(&lab, &knfsd.origin());
    knfsd.stop_service();
    knfsd.start_service();
    check(&guest, copy);
}
