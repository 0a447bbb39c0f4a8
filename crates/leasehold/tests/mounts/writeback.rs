//! `leasehold writeback`: what a mount has delayed is listed, sent, waited for, exported and discarded, also
//! after a kill.
//!
//! Promise: killed-mounts

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use lab::Rng;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::setting::{Setting, may_mount, output, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
const OPTIONS: &str = "vers=4.2,nofill";

fn writeback(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("writeback").arg(arguments[0]).arg(directory).args(&arguments[1..]).output().unwrap()
}

/// The entries and the last line of a command that succeeds.
#[track_caller]
fn lines(arguments: &[&str], directory: &Path) -> (Vec<Value>, Value) {
    let output = writeback(&[arguments, &["--json"]].concat(), directory);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = lines.pop().unwrap()["done"].take();
    (lines.into_iter().map(|mut line| line["entry"].take()).collect(), done)
}

/// The line of a command that fails.
#[track_caller]
fn failure(arguments: &[&str], directory: &Path) -> String {
    let output = writeback(arguments, directory);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

/// The delayed bytes of each file by path.
fn waiting(entries: &[Value]) -> BTreeMap<String, u64> {
    let is_waiting = |entry: &&Value| entry["state"] == "waiting";
    let of = |entry: &Value| (entry["path"].as_str().unwrap().to_owned(), entry["bytes"].as_u64().unwrap());
    entries.iter().filter(is_waiting).map(of).collect()
}

/// Everything below a directory.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Writes three files without a sync, and kills the mount before it has sent all of them.
fn leave(setting: &mut Setting) -> BTreeMap<String, Vec<u8>> {
    // The index knows a new directory only some time later.
    setting.mount("a", OPTIONS);
    fs::create_dir(setting.at("a", "dir")).unwrap();
    setting.unmount("a");
    setting.mount("a", OPTIONS);
    let large: Vec<u8> = (0..70_000u32).map(|at| (at % 251) as u8).collect();
    let made = BTreeMap::from([
        ("/dir/large".to_owned(), large),
        ("/small".to_owned(), b"small".to_vec()),
        ("/two words".to_owned(), b"some text".to_vec()),
    ]);
    for (path, content) in &made {
        fs::write(setting.at("a", &path[1..]), content).unwrap();
    }
    let (listed, done) = lines(&["ls"], &setting.at("a", ""));
    let sizes = made.iter().map(|(path, content)| (path.clone(), content.len() as u64)).collect();
    assert_eq!(waiting(&listed), sizes);
    assert_eq!((&done["files"], &done["running"]), (&json!(3), &json!(true)));
    setting.kill("a");
    made
}

#[test]
fn a_dead_mount_is_listed_and_exported_and_still_sent() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    let made = leave(&mut setting);
    let (cache, to) = (setting.place("cache-a"), setting.place("rescued"));
    let journal = contents(&cache.join("writeback"));
    // By the mount point, too.
    for directory in [cache.clone(), setting.at("a", "")] {
        let (listed, done) = lines(&["ls"], &directory);
        let sizes = made.iter().map(|(path, content)| (path.clone(), content.len() as u64)).collect();
        assert_eq!(waiting(&listed), sizes);
        assert!(listed.iter().all(|entry| entry["age_s"].as_u64() < Some(600)), "{listed:?}");
        assert_eq!((&done["running"], &done["outdated"]), (&json!(false), &json!(false)));
    }
    let text = String::from_utf8(writeback(&["ls"], &cache).stdout).unwrap();
    assert!(text.contains("/two words\n") && text.contains("nothing runs on "), "{text}");
    let error = failure(&["wait"], &cache);
    assert!(error.contains("70,014 bytes of 3 files are left, and nothing runs on "), "{error}");
    assert!(failure(&["push"], &cache).contains("mount it again"));

    let (exported, done) = lines(&["export", to.to_str().unwrap()], &cache);
    assert_eq!((&done["files"], &done["bytes"]), (&json!(3), &json!(70_014)));
    for entry in &exported {
        let (path, copy) = (entry["path"].as_str().unwrap(), entry["copy"].as_str().unwrap());
        assert!(fs::read(copy).unwrap() == made[path], "{path}");
        let ranges = fs::read_to_string(format!("{copy}.ranges")).unwrap();
        assert!(ranges.starts_with(&format!("path {path}\n")), "{ranges}");
        assert!(ranges.ends_with(&format!("\nrange 0 {}\n", made[path].len())), "{ranges}");
    }
    assert_eq!(fs::read_dir(&to).unwrap().count(), 6);
    assert_eq!(contents(&cache.join("writeback")), journal, "nothing in the journal has changed");

    // A damaged segment is told, and stays.
    let (segment, content) = journal.iter().next().unwrap();
    let mut damaged = content.clone();
    damaged[60] ^= 1;
    fs::write(segment, damaged).unwrap();
    for command in [&["ls"][..], &["export", to.to_str().unwrap()], &["discard", "/small", "--yes"]] {
        assert!(failure(command, &cache).contains(" is damaged, or of another version"), "{command:?}");
    }
    fs::write(segment, content).unwrap();

    setting.mount("a", OPTIONS);
    setting.unmount("a");
    for (path, content) in &made {
        assert!(fs::read(setting.there(&path[1..])).unwrap() == *content, "{path}");
    }
    let (listed, done) = lines(&["ls"], &cache);
    assert_eq!((listed.len(), &done["files"]), (0, &json!(0)));
    lines(&["wait"], &cache);
}

/// Applies an exported copy to a file, as the documents tell.
fn apply(copy: &str, to: &Path) {
    let file = fs::File::options().write(true).open(to).unwrap();
    let bytes = fs::read(copy).unwrap();
    for line in fs::read_to_string(format!("{copy}.ranges")).unwrap().lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["truncate", size] => file.set_len(size.parse().unwrap()).unwrap(),
            ["range", offset, length] => {
                let (offset, length): (usize, usize) = (offset.parse().unwrap(), length.parse().unwrap());
                file.write_all_at(&bytes[offset..offset + length], offset as u64).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn exported_copies_make_the_files_what_they_were() {
    if !may_mount() {
        return;
    }
    let mut rng = Rng::from_environment();
    let mut setting = Setting::new();
    let names: Vec<String> = (0..16).map(|number| format!("file-{number}")).collect();
    let mut made: BTreeMap<&String, Vec<u8>> = BTreeMap::new();
    for name in &names[..8] {
        fs::write(setting.there(name), vec![7; 30_000]).unwrap();
        made.insert(name, vec![7; 30_000]);
    }
    setting.mount("a", OPTIONS);
    for step in 0..200 {
        let name = &names[rng.below(names.len())];
        let mut options = fs::File::options();
        let file = options.write(true).create(true).truncate(false).open(setting.at("a", name)).unwrap();
        let content = made.entry(name).or_default();
        if rng.below(4) == 0 {
            let size = rng.below(60_000);
            file.set_len(size as u64).unwrap();
            content.resize(size, 0);
        } else {
            let (offset, length) = (rng.below(50_000), 1 + rng.below(9000));
            file.write_all_at(&vec![step; length], offset as u64).unwrap();
            content.resize(content.len().max(offset + length), 0);
            content[offset..offset + length].fill(step);
        }
    }
    setting.kill("a");
    let to = setting.place("rescued");
    let (exported, _) = lines(&["export", to.to_str().unwrap()], &setting.place("cache-a"));
    assert!(!exported.is_empty(), "nothing was delayed, so nothing is shown");
    // Otherwise each open of a leased file there waits until the lease is revoked.
    kill_process(setting.server().pid(), Signal::KILL).unwrap();
    for entry in &exported {
        let name = entry["path"].as_str().unwrap().trim_start_matches('/');
        apply(entry["copy"].as_str().unwrap(), &setting.there(name));
    }
    for (name, content) in &made {
        assert!(fs::read(setting.there(name)).unwrap() == *content, "{name}: {exported:?}");
    }
}

#[test]
fn writes_of_a_dead_mount_are_discarded_if_that_is_confirmed() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    leave(&mut setting);
    let cache = setting.place("cache-a");
    let error = failure(&["discard", "/small"], &cache);
    assert!(error.contains("5 bytes of delayed writes of 1 file") && error.contains("--yes"), "{error}");
    assert!(failure(&["discard", "/none", "--yes"], &cache).contains("leasehold writeback ls"));
    let (_, done) = lines(&["discard", "--conflicts", "--yes"], &cache);
    assert_eq!((&done["files"], &done["conflicts"]), (&json!(0), &json!(0)));
    let (discarded, _) = lines(&["discard", "/small", "--yes"], &cache);
    assert_eq!(waiting(&discarded), BTreeMap::from([("/small".to_owned(), 5)]));
    let (left, _) = lines(&["ls"], &cache);
    assert_eq!(waiting(&left).into_keys().collect::<Vec<_>>(), ["/dir/large", "/two words"]);
    setting.mount("a", OPTIONS);
    assert_eq!(fs::read(setting.at("a", "two words")).unwrap(), b"some text");
    assert_ne!(fs::read(setting.at("a", "small")).unwrap(), b"small");
    setting.unmount("a");
    assert_eq!(fs::read(setting.there("two words")).unwrap(), b"some text");
    assert_eq!(fs::read(setting.there("small")).unwrap(), b"");

    setting.mount("a", OPTIONS);
    fs::write(setting.at("a", "small"), "again").unwrap();
    setting.kill("a");
    assert!(failure(&["discard", "--all"], &cache).contains("5 bytes of delayed writes of 1 file"));
    let (_, done) = lines(&["discard", "--all", "--yes"], &cache);
    assert_eq!((&done["files"], &done["bytes"], &done["conflicts"]), (&json!(1), &json!(5), &json!(0)));
    assert_eq!(fs::read_dir(cache.join("writeback")).unwrap().count(), 0);
    setting.mount("a", OPTIONS);
    assert_eq!(fs::read(setting.at("a", "small")).unwrap(), b"");
    setting.unmount("a");
}

#[test]
fn what_is_delayed_is_pushed_and_waited_for() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", OPTIONS);
    let at = setting.at("a", "");
    assert_eq!(lines(&["push"], &at), (Vec::new(), json!({ "files": 0, "bytes": 0 })));
    lines(&["wait", "--timeout", "0"], &at);
    for number in 0..20 {
        fs::write(setting.at("a", format!("file-{number}")), [number; 5000]).unwrap();
    }
    let error = failure(&["export", "nowhere"], &at);
    assert!(error.contains(" is in use by process "), "{error}");
    assert!(failure(&["discard", "/file-3", "--yes"], &at).contains("only kept conflicts can be discarded"));
    assert!(failure(&["discard", "--all", "--yes"], &at).contains("only kept conflicts can be discarded"));

    // The server takes nothing.
    let server = setting.server().pid();
    lab::freeze(server);
    let (_, pushed) = lines(&["push"], &at);
    assert_eq!(pushed, json!({ "files": 20, "bytes": 100_000 }));
    wait_until(|| setting.status("a")["link"]["calls_in_flight"].as_u64() > Some(0));
    let error = failure(&["wait", "--timeout", "1"], &at);
    assert!(error.contains("100,000 bytes of 20 files are left after 1 s"), "{error}");
    let mut wait = Command::new(PROGRAM);
    wait.args(["writeback", "wait", "--json"]).arg(&at).stdout(Stdio::piped());
    let waiting = wait.spawn().unwrap();
    kill_process(server, Signal::CONT).unwrap();
    let waited = waiting.wait_with_output().unwrap();
    assert!(waited.status.success());
    assert_eq!(String::from_utf8(waited.stdout).unwrap(), "{\"done\":{\"bytes\":0,\"files\":0}}\n");
    for number in 0..20 {
        assert_eq!(fs::read(setting.there(format!("file-{number}"))).unwrap(), [number; 5000]);
    }
    assert_eq!(lines(&["ls"], &at).0.len(), 0);

    // The mount itself is stopped.
    let mount = setting.pid_of("a").unwrap();
    lab::freeze(mount);
    let error = failure(&["wait", "--timeout", "0"], &setting.place("cache-a"));
    assert!(error.contains(" does not answer; "), "{error}");
    kill_process(mount, Signal::CONT).unwrap();

    fs::write(setting.at("a", "file-0"), "once more").unwrap();
    lines(&["push", "--wait", "--timeout", "60"], &at);
    assert_eq!(fs::read(setting.there("file-0")).unwrap(), b"once more");
    setting.unmount("a");
}

#[test]
fn a_wait_ends_with_the_mount() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", OPTIONS);
    fs::write(setting.at("a", "file"), "some text").unwrap();
    let wait = |setting: &Setting| {
        let mut command = Command::new(PROGRAM);
        command.args(["writeback", "wait"]).arg(setting.place("cache-a"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let waiting = wait(&setting);
    setting.unmount("a");
    let waited = waiting.wait_with_output().unwrap();
    assert!(waited.status.success(), "{}", String::from_utf8_lossy(&waited.stderr));

    setting.mount("a", OPTIONS);
    fs::write(setting.at("a", "file"), "other").unwrap();
    let waiting = wait(&setting);
    setting.kill("a");
    let waited = waiting.wait_with_output().unwrap();
    let error = String::from_utf8(waited.stderr).unwrap();
    assert!(error.contains("5 bytes of 1 file are left, and nothing runs on "), "{error}");
    setting.mount("a", OPTIONS);
    setting.unmount("a");
}

#[test]
fn kept_conflicts_are_listed_exported_and_discarded() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    for name in ["one", "two"] {
        fs::write(setting.at("a", name), format!("{name}, by a")).unwrap();
    }
    let file = fs::File::options().write(true).open(setting.at("a", "two")).unwrap();
    file.write_all_at(b"end", 1 << 20).unwrap();
    drop(file);
    setting.kill("a");
    setting.mount("b", OPTIONS);
    for name in ["one", "two"] {
        fs::write(setting.at("b", name), "by b").unwrap();
    }
    setting.unmount("b");
    setting.mount("a", OPTIONS);
    let at = setting.at("a", "");
    let (listed, done) = lines(&["ls"], &at);
    assert_eq!((&done["files"], &done["conflicts"]), (&json!(0), &json!(2)));
    let file_of = |name: &str| {
        let is_it = |entry: &&Value| {
            entry["state"] == "conflict"
                && entry["file"].as_str().unwrap().contains(&format!("/{name}.lease"))
        };
        let entry = listed.iter().find(is_it).unwrap_or_else(|| panic!("{name} is not in {listed:?}"));
        assert!(entry["kept"].as_u64() > Some(1_700_000_000), "{entry}");
        entry["file"].as_str().unwrap().to_owned()
    };
    let (one, two) = (file_of("one"), file_of("two"));
    let name = Path::new(&one).file_name().unwrap().to_str().unwrap();
    assert!(failure(&["discard", name], &at).contains("1 kept conflict"));
    assert!(Path::new(&one).exists());
    lines(&["discard", name, "--yes"], &at);
    assert!(!Path::new(&one).exists() && Path::new(&two).exists());
    setting.unmount("a");

    let (cache, to) = (setting.place("cache-a"), setting.place("rescued"));
    let (exported, done) = lines(&["export", to.to_str().unwrap()], &cache);
    assert_eq!((&done["files"], &done["conflicts"]), (&json!(0), &json!(1)));
    let copy = exported[0]["copy"].as_str().unwrap();
    assert!(fs::read(copy).unwrap() == fs::read(&two).unwrap());
    assert!(fs::read(copy).unwrap().ends_with(b"\0end"));
    assert!(failure(&["export", to.to_str().unwrap()], &cache).contains("File exists"));
    lines(&["discard", "--conflicts", "--yes"], &cache);
    assert!(!Path::new(&two).exists());
    let said = output(Command::new(PROGRAM).args(["writeback", "discard", "--all"]).arg(&cache));
    assert_eq!(said, "discarded: nothing\n");
    let said = output(Command::new(PROGRAM).args(["writeback", "ls"]).arg(&cache));
    assert_eq!(said, "nothing is delayed, and no conflicts are kept\n");
}
