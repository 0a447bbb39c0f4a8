//! An export that runs full. Data that a program was told is written is there; for other data the program
//! got an error.
//!
//! Promise: closes-on-a-full-origin

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::setting::{Setting, VERSIONS, may_mount, wait_until};

const FILES: usize = 825;
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

/// Makes files of up to three blocks in several directories on this machine. Returns them with the space
/// that they need.
fn source(within: &Path, count: usize) -> (PathBuf, u64) {
    let source = within.join("source");
    let mut needed = 0;
    for number in 0..count {
        let directory = source.join(format!("d{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        let size = 1 + number * 97 % 12_000;
        fs::write(directory.join(format!("f{number}")), vec![number as u8; size]).unwrap();
        needed += size.next_multiple_of(BLOCK) as u64;
    }
    (source, needed)
}

fn files(below: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![below.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(below).unwrap().to_owned());
            }
        }
    }
    found
}

fn run(program: &str, arguments: &[&Path]) -> Output {
    let limit = ["-s", "KILL", "300", program];
    Command::new("timeout").args(limit).args(arguments).env("LC_ALL", "C").output().unwrap()
}

/// Copies the tree with cp(1). Returns the files that cp did not complain of.
fn copy_tree(source: &Path, to: &Path) -> (bool, BTreeSet<PathBuf>) {
    let copied = run("cp", &[Path::new("-r"), source, to]);
    let said = String::from_utf8(copied.stderr).unwrap();
    assert!(said.lines().all(|line| line.contains("No space left on device")), "{said}");
    let complained = |file: &PathBuf| said.contains(&format!("{}\'", file.display()));
    (copied.status.success(), files(source).into_iter().filter(|file| !complained(file)).collect())
}

/// Copies each file under another name and renames it, as rsync(1) does. Returns the files for which both
/// steps succeeded.
fn replace_tree(source: &Path, to: &Path) -> (bool, BTreeSet<PathBuf>) {
    fs::create_dir(to).unwrap();
    let all = files(source);
    let stored = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap();
        let new = to.join(format!(".{name}.new"));
        let copied = run("cp", &[&source.join(file), &new]).status.success();
        copied && fs::rename(new, to.join(name)).is_ok()
    };
    let stored: BTreeSet<PathBuf> = all.iter().filter(|file| stored(file)).cloned().collect();
    (stored.len() == all.len(), stored)
}

/// Compares the stored files with their source.
#[track_caller]
fn are_complete(source: &Path, stored: &BTreeSet<PathBuf>, there: impl Fn(&PathBuf) -> PathBuf) {
    for file in stored {
        let (wanted, found) =
            (fs::read(source.join(file)).unwrap(), fs::read(there(file)).unwrap_or_default());
        assert!(wanted == found, "{}: {} of {} bytes are there", file.display(), found.len(), wanted.len());
    }
}

/// Copies onto a server with space for `percent` per cent of the tree, and unmounts.
fn play(percent: u64, options: &str, proxied: bool) {
    for (count, replaces) in [(FILES, false), (FILES / 4, true)] {
        let local = tempfile::tempdir().unwrap();
        let (source, needed) = source(local.path(), count);
        let mut setting = Setting::of_size(needed * percent / 100);
        let proxy = proxied.then(|| setting.proxy("127.0.0.1:0").start());
        match &proxy {
            Some(proxy) => setting.mount_from(&proxy.address.clone(), "a", options),
            None => setting.mount("a", options),
        }
        let copy = if replaces { replace_tree } else { copy_tree };
        let (all, stored) = copy(&source, &setting.at("a", "copy"));
        assert_eq!(all, percent > 100, "{options}, {percent} per cent: {} files are stored", stored.len());
        let lost = setting.status("a")["lost"]["files"].as_u64();
        setting.unmount("a");
        assert_eq!(lost, Some(0));
        let name = |file: &PathBuf| PathBuf::from(file.file_name().unwrap());
        are_complete(&source, &stored, |file| {
            let name = if replaces { name(file) } else { file.clone() };
            setting.there("copy").join(name)
        });
        if let Some(mut proxy) = proxy {
            proxy.kill();
        }
    }
}

#[test]
fn what_a_full_server_does_not_take_is_told() {
    if !may_mount() {
        return;
    }
    for vers in VERSIONS {
        play(30, &format!("vers={vers}"), false);
    }
}

#[test]
fn what_a_full_server_does_not_take_is_told_through_a_proxy() {
    if !may_mount() {
        return;
    }
    play(30, "vers=4.2", true);
}

#[test]
fn a_nearly_full_server_takes_what_fits_and_refuses_what_does_not() {
    if !may_mount() {
        return;
    }
    play(95, "vers=4.2", false);
    play(150, "vers=4.2", false);
}

#[test]
fn what_is_lost_after_a_close_is_told_by_path() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::of_size(64 * MIB);
    setting.mount("a", "vers=4.2");
    fs::write(setting.at("a", "lost"), vec![1; MIB as usize]).unwrap();
    // A program on the server takes all space.
    let filler =
        run("dd", &["if=/dev/zero", &format!("of={}", setting.there("filler").display())].map(Path::new));
    assert!(!filler.status.success());
    // Reading the file on the server makes the server recall the lease.
    assert!(fs::read(setting.there("lost")).is_ok());
    wait_until(|| setting.status("a")["lost"]["files"] == 1);
    let status = setting.status("a");
    assert_eq!(status["lost"]["paths"]["/lost"]["error"], "no space left on device");
    let log = fs::read_to_string(setting.place("log-a")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("/lost")).count(), 1, "{log}");
    let told = fs::read(setting.at("a", "lost")).unwrap_err();
    assert_eq!(told.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
    assert!(fs::read(setting.at("a", "lost")).is_ok(), "it is told once");
    setting.unmount("a");
    setting.assert_idle();
}

// Promise: unmount
#[test]
fn umount_fails_if_the_server_refuses_the_last_of_it() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::of_size(64 * MIB);
    setting.mount("a", "vers=4.2");
    for name in ["lost", "lost too"] {
        fs::write(setting.at("a", name), vec![1; MIB as usize]).unwrap();
    }
    let filler =
        run("dd", &["if=/dev/zero", &format!("of={}", setting.there("filler").display())].map(Path::new));
    assert!(!filler.status.success());
    let unmounted = run(env!("CARGO_BIN_EXE_leasehold"), &[Path::new("umount"), &setting.at("a", "")]);
    let said = String::from_utf8_lossy(&unmounted.stderr).into_owned();
    assert!(!unmounted.status.success(), "{said}");
    assert!(said.contains("/lost") && said.contains("no space left on device"), "{said}");
    assert!(said.contains("another file"), "{said}");
    assert!(!setting.ended("a").success());
}

// Promise: space-set-aside-by-serve
#[test]
fn what_the_server_has_promised_to_one_mount_another_does_not_take() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::of_size(64 * MIB);
    setting.mount("a", "vers=4.2");
    setting.mount("b", "vers=4.2");
    // The server's promise of space (`space_limit`) covers a part of the free space: two blocks here. The
    // client may keep a larger file unsent without a promise.
    let data = vec![1; 8000];
    fs::write(setting.at("a", "promised"), &data).unwrap();
    assert_eq!(fs::metadata(setting.there("promised")).unwrap().len(), 0, "it is not sent yet");
    let filler = format!("of={}", setting.at("b", "filler").display());
    let filled = run("dd", &["if=/dev/zero", &filler, "bs=100k"].map(Path::new));
    assert!(!filled.status.success());
    setting.unmount("a");
    assert!(fs::read(setting.there("promised")).unwrap() == data);
    setting.unmount("b");
    setting.assert_idle();
}
