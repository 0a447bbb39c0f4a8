//! The calls that each operation costs at the origin: docs/reference/costs.md, seen through the
//! kernel.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;

use crate::setting::{Setting, VERSIONS, may_mount};

/// Attribute timeouts longer than any test.
const LONG: &str = "actimeo=3600";

// Promise: opens-through-a-mount
#[test]
fn an_open_over_v3_is_one_getattr_and_a_stat_within_the_timeout_is_nothing() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting(&format!("vers=3&{LONG}"));
    fs::create_dir_all(setting.there("a/b")).unwrap();
    fs::write(setting.there("a/b/file"), b"content").unwrap();
    // The first reads must fetch names and rights. They also see a racy state, which may change once more
    // unseen.
    super::files::wait_until(|| {
        let (asked, text) = setting.counted(|| fs::read(setting.at("a/b/file")).unwrap());
        assert_eq!(text, b"content");
        asked == [("GETATTR", 1)]
    });
    for _ in 0..3 {
        let (asked, file) = setting.counted(|| File::open(setting.at("a/b/file")).unwrap());
        assert_eq!(asked, [("GETATTR", 1)], "an open");
        let (asked, ()) = setting.counted(|| {
            let mut bytes = [0; 7];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            drop(file);
        });
        assert_eq!(asked, [], "a read of what is here, and a close");
    }
    let (asked, _) = setting.counted(|| fs::metadata(setting.at("a/b/file")).unwrap().len());
    assert_eq!(asked, [], "a stat within the timeout");
    let (asked, ()) = setting.counted(|| assert!(!setting.at("a/b/nothing").exists()));
    assert_eq!(asked, [("LOOKUP", 1)]);
    // The negative entry is cached for a second.
    let known = || setting.counted(|| assert!(!setting.at("a/b/nothing").exists())).0.is_empty();
    super::files::wait_until(|| known() && known());
}

// Promise: opens-through-a-mount
#[test]
fn an_open_under_a_delegation_is_nothing() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting(&format!("vers=4.2&{LONG}"));
    fs::write(setting.there("file"), b"content").unwrap();
    assert_eq!(fs::read(setting.at("file")).unwrap(), b"content");
    let (asked, ()) = setting.counted(|| {
        for _ in 0..3 {
            assert_eq!(fs::read(setting.at("file")).unwrap(), b"content");
            assert_eq!(fs::metadata(setting.at("file")).unwrap().len(), 7);
        }
    });
    assert_eq!(asked, []);
    // A change by another client recalls the delegation, and the kernel's caches are invalidated.
    fs::write(setting.there("file"), b"other content").unwrap();
    assert_eq!(fs::read(setting.at("file")).unwrap(), b"other content");
    assert_eq!(fs::metadata(setting.at("file")).unwrap().len(), 13);
}

#[test]
fn a_list_of_a_directory_brings_the_attributes() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting(&format!("vers=3&{LONG}"));
    (0..300).for_each(|n| fs::write(setting.there(format!("f{n}")), format!("{n}")).unwrap());
    let list = || {
        let entries = fs::read_dir(setting.mnt()).unwrap().map(Result::unwrap);
        let mut found: Vec<_> =
            entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect();
        found.sort();
        found
    };
    let (asked, found) = setting.counted(list);
    assert_eq!(found.len(), 300);
    assert!(asked.iter().all(|(name, _)| *name != "LOOKUP"), "{asked:?}");
    for (name, number) in &found {
        assert_eq!(fs::metadata(setting.there(name)).unwrap().ino(), *number);
    }
    // `open(".")` asks whether the listing is still valid. This works once the state of the directory is
    // nonracy.
    super::files::wait_until(|| {
        let (asked, again) = setting.counted(list);
        assert_eq!(again, found);
        asked == [("GETATTR", 1)]
    });
}

/// `find` and `git` read a complete directory before they `stat` the first file in it. Every page of the
/// listing must bring attributes, not the first one alone.
#[test]
fn a_directory_that_is_read_before_its_files_costs_one_request_for_many_of_them() {
    if !may_mount() {
        return;
    }
    const FILES: u64 = 2000;
    let setting = Setting::counting(&format!("vers=3&{LONG}"));
    (0..FILES).for_each(|n| fs::write(setting.there(format!("f{n}")), b"").unwrap());
    let before = setting.stats().requests;
    let names: Vec<_> =
        fs::read_dir(setting.mnt()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len() as u64, FILES);
    for name in &names {
        assert!(fs::symlink_metadata(setting.at(name)).unwrap().is_file());
    }
    let requests = setting.stats().requests - before;
    // Before Linux 6.16 a page of the kernel's has 4 KiB: some 20 names with their attributes.
    assert!(requests < FILES / 5, "{requests} requests for {FILES} files");
}

/// A lock counts as an open: the file is looked at under it.
// Promise: locks-at-a-version-3-origin
#[test]
fn a_lock_over_v3_is_one_lock_and_one_getattr() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting(&format!("vers=3&{LONG}"));
    let file = File::create(setting.at("file")).unwrap();
    let lock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let unlock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
    // The first lock also registers the file.
    let (asked, ()) = setting.counted(lock);
    assert_eq!(asked, [("GETATTR", 2), ("LOCK", 1)]);
    let (asked, ()) = setting.counted(unlock);
    assert_eq!(asked, [("UNLOCK", 1)]);
    let (asked, ()) = setting.counted(lock);
    assert_eq!(asked, [("GETATTR", 1), ("LOCK", 1)]);
    // The server denies the lock of another owner, and TEST says what is in its way.
    let other = File::options().write(true).open(setting.at("file")).unwrap();
    let (asked, denied) = setting.counted(|| {
        rustix::fs::flock(&other, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap_err()
    });
    assert_eq!((asked, denied), (vec![("LOCK", 1), ("TEST", 1)], rustix::io::Errno::AGAIN));
    let (asked, ()) = setting.counted(unlock);
    assert_eq!(asked, [("UNLOCK", 1)]);
}

/// The kernel keeps one listing for all users. A user who may not read the directory must not see it.
// Promise: opens-through-a-mount
#[test]
fn a_list_that_the_kernel_has_kept_is_not_for_who_may_not_read_the_directory() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting(&format!("vers=3&{LONG}"));
    fs::create_dir(setting.there("dir")).unwrap();
    (0..20).for_each(|n| fs::write(setting.there(format!("dir/f{n}")), b"").unwrap());
    let list = || fs::read_dir(setting.at("dir")).unwrap().count();
    // The kernel checks mode bits itself. Only an ACL can express "all but one user may read".
    let denied =
        std::process::Command::new("setfacl").args(["-m", "u:65534:---"]).arg(setting.there("dir")).status();
    if !denied.is_ok_and(|status| status.success()) {
        eprintln!("skipped: setfacl, or a file system that takes it, is missing");
        return;
    }
    assert_eq!(fs::metadata(setting.there("dir")).unwrap().mode() & 0o7777, 0o755);
    super::files::wait_until(|| {
        let (asked, found) = setting.counted(list);
        assert_eq!(found, 20);
        asked == [("GETATTR", 1)]
    });
    let nobody = |uid: &str| {
        let mut listing = std::process::Command::new("setpriv");
        listing.args(["--reuid", uid, "--regid", uid, "--clear-groups", "ls"]).arg(setting.at("dir"));
        let output = listing.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).lines().count())
    };
    assert_eq!(nobody("65533"), (true, 20));
    assert_eq!(nobody("65534"), (false, 0));
    assert_eq!(list(), 20, "and others see it still");
}

// Promise: opens-through-a-mount
#[test]
fn close_to_open_holds_for_changes_on_the_server() {
    if !may_mount() {
        return;
    }
    for options in ["vers=3", "vers=4.2", "vers=3&actimeo=3600", "vers=4.2&actimeo=3600"] {
        let setting = Setting::counting(options);
        for round in 0..30 {
            // The sizes differ, so that the kernel has to learn the new one. Every third file is a new one.
            let text = format!("{round}").repeat(round * 100 + 1);
            // `serve` does not notice a rename by a process of its own machine, so that would recall no
            // delegation.
            if round % 3 == 2 && options.starts_with("vers=3") {
                fs::write(setting.there("new"), &text).unwrap();
                fs::rename(setting.there("new"), setting.there("file")).unwrap();
            } else {
                fs::write(setting.there("file"), &text).unwrap();
            }
            assert_eq!(fs::read_to_string(setting.at("file")).unwrap(), text, "{options}, round {round}");
        }
    }
}

/// `file`, opened so that its reads are passed through. One such open says nothing about the next one. The
/// next may come before an ordinary open has ended, or while the file is being validated. So this returns
/// the very open that was counted.
fn opened_passed(setting: &Setting, text: &[u8]) -> File {
    let opened = Cell::new(None);
    super::files::wait_until(|| {
        assert_eq!(fs::read(setting.at("file")).unwrap(), text);
        let before = setting.stats().opens_passed;
        let file = File::open(setting.at("file")).unwrap();
        let passed = setting.stats().opens_passed > before;
        opened.set(passed.then_some(file));
        passed
    });
    opened.take().expect("it was waited for")
}

/// All bytes that an open file reads.
fn content(file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 1 << 20];
    loop {
        match file.read_at(&mut part, bytes.len() as u64).unwrap() {
            0 => return bytes,
            read => bytes.extend_from_slice(&part[..read]),
        }
    }
}

// Promise: passthrough
#[test]
fn a_whole_file_is_read_by_the_kernel_itself() {
    if !may_mount() {
        return;
    }
    // Without a lease, changes of other clients are seen after the attribute timeout, which grows while
    // nothing changes.
    let setting = Setting::counting("vers=4.2&actimeo=1");
    if !setting.stats().passthrough {
        eprintln!("skipped: this kernel has no passthrough");
        return;
    }
    let text: Vec<u8> = (0..200_000u32).map(|n| (n % 253) as u8).collect();
    fs::write(setting.there("file"), &text).unwrap();
    // The first open finds nothing in the cache. Once the file is complete and nonracy, the kernel reads it
    // itself.
    let passed = opened_passed(&setting, &text);
    // A writer ends passthrough for new opens. The open in passthrough gets the new bytes nevertheless.
    fs::write(setting.at("file"), b"written meanwhile").unwrap();
    assert_eq!(fs::read(setting.at("file")).unwrap(), b"written meanwhile");
    super::files::wait_until(|| content(&passed) == b"written meanwhile");
    assert_eq!(fs::read(setting.there("file")).unwrap(), b"written meanwhile");
    // The same holds if another client writes, whether the file grows or shrinks.
    for text in [text.repeat(8), text.clone(), b"short".to_vec()] {
        fs::write(setting.there("file"), &text).unwrap();
        super::files::wait_until(|| content(&passed) == text);
    }
    assert!(setting.stats().passthrough, "nothing was refused");
}

/// A node that has left passthrough stays as long as it is open. If it kept its lease, a recall would go to
/// its successor. Then a later user of the old node would trust outdated attributes.
// Promise: passthrough
#[test]
fn what_a_file_left_passthrough_with_is_not_believed_after_the_recall() {
    if !may_mount() {
        return;
    }
    let setting = Setting::counting("vers=4.2&actimeo=1");
    if !setting.stats().passthrough {
        eprintln!("skipped: this kernel has no passthrough");
        return;
    }
    fs::write(setting.there("file"), b"first").unwrap();
    let passed = opened_passed(&setting, b"first");
    // The root and the file. The FORGET of nodes that the kernel has dropped may arrive late.
    let nodes = 2;
    super::files::wait_until(|| setting.stats().nodes == nodes);
    fs::write(setting.at("file"), b"second").unwrap();
    // The kernel may have dropped the new node together with a name, because of a late notification.
    super::files::wait_until(|| {
        fs::metadata(setting.at("file")).is_ok() && setting.stats().nodes == nodes + 1
    });
    drop(File::open(setting.at("file")).unwrap());
    fs::write(setting.there("file"), b"third, by another").unwrap();
    let size = || fs::metadata(setting.at("file")).unwrap().len();
    // The recall makes the kernel drop the name, and with it the second node.
    super::files::wait_until(|| size() == 17 && setting.stats().nodes == nodes + 1);
    drop(passed);
    super::files::wait_until(|| size() == 17 && setting.stats().nodes == nodes);
    // The kernel asks, and the reply says how long it may cache the answer: no longer than until the next
    // request here.
    for _ in 0..2 {
        super::files::wait_until(|| {
            let requests = setting.stats().requests;
            size() == 17 && setting.stats().requests > requests
        });
    }
    fs::write(setting.there("file"), b"fourth").unwrap();
    super::files::wait_until(|| size() == 6);
}

/// A file that has left passthrough has two nodes. If its name is removed, the file lasts until the last
/// open of either node is closed.
// Promise: removed-open-files
#[test]
fn a_removed_file_with_two_nodes_lasts_until_the_last_close_of_either() {
    if !may_mount() {
        return;
    }
    for (version, passed_first) in VERSIONS.iter().flat_map(|version| [(version, true), (version, false)]) {
        let setting = Setting::counting(&format!("vers={version}"));
        if !setting.stats().passthrough {
            eprintln!("skipped: this kernel has no passthrough");
            return;
        }
        let text = vec![b'x'; 200_000];
        fs::write(setting.there("file"), &text).unwrap();
        let passed = opened_passed(&setting, &text);
        let ordinary = OpenOptions::new().read(true).write(true).open(setting.at("file")).unwrap();
        fs::remove_file(setting.at("file")).unwrap();
        let (first, last) = if passed_first { (passed, ordinary) } else { (ordinary, passed) };
        let nodes = setting.stats().nodes;
        drop(first);
        // The kernel forgets the node after its last RELEASE.
        super::files::wait_until(|| setting.stats().nodes < nodes);
        let known = last.metadata().unwrap_or_else(|error| panic!("version {version}: {error}"));
        assert_eq!(known.len(), 200_000, "version {version}");
        assert_eq!(content(&last), text, "version {version}");
        drop(last);
        let names = || fs::read_dir(setting.there("")).unwrap().count();
        super::files::wait_until(|| names() == 0);
    }
}
