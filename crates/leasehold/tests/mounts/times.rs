//! Times on two mounts: if one client sets times or writes, the other client sees the new times at once,
//! also when a proxy stands in between.
//!
//! Promise: times-seen-elsewhere

use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use crate::setting::{Running, Setting, VERSIONS, may_mount, output};

/// Files that each way of making files makes.
const FILES: usize = 6;
/// A modification time long ago, with a fraction of a second.
const PAST: Duration = Duration::new(1_000_000_000, 123_456_789);
/// An access time that only the test can have set.
const READ: Duration = Duration::new(1_100_000_000, 987_654_321);

/// The server that a mount uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Server,
    Proxy,
}

/// A proxy; dropping the value kills it.
struct Proxy(Running);

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Makes two mounts, each of the server or of a proxy of the server.
fn two_mounts(version: &str, from: [From; 2]) -> (Setting, Option<Proxy>) {
    let mut setting = Setting::new();
    let proxy = from.contains(&From::Proxy).then(|| Proxy(setting.proxy("127.0.0.1:0").start()));
    for (name, from) in ["a", "b"].into_iter().zip(from) {
        let address = match &proxy {
            Some(proxy) if from == From::Proxy => proxy.0.address.clone(),
            _ => setting.address(),
        };
        setting.mount_from(&address, name, &format!("vers={version}"));
    }
    (setting, proxy)
}

/// The attributes that every client must see: size, modification time, and the access time if the test has
/// set it.
fn seen(path: &Path) -> (u64, (i64, i64), Option<(i64, i64)>) {
    let found = fs::metadata(path).unwrap();
    let accessed = (found.atime(), found.atime_nsec());
    let set = [PAST, READ].map(|time| (time.as_secs() as i64, i64::from(time.subsec_nanos())));
    (found.size(), (found.mtime(), found.mtime_nsec()), Some(accessed).filter(|time| set.contains(time)))
}

fn times() -> FileTimes {
    FileTimes::new().set_modified(UNIX_EPOCH + PAST).set_accessed(UNIX_EPOCH + READ)
}

/// Makes files with old times outside the mounts.
fn sources(setting: &Setting) -> std::path::PathBuf {
    let sources = setting.place("sources");
    fs::create_dir(&sources).unwrap();
    for n in 0..FILES {
        let mut file = File::create(sources.join(format!("f{n}"))).unwrap();
        file.write_all(&vec![b'x'; 1000 * n + 1]).unwrap();
        file.set_times(times()).unwrap();
    }
    sources
}

/// Makes files in a directory of a mount, in several ways.
fn make(setting: &Setting, sources: &Path, at: &Path) {
    fs::create_dir(at).unwrap();
    let names: Vec<_> = (0..FILES).map(|n| sources.join(format!("f{n}"))).collect();
    output(Command::new("cp").arg("-p").args(&names).arg(at));
    for n in 0..FILES {
        // Set times as touch -d does: after a close and through an open file.
        fs::write(at.join(format!("touched{n}")), "touched").unwrap();
        File::options()
            .append(true)
            .open(at.join(format!("touched{n}")))
            .unwrap()
            .set_times(times())
            .unwrap();
        fs::write(at.join(format!("written{n}")), "written").unwrap();
    }
    let archive = setting.place("archive.tar");
    output(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(setting.place("")).arg("sources"));
    output(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(at));
}

/// All files in a directory, by their relative paths.
fn files(at: &Path) -> Vec<String> {
    let list = |directory: &Path, prefix: &str| -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|entry| format!("{prefix}{}", entry.file_name().to_str().unwrap())).collect()
    };
    let mut all = list(at, "");
    all.extend(list(&at.join("sources"), "sources/"));
    all.sort();
    all
}

fn holds(version: &str, from: [From; 2]) {
    let (setting, _proxy) = two_mounts(version, from);
    let sources = sources(&setting);
    let (a, b) = (setting.at("a", "d"), setting.at("b", "d"));
    make(&setting, &sources, &a);
    let names = files(&b);
    assert_eq!(names.len(), 4 * FILES);
    for name in &names {
        let (here, elsewhere) = (seen(&a.join(name)), seen(&b.join(name)));
        assert_eq!(elsewhere, here, "vers={version} {from:?}: {name}");
        let set = !name.starts_with("written");
        assert_eq!(set, here.1.0 == PAST.as_secs() as i64, "{name}: {here:?}");
        // An archive does not contain access times.
        assert_eq!(set && !name.starts_with("sources"), here.2.is_some(), "{name}: {here:?}");
    }
    // The times stay the same after all data is sent, and the server has them.
    for name in &names {
        let before = seen(&a.join(name));
        File::open(a.join(name)).unwrap().sync_all().unwrap();
        assert_eq!(
            seen(&setting.there("d").join(name)),
            before,
            "vers={version} {from:?}: {name} at the server"
        );
        assert_eq!(seen(&b.join(name)), before, "vers={version} {from:?}: {name} after it was sent");
    }
    copy_elsewhere(&setting, &sources);
}

/// A copy that the other client makes has the times that the first client has set.
fn copy_elsewhere(setting: &Setting, sources: &Path) {
    let there = Command::new("rsync").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        eprintln!("skipped: there is no rsync");
        return;
    }
    make(setting, sources, &setting.at("a", "e"));
    let copy = setting.place("copy");
    output(Command::new("rsync").arg("-a").arg(setting.at("b", "e/")).arg(&copy));
    for name in files(&copy) {
        let (there, here) = (seen(&setting.at("a", "e").join(&name)), seen(&copy.join(&name)));
        assert_eq!((here.0, here.1), (there.0, there.1), "the copy of {name}");
    }
}

#[test]
fn times_that_one_client_sets_another_sees_at_once() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        holds(version, [From::Server, From::Server]);
    }
}

#[test]
fn times_are_seen_at_once_through_a_proxy() {
    if !may_mount() {
        return;
    }
    for from in [[From::Proxy, From::Server], [From::Server, From::Proxy], [From::Proxy, From::Proxy]] {
        holds("4.2", from);
    }
}
