//! A program that opens files until an open fails. The server refuses an open beyond its limit after a
//! bounded wait, and other clients go on meanwhile. LTP's `open04` is such a program.
//!
//! Promise: capacity-for-opens

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::setting::{Setting, may_mount};

/// Descriptor limit of the server and of the proxy: enough for far fewer files than the program wants.
const DESCRIPTORS: &str = "600";
/// Files that the program tries to open.
const WANTED: usize = 800;
/// The longest time until an open is refused: some seconds on each server on the way.
const TOLD: Duration = Duration::from_secs(40);

/// Opens files with different names until an open fails. Returns the open files and the error.
fn fill(directory: &Path) -> (Vec<File>, std::io::Error) {
    let mut files = Vec::new();
    for number in 0..WANTED {
        let began = Instant::now();
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(format!("f{number}")));
        assert!(began.elapsed() < TOLD, "open {number} took {:?}", began.elapsed());
        match opened {
            Ok(file) => files.push(file),
            Err(error) => return (files, error),
        }
    }
    panic!("there was room for all");
}

/// Makes a file from another process. Returns whether it succeeded, and how long it took.
fn make(file: &Path) -> (bool, Duration) {
    let began = Instant::now();
    let seconds = TOLD.as_secs().to_string();
    let mut touch = Command::new("timeout");
    let status = touch.args(["-s", "KILL", &seconds, "touch"]).arg(file).stderr(Stdio::null()).status();
    (status.unwrap().success(), began.elapsed())
}

fn play(proxied: bool) {
    let mut setting = Setting::limited(DESCRIPTORS);
    let proxy = proxied.then(|| setting.limited_proxy(DESCRIPTORS).start());
    let address = proxy.as_ref().map_or_else(|| setting.address(), |proxy| proxy.address.clone());
    setting.mount_from(&address, "a", "vers=4.2");
    setting.mount("b", "vers=4.2");
    fs::create_dir(setting.at("a", "many")).unwrap();
    let (files, error) = fill(&setting.at("a", "many"));
    assert!(files.len() > 10, "{} files: {error}", files.len());
    assert_eq!(error.raw_os_error(), Some(Errno::NFILE.raw_os_error()), "{} files: {error}", files.len());
    // Another process on the same mount gets the same error. Each attempt takes some seconds.
    if !proxied {
        let (made, took) = make(&setting.at("a", "more"));
        assert!(!made && took < TOLD, "made: {made}, after {took:?}");
    }
    // Another client can go on.
    let (made, took) = make(&setting.at("b", "other"));
    assert!(made, "another client waits for the files of the first: {took:?}");
    // Open files work, and closing them frees capacity.
    assert_eq!(rustix::io::write(&files[0], b"text").unwrap(), 4);
    drop(files);
    let (made, took) = make(&setting.at("a", "again"));
    assert!(made, "nothing is open any more, and there is no room after {took:?}");
    if let Some(mut proxy) = proxy {
        for name in ["a", "b"] {
            setting.unmount(name);
        }
        proxy.kill();
    }
}

#[test]
fn a_program_that_opens_too_many_files_is_told_and_others_go_on() {
    if may_mount() {
        play(false);
    }
}

#[test]
fn a_program_that_opens_too_many_files_through_a_proxy_is_told_and_others_go_on() {
    if may_mount() {
        play(true);
    }
}
