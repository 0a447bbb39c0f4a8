//! Names on two mounts. A negative entry is not trusted for longer than promised. A program that takes a
//! lock file sees every name that was made before. Git relies on both.
//!
//! Promise: negative-entries

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::setting::{Setting, VERSIONS, may_mount};

/// How long a negative entry may be trusted, and as long again for a busy machine.
const BELIEVED_MAX: Duration = Duration::from_secs(2);
/// Commits of each of two clients.
const COMMITS: usize = 12;
/// How often a client retries one commit. Each failure is a success of the other client.
const TRIES_MAX: usize = 200;

fn two_mounts(version: &str) -> Setting {
    let mut setting = Setting::new();
    for name in ["a", "b"] {
        setting.mount(name, &format!("vers={version}"));
    }
    setting
}

#[test]
fn an_absent_name_is_believed_for_a_second_at_most() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = two_mounts(version);
        let (a, b) = (setting.at("a", "d"), setting.at("b", "d"));
        fs::create_dir(&a).unwrap();
        for n in 0..4 {
            File::create(a.join(format!("a{n}"))).unwrap();
            File::create(b.join(format!("b{n}"))).unwrap();
            assert!(!a.join(format!("none{n}")).exists());
        }
        assert!(!a.join("x").exists());
        File::create(b.join("x")).unwrap();
        let begin = Instant::now();
        while let Err(error) = File::open(a.join("x")) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            assert!(begin.elapsed() < BELIEVED_MAX, "vers={version}: absent for {:?}", begin.elapsed());
            thread::yield_now();
        }
    }
}

// Promise: lock-files
#[test]
fn the_holder_of_a_lock_file_sees_what_was_there_before_it() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = two_mounts(version);
        // Ways in which the other client makes the name.
        let makers: [fn(&Path); 3] = [
            |d| drop(File::create(d.join("ref")).unwrap()),
            |d| {
                File::create(d.join("ref.new")).unwrap();
                fs::rename(d.join("ref.new"), d.join("ref")).unwrap();
            },
            |d| fs::hard_link(d.join("file"), d.join("ref")).unwrap(),
        ];
        for (m, make) in makers.iter().enumerate() {
            for (t, take) in TAKERS.iter().enumerate() {
                let name = format!("d{m}{t}");
                let (a, b) = (setting.at("a", &name), setting.at("b", &name));
                fs::create_dir(&a).unwrap();
                File::create(a.join("file")).unwrap();
                File::create(b.join("other")).unwrap();
                assert!(!b.join("ref").exists());
                make(&a);
                take(&b);
                assert!(b.join("ref").symlink_metadata().is_ok(), "vers={version}, maker {m}, taker {t}");
            }
        }
    }
}

/// Ways to take a lock file in a directory that has a file `other`.
const TAKERS: [fn(&Path); 4] = [
    |d| drop(OpenOptions::new().write(true).create_new(true).open(d.join("lock")).unwrap()),
    |d| fs::create_dir(d.join("lock")).unwrap(),
    |d| fs::hard_link(d.join("other"), d.join("lock")).unwrap(),
    |d| fs::rename(d.join("other"), d.join("lock")).unwrap(),
];

/// The kernel of the holder trusts what it has seen for longer than this test takes.
// Promise: lock-files
#[test]
fn the_holder_of_a_lock_file_sees_what_was_replaced_or_removed_before_it() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        for name in ["a", "b"] {
            setting.mount(name, &format!("vers={version},actimeo=3600"));
        }
        let changes: [fn(&Path); 3] = [
            |d| {
                fs::write(d.join("ref.new"), b"newer").unwrap();
                fs::rename(d.join("ref.new"), d.join("ref")).unwrap();
            },
            |d| fs::remove_file(d.join("ref")).unwrap(),
            |d| fs::rename(d.join("ref"), d.join("away")).unwrap(),
        ];
        for (c, change) in changes.iter().enumerate() {
            for (t, take) in TAKERS.iter().enumerate() {
                let name = format!("d{c}{t}");
                let (a, b) = (setting.at("a", &name), setting.at("b", &name));
                fs::create_dir(&a).unwrap();
                fs::write(a.join("ref"), b"old").unwrap();
                File::create(b.join("other")).unwrap();
                assert_eq!(b.join("ref").symlink_metadata().unwrap().len(), 3);
                change(&a);
                take(&b);
                let what = format!("vers={version}, change {c}, taker {t}");
                let there = setting.there(&name).join("ref").symlink_metadata();
                let seen = b.join("ref").symlink_metadata();
                assert_eq!(seen.map(|seen| seen.ino()).ok(), there.map(|there| there.ino()).ok(), "{what}");
                let read = fs::read(b.join("ref")).ok();
                assert_eq!(read, (c == 0).then(|| b"newer".to_vec()), "{what}");
            }
        }
    }
}

/// The kernel still trusts a name that another client has removed. Every creation of that name asks the
/// server.
// Promise: lock-files
#[test]
fn where_another_client_has_removed_something_it_is_made_anew() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        for name in ["a", "b"] {
            setting.mount(name, &format!("vers={version},actimeo=3600"));
        }
        let (a, b) = (setting.at("a", "d"), setting.at("b", "d"));
        fs::create_dir(&a).unwrap();
        File::create(a.join("file")).unwrap();
        let makers: [fn(&Path) -> std::io::Result<()>; 4] = [
            |path| OpenOptions::new().write(true).create_new(true).open(path).map(drop),
            |path| fs::create_dir(path),
            |path| fs::hard_link(path.with_file_name("file"), path),
            |path| std::os::unix::fs::symlink("file", path),
        ];
        for (m, make) in makers.iter().enumerate() {
            for was_directory in [false, true] {
                let name = format!("{m}{was_directory}");
                let (there, here) = (a.join(&name), b.join(&name));
                if was_directory {
                    fs::create_dir(&there).unwrap();
                } else {
                    File::create(&there).unwrap();
                }
                assert!(here.symlink_metadata().is_ok());
                if was_directory {
                    fs::remove_dir(&there).unwrap();
                } else {
                    fs::remove_file(&there).unwrap();
                }
                let made = make(&here);
                assert!(made.is_ok(), "vers={version}, maker {m}, directory {was_directory}: {made:?}");
            }
        }
    }
}

/// sqlite looks for the journal of another client's transaction after it has got a lock on the database.
// Promise: locks-as-points-of-coherence
#[test]
fn the_holder_of_a_lock_does_not_see_what_was_removed_before_it() {
    if !may_mount() {
        return;
    }
    for proxied in [false, true] {
        let mut setting = Setting::new();
        setting.mount("a", "vers=4.2");
        let proxy = proxied.then(|| setting.proxy("127.0.0.1:0").start());
        let address = proxy.as_ref().map_or_else(|| setting.address(), |proxy| proxy.address.clone());
        setting.mount_from(&address, "b", "vers=4.2");
        File::create(setting.at("a", "data")).unwrap();
        let open = |mount| OpenOptions::new().write(true).open(setting.at(mount, "data")).unwrap();
        let (a, b) = (open("a"), open("b"));
        for round in 0..10 {
            a.lock().unwrap();
            // A new name for each round, so there is no negative entry for it.
            let journal = format!("journal{round}");
            File::create(setting.at("a", &journal)).unwrap();
            assert!(setting.at("b", &journal).exists(), "round {round}, proxied: {proxied}");
            fs::remove_file(setting.at("a", &journal)).unwrap();
            a.unlock().unwrap();
            b.lock().unwrap();
            assert!(!setting.at("b", &journal).exists(), "round {round}, proxied: {proxied}");
            b.unlock().unwrap();
        }
        drop((a, b));
        if let Some(mut proxy) = proxy {
            proxy.kill();
        }
    }
}

/// Runs git in a bare repository. Returns its output without the newline, or its error message.
fn git(repository: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.arg("--git-dir").arg(repository).args(arguments).stdin(Stdio::null());
    for (role, who) in [("AUTHOR", "a"), ("COMMITTER", "c")] {
        command.env(format!("GIT_{role}_NAME"), who).env(format!("GIT_{role}_EMAIL"), who);
    }
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Adds a commit on top of the branch, and moves the branch if no other client has moved it.
fn commit(repository: &Path, message: &str) -> Result<(), String> {
    let before = git(repository, &["rev-parse", "--verify", "refs/heads/main"])?;
    let tree = format!("{before}^{{tree}}");
    let new = git(repository, &["commit-tree", &tree, "-p", &before, "-m", message])?;
    git(repository, &["update-ref", "refs/heads/main", &new, &before]).map(drop)
}

/// Does the message say that the other client was first?
fn is_contention(complaint: &str) -> bool {
    complaint.contains("cannot lock ref") || complaint.contains("File exists")
}

// Promise: lock-files
#[test]
fn two_clients_of_one_git_repository_lose_no_commit() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = two_mounts(version);
        let there = setting.there("r.git");
        git(&there, &["init", "--quiet", "--bare", "--initial-branch=main"]).unwrap();
        let empty = git(&there, &["mktree"]).unwrap();
        let root = git(&there, &["commit-tree", &empty, "-m", "root"]).unwrap();
        git(&there, &["update-ref", "refs/heads/main", &root]).unwrap();
        thread::scope(|scope| {
            for client in ["a", "b"] {
                let repository = setting.at(client, "r.git");
                scope.spawn(move || {
                    for n in 0..COMMITS {
                        let message = format!("{client} {n}");
                        let done = (0..TRIES_MAX).any(|_| match commit(&repository, &message) {
                            Ok(()) => true,
                            Err(complaint) => {
                                assert!(is_contention(&complaint), "vers={version}: {complaint}");
                                false
                            }
                        });
                        assert!(done, "vers={version}: {message} found no way in");
                    }
                });
            }
        });
        for repository in [setting.at("a", "r.git"), setting.at("b", "r.git"), there] {
            let count = git(&repository, &["rev-list", "--count", "refs/heads/main"]).unwrap();
            assert_eq!(count, (1 + 2 * COMMITS).to_string(), "vers={version}");
        }
    }
}
