//! Origins that disappear during a copy and come back.
//!
//! Promise: stable-data

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Cut, Ganesha, Guest, Knfsd, Lab, Link, Origin, Task, V3, suite};

use crate::stack::{self, Leasehold};

/// Copies a tree and a large file to the mount. `check` compares them with the originals, with an empty
/// client cache.
const COPY: &str = "set -eu; cd /mnt/nfs; cp -r /mnt/lab/tree .; cp /tmp/big big; sync; echo copied";

/// The same with the large file first.
const COPY_BIG_FIRST: &str =
    "set -eu; cd /mnt/nfs; cp /tmp/big big; cp -r /mnt/lab/tree .; sync; echo copied";

fn copying(lab: &Lab, origin: &Origin) -> (Leasehold, Guest, Task) {
    let copying = copy(lab, origin, COPY);
    asked_for(&copying.0, "CREATE", 40);
    copying
}

fn copy(lab: &Lab, origin: &Origin, script: &str) -> (Leasehold, Guest, Task) {
    let proxy = stack::proxy(lab, origin, "cache", &[]);
    let guest = lab.guest("client");
    suite::tree::provide(lab, suite::tree::Size::Large);
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    guest.sh("head -c 60000000 /dev/urandom >/tmp/big");
    let copy = guest.spawn(script);
    (proxy, guest, copy)
}

/// Waits until the copy is under way: until the origin has got more than `calls` calls of a procedure.
fn asked_for(proxy: &Leasehold, procedure: &str, calls: u64) {
    lab::wait_for("the copy to get going", Duration::from_secs(60), || {
        (proxy.upstream(procedure) > calls).then_some(())
    });
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

/// Killed during a WRITE, and then during exclusive creates.
// Promise: exclusive-creations
#[test]
fn a_copy_survives_restarts_of_ganesha() {
    let Some(lab) = Lab::enter("restart-ganesha") else { return };
    let mut ganesha = Ganesha::start(&lab);
    let (proxy, guest, copy) = copy(&lab, &ganesha.origin(), COPY_BIG_FIRST);
    asked_for(&proxy, "WRITE", 10);
    ganesha.kill();
    ganesha.restart();
    asked_for(&proxy, "CREATE", 40);
    ganesha.kill();
    take_back_a_create(ganesha.directory());
    ganesha.restart();
    check(&guest, copy);
}

/// Finishes what a kill of ganesha left undone. Ganesha makes the file of an exclusive create first and
/// stores its verifier afterwards. If it is killed between the two, it takes the file for another client's
/// (`client`: `tests/origin/ganesha.rs`; docs/reference/wire.md). This function removes only such a file.
///
/// Its times are those of its creation, and its mode is the one that ganesha sets. A finished create has the
/// verifier in its times, and then the mode that the kernel's client sets.
fn take_back_a_create(export: &Path) {
    let unfinished = |path: &PathBuf| {
        let meta = path.metadata().unwrap();
        let times = [(meta.atime(), meta.atime_nsec()), (meta.mtime(), meta.mtime_nsec())];
        let untouched = times == [(meta.ctime(), meta.ctime_nsec()); 2];
        meta.is_file() && meta.len() == 0 && untouched && meta.mode() & 0o7777 == 0o600
    };
    let mut files = Vec::new();
    let mut directories = vec![export.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let into = if entry.file_type().unwrap().is_dir() { &mut directories } else { &mut files };
            into.push(entry.path());
        }
    }
    files.retain(|path| !path.is_symlink() && unfinished(path));
    assert!(files.len() <= 1, "one create was on its way: {files:?}");
    for file in files {
        eprintln!("ganesha was killed in the middle of the create of {}", file.display());
        std::fs::remove_file(file).unwrap();
    }
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
