//! Changes by other clients to a file that the kernel has cached: its attributes, its name, an open of it.
//!
//! Promise: opens-beside-renames
//! Promise: appends

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};

/// Attribute timeouts longer than any test.
const LONG: &str = "actimeo=3600";

fn append(path: &Path, text: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(text).unwrap();
}

/// The kernel appends at the end of file that it knows, and a reply to an open does not update that.
#[test]
fn who_opens_a_file_to_append_writes_behind_what_others_have_appended() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        for read_before in [false, true] {
            let setting = Setting::new(&format!("vers={version}&{LONG}"));
            fs::write(setting.there("log"), b"0123456789").unwrap();
            assert_eq!(fs::metadata(setting.at("log")).unwrap().len(), 10);
            let before = read_before.then(|| {
                assert_eq!(fs::read(setting.at("log")).unwrap(), b"0123456789");
                File::open(setting.at("log")).unwrap()
            });
            append(&setting.there("log"), b"there");
            append(&setting.at("log"), b"at!");
            let wanted = b"0123456789thereat!";
            assert_eq!(fs::read(setting.there("log")).unwrap(), wanted, "version {version}");
            assert_eq!(fs::metadata(setting.at("log")).unwrap().len(), 18, "version {version}");
            assert_eq!(fs::read(setting.at("log")).unwrap(), wanted, "version {version}");
            drop(before);
        }
    }
}

/// The same through one descriptor that stays open, with many WRITEs for one write(2), read back through
/// it.
#[test]
fn much_that_is_appended_in_one_go_follows_what_others_have_appended() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}&{LONG}"));
        let first: Vec<u8> = (0..10_000u32).map(|n| (n % 249) as u8).collect();
        fs::write(setting.there("log"), &first).unwrap();
        let mut held = OpenOptions::new().read(true).append(true).open(setting.at("log")).unwrap();
        let mut bytes = vec![0; first.len()];
        held.read_exact_at(&mut bytes, 0).unwrap();
        append(&setting.there("log"), b"between");
        // An open shows that the file has grown.
        drop(File::open(setting.at("log")).unwrap());
        held.read_exact_at(&mut bytes[..5000], 0).unwrap();
        let much: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        held.write_all(&much).unwrap();
        let wanted = [&first[..], b"between", &much].concat();
        let mut back = vec![0; wanted.len()];
        held.read_exact_at(&mut back, 0).unwrap();
        assert!(back == wanted, "version {version}: it reads something else than was written");
        held.write_all(b"end").unwrap();
        drop(held);
        assert!(fs::read(setting.there("log")).unwrap() == [&wanted[..], b"end"].concat());
        assert_eq!(fs::metadata(setting.at("log")).unwrap().len(), wanted.len() as u64 + 3);
    }
}

#[test]
fn who_appends_to_a_file_that_others_have_cut_leaves_no_hole() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}&{LONG}"));
        fs::write(setting.there("log"), b"0123456789").unwrap();
        assert_eq!(fs::read(setting.at("log")).unwrap(), b"0123456789");
        OpenOptions::new().write(true).open(setting.there("log")).unwrap().set_len(4).unwrap();
        let held = OpenOptions::new().read(true).append(true).open(setting.at("log")).unwrap();
        for text in [b"at", b"!!"] {
            (&held).write_all(text).unwrap();
        }
        assert_eq!(held.metadata().unwrap().len(), 8, "version {version}");
        let mut bytes = [0; 8];
        held.read_exact_at(&mut bytes, 0).unwrap();
        drop(held);
        assert_eq!(&bytes, b"0123at!!", "version {version}");
        assert_eq!(fs::read(setting.there("log")).unwrap(), b"0123at!!", "version {version}");
        assert_eq!(fs::read(setting.at("log")).unwrap(), b"0123at!!", "version {version}");
    }
}

/// If no other client appends, an append costs no extra call.
#[test]
fn an_append_asks_nothing_that_another_write_does_not() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::counting(&format!("vers={version}&{LONG}"));
        fs::write(setting.at("log"), b"0123456789").unwrap();
        let open = |append: bool| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).append(append).open(setting.at("log")).unwrap()
        };
        let cost = |append: bool| {
            let file = open(append);
            let end = file.metadata().unwrap().len();
            let write = |n: u64| {
                if append {
                    (&file).write_all(b"x").unwrap();
                } else {
                    file.write_all_at(b"x", end + n).unwrap();
                }
            };
            setting.counted(|| (0..10).for_each(write)).0
        };
        cost(false);
        assert_eq!(cost(true), cost(false), "version {version}");
        assert_eq!(fs::metadata(setting.there("log")).unwrap().len(), 40);
    }
}

/// The kernel knows a file by both names, and an open uses one of them.
#[test]
fn of_a_file_with_two_names_each_is_opened_for_itself() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(&format!("vers=3&{LONG}"));
    fs::write(setting.there("a"), b"old").unwrap();
    fs::hard_link(setting.there("a"), setting.there("b")).unwrap();
    for name in ["a", "b"] {
        assert_eq!(fs::read(setting.at(name)).unwrap(), b"old");
    }
    fs::write(setting.there("new"), b"new content").unwrap();
    fs::rename(setting.there("new"), setting.there("a")).unwrap();
    assert_eq!(fs::read(setting.at("a")).unwrap(), b"new content");
    assert_eq!(fs::read(setting.at("b")).unwrap(), b"old");
    // A link made through this mount.
    fs::hard_link(setting.at("b"), setting.at("c")).unwrap();
    assert_eq!(fs::read(setting.at("c")).unwrap(), b"old");
    fs::write(setting.there("new"), b"newer").unwrap();
    fs::rename(setting.there("new"), setting.there("b")).unwrap();
    assert_eq!(fs::read(setting.at("b")).unwrap(), b"newer");
    assert_eq!(fs::read(setting.at("c")).unwrap(), b"old");
    // A link made on the server, whose file gets another name here and is removed there.
    fs::hard_link(setting.there("c"), setting.there("d")).unwrap();
    assert_eq!(fs::read(setting.at("d")).unwrap(), b"old");
    fs::rename(setting.at("c"), setting.at("e")).unwrap();
    assert_eq!(fs::read(setting.at("d")).unwrap(), b"old");
    fs::remove_file(setting.there("e")).unwrap();
    assert!(File::open(setting.at("e")).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
    assert_eq!(fs::read(setting.at("d")).unwrap(), b"old");
}

/// The file has exactly one link at any time.
#[test]
fn a_name_that_somebody_else_gave_to_another_file_opens_that_one() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(&format!("vers=3&{LONG}"));
    fs::write(setting.there("a"), b"old").unwrap();
    assert_eq!(fs::read(setting.at("a")).unwrap(), b"old");
    fs::rename(setting.there("a"), setting.there("b")).unwrap();
    fs::write(setting.there("a"), b"new").unwrap();
    assert_eq!(fs::read(setting.at("b")).unwrap(), b"old");
    assert_eq!(fs::read(setting.at("a")).unwrap(), b"new");
}

#[test]
fn a_name_whose_file_somebody_else_has_removed_is_renamed_over() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        fs::write(setting.there("f"), b"old").unwrap();
        let open = File::open(setting.at("f")).unwrap();
        fs::remove_file(setting.there("f")).unwrap();
        fs::write(setting.at("f.new"), b"new content").unwrap();
        fs::rename(setting.at("f.new"), setting.at("f")).unwrap();
        assert_eq!(fs::read(setting.there("f")).unwrap(), b"new content", "version {version}");
        assert_eq!(fs::read(setting.at("f")).unwrap(), b"new content", "version {version}");
        drop(open);
        wait_until(|| fs::read_dir(setting.there(".")).unwrap().count() == 1);
    }
}

/// The kernel's cache maps a name to a file that another client has replaced.
#[test]
fn a_name_whose_file_somebody_else_has_replaced_is_linked() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}&{LONG}"));
        for round in 0..3 {
            let name = format!("file{round}");
            let (there, at) = (setting.there(&name), setting.at(&name));
            fs::write(&there, b"old").unwrap();
            assert_eq!(fs::metadata(&at).unwrap().len(), 3);
            fs::write(setting.there("new"), b"newer").unwrap();
            fs::rename(setting.there("new"), &there).unwrap();
            let link = format!("link{round}");
            let linked = fs::hard_link(&at, setting.at(&link));
            assert!(linked.is_ok(), "version {version}: {linked:?}");
            assert_eq!(fs::read(setting.there(&link)).unwrap(), b"newer", "version {version}");
            // Without another name there is nothing to link.
            fs::remove_file(setting.there(&link)).unwrap();
            fs::remove_file(&there).unwrap();
            let failed = fs::hard_link(&at, setting.at("other")).unwrap_err();
            assert_eq!(failed.kind(), std::io::ErrorKind::NotFound, "version {version}");
        }
    }
}

/// A program reads the size and then the data through one open, as `tail -f` does. The kernel's page at the
/// old end must not show zeros, and a file in passthrough must grow.
// Promise: passthrough
// Promise: growing-files
#[test]
fn who_watches_a_file_that_others_append_to_reads_what_they_wrote() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        for complete in [false, true] {
            let setting = Setting::new(&format!("vers={version}&actimeo=1"));
            let mut wanted = b"first line\n".repeat(20);
            fs::write(setting.there("log"), &wanted).unwrap();
            // Complete and nonracy in the cache, or not.
            let rounds = if complete { 3 } else { 1 };
            for _ in 0..rounds {
                assert_eq!(fs::read(setting.at("log")).unwrap(), wanted);
                std::thread::sleep(std::time::Duration::from_millis(if complete { 30 } else { 0 }));
            }
            let held = File::open(setting.at("log")).unwrap();
            let mut bytes = vec![0; 4096];
            assert_eq!(held.read_at(&mut bytes, 0).unwrap(), wanted.len());
            for round in 0..3 {
                let line = format!("line {round}\n").into_bytes();
                append(&setting.there("log"), &line);
                wanted.extend_from_slice(&line);
                wait_until(|| held.metadata().unwrap().len() == wanted.len() as u64);
                wait_until(|| {
                    let mut bytes = vec![0; 4096];
                    let read = held.read_at(&mut bytes, 0).unwrap();
                    // The read may be shorter for a moment, but never return other bytes.
                    assert_eq!(
                        bytes[..read],
                        wanted[..read],
                        "version {version}, whole {complete}, round {round}"
                    );
                    read == wanted.len()
                });
            }
        }
    }
}
