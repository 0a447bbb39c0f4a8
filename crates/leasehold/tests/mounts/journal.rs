//! Delayed writes outlast the mount. A write that was answered under a write lease reaches the server after a
//! kill of the mount, or is kept and reported if somebody else has changed the file.
//!
//! Promise: killed-mounts

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime};

use lab::Rng;
use rustix::process::{Signal, kill_process};

use crate::setting::{Setting, may_mount, output, wait_until};

const FILES: usize = 24;
const OPTIONS: &str = "vers=4.2,nofill";

fn content(rng: &mut Rng, most: usize) -> Vec<u8> {
    let (count, first) = (1 + rng.below(most), rng.next_u64());
    (0..count as u64).map(|at| (first.wrapping_add(at.wrapping_mul(0x9e37_79b9)) >> 8) as u8).collect()
}

/// A file as a program has left it.
#[derive(Debug, PartialEq)]
struct Made {
    name: String,
    content: Vec<u8>,
    mode: u32,
    modified: SystemTime,
}

impl Made {
    /// Makes or changes a file without a sync, in one of several ways.
    fn make(setting: &Setting, rng: &mut Rng, number: usize) -> Made {
        let name = format!("file-{number}");
        let path = setting.at("a", &name);
        let mut content = content(rng, 90_000);
        fs::write(&path, &content).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        match rng.below(5) {
            0 => {
                let (more, at) = (self::content(rng, 5000), rng.below(content.len()));
                file.write_all_at(&more, at as u64).unwrap();
                content.resize(content.len().max(at + more.len()), 0);
                content[at..at + more.len()].copy_from_slice(&more);
            }
            1 => {
                let size = rng.below(content.len());
                file.set_len(size as u64).unwrap();
                content.truncate(size);
            }
            2 => {
                let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + number as u64);
                file.set_times(FileTimes::new().set_modified(then)).unwrap();
            }
            3 => fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap(),
            _ => {}
        }
        drop(file);
        let seen = fs::metadata(&path).unwrap();
        Made { name, content, mode: seen.mode(), modified: seen.modified().unwrap() }
    }

    /// The file as it is now.
    fn found(&self, path: PathBuf) -> Made {
        let seen = fs::metadata(&path).unwrap();
        let content = fs::read(path).unwrap_or_default();
        Made { name: self.name.clone(), content, mode: seen.mode(), modified: seen.modified().unwrap() }
    }
}

/// The segments of the journal of the mount `a`.
fn segments(setting: &Setting) -> usize {
    fs::read_dir(setting.place("cache-a/writeback")).map_or(0, Iterator::count)
}

/// The bytes of its segments.
fn journal_bytes(setting: &Setting) -> u64 {
    let entries = fs::read_dir(setting.place("cache-a/writeback")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// The files that are kept because they could not be sent.
fn conflicts(setting: &Setting) -> Vec<PathBuf> {
    let entries = fs::read_dir(setting.place("cache-a/conflicts")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn what_was_answered_under_a_lease_is_sent_after_a_kill() {
    if !may_mount() {
        return;
    }
    let mut rng = Rng::from_environment();
    let mut setting = Setting::new();
    let mut made = Vec::new();
    for round in 0..3 {
        setting.mount("a", OPTIONS);
        for (number, made) in made.iter().enumerate() {
            let Made { content, .. } = made;
            assert!(
                fs::read(setting.at("a", format!("file-{number}"))).unwrap() == *content,
                "round {round}"
            );
        }
        made.truncate(FILES / 2);
        for number in made.len()..FILES {
            made.push(Made::make(&setting, &mut rng, number));
        }
        setting.kill("a");
        // To read a file there would take the lease away.
        let size = |made: &&Made| fs::metadata(setting.there(&made.name)).unwrap().len();
        let unsent = made.iter().filter(|made| size(made) != made.content.len() as u64).count();
        assert!(unsent > 0, "nothing was delayed, so nothing is shown");
        eprintln!("round {round}: {unsent} of {FILES} files are not at the server after the kill");
    }
    // A kill before anything is sent changes nothing.
    setting.mount("a", OPTIONS);
    setting.kill("a");
    setting.mount("a", OPTIONS);
    for made in &made {
        assert!(made.found(setting.at("a", &made.name)) == *made, "{}, on the mount", made.name);
    }
    setting.unmount("a");
    for made in &made {
        assert!(made.found(setting.there(&made.name)) == *made, "{}, at the server", made.name);
    }
    assert_eq!((segments(&setting), conflicts(&setting)), (0, Vec::new()));
    setting.verify("a");
}

#[test]
fn a_file_that_somebody_else_has_changed_is_kept_beside() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    for name in ["changed", "removed", "left alone"] {
        fs::write(setting.at("a", name), format!("{name}, by a")).unwrap();
    }
    setting.kill("a");
    setting.mount("b", OPTIONS);
    // The server takes the leases back from the dead mount.
    fs::write(setting.at("b", "changed"), "changed, by b").unwrap();
    fs::remove_file(setting.at("b", "removed")).unwrap();
    File::open(setting.at("b", "changed")).unwrap().sync_all().unwrap();
    setting.mount("a", OPTIONS);
    assert_eq!(fs::read(setting.at("a", "changed")).unwrap(), b"changed, by b");
    assert_eq!(fs::read(setting.at("a", "left alone")).unwrap(), b"left alone, by a");
    assert!(!setting.at("a", "removed").exists());
    let kept = conflicts(&setting);
    let kept_of = |name: &str| {
        let begin = format!("{name}.leasehold-conflict-");
        let is_it = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&begin);
        let path = kept.iter().find(is_it).unwrap_or_else(|| panic!("{name} is not among {kept:?}"));
        fs::read_to_string(path).unwrap()
    };
    for name in ["changed", "removed"] {
        assert_eq!(kept_of(name), format!("{name}, by a"));
    }
    assert_eq!(kept.len(), 2, "{kept:?}");
    setting.unmount("a");
    setting.unmount("b");
    assert_eq!(fs::read(setting.there("left alone")).unwrap(), b"left alone, by a");
    assert_eq!(segments(&setting), 0);
}

#[test]
fn a_truncation_that_was_on_its_way_is_carried_out_after_a_kill() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", OPTIONS);
    let content = content(&mut Rng::from_environment(), 1).repeat(20_000);
    fs::write(setting.at("a", "file"), &content).unwrap();
    let server = setting.server().pid();
    lab::freeze(server);
    let path = setting.at("a", "file");
    let before = journal_bytes(&setting);
    let cutting = std::thread::spawn(move || File::options().write(true).open(path)?.set_len(7000));
    // It is entered before it is sent.
    wait_until(|| journal_bytes(&setting) > before);
    wait_until(|| setting.status("a")["link"]["calls_in_flight"].as_u64() > Some(0));
    setting.kill("a");
    kill_process(server, Signal::CONT).unwrap();
    assert!(cutting.join().unwrap().is_err(), "the mount was killed before it was answered");
    setting.mount("a", OPTIONS);
    assert_eq!(fs::metadata(setting.at("a", "file")).unwrap().len(), 7000);
    assert!(fs::read(setting.at("a", "file")).unwrap() == content[..7000]);
    setting.unmount("a");
    assert!(fs::read(setting.there("file")).unwrap() == content[..7000]);
    assert_eq!((segments(&setting), conflicts(&setting)), (0, Vec::new()));
}

#[test]
fn a_mount_without_delayed_writes_keeps_what_it_finds() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", OPTIONS);
    fs::write(setting.at("a", "file"), "of the killed mount").unwrap();
    setting.kill("a");
    setting.mount("a", "vers=4.2,nofill,sync");
    let kept = conflicts(&setting);
    assert_eq!((kept.len(), segments(&setting)), (1, 0));
    assert_eq!(fs::read(&kept[0]).unwrap(), b"of the killed mount");
    fs::write(setting.at("a", "file"), "newer").unwrap();
    setting.unmount("a");
    setting.mount("a", OPTIONS);
    assert_eq!(fs::read(setting.at("a", "file")).unwrap(), b"newer");
    setting.unmount("a");
}

/// A small file system of its own, until dropped.
struct Small(PathBuf);

impl Small {
    fn at(path: PathBuf, size: &str) -> Small {
        fs::create_dir(&path).unwrap();
        let size = format!("size={size},mode=0700");
        output(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "leasehold-test"]).arg(&path));
        Small(path)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn writes_that_a_full_disk_does_not_take_are_sent_before_they_are_answered() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    let _small = Small::at(setting.place("cache-a"), "24m");
    setting.mount("a", OPTIONS);
    let mut rng = Rng::from_environment();
    let made: Vec<Vec<u8>> = (0..6).map(|_| content(&mut rng, 1).repeat(9_000_000)).collect();
    for (number, content) in made.iter().enumerate() {
        fs::write(setting.at("a", format!("file-{number}")), content).unwrap();
    }
    setting.kill("a");
    setting.mount("a", OPTIONS);
    for (number, content) in made.iter().enumerate() {
        assert!(fs::read(setting.at("a", format!("file-{number}"))).unwrap() == *content, "file {number}");
    }
    setting.unmount("a");
    for (number, content) in made.iter().enumerate() {
        assert!(fs::read(setting.there(format!("file-{number}"))).unwrap() == *content, "file {number}");
    }
    assert_eq!(conflicts(&setting), Vec::<PathBuf>::new());
}

#[test]
fn writes_that_the_server_refuses_after_a_kill_are_kept() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::of_size(256 << 20);
    setting.mount("a", OPTIONS);
    let content = content(&mut Rng::from_environment(), 1).repeat(3_000_000);
    fs::write(setting.at("a", "file"), &content).unwrap();
    setting.kill("a");
    assert!(fs::metadata(setting.there("file")).unwrap().len() < 3_000_000, "nothing was delayed");
    // Fill the server's disk.
    let filler = File::create(setting.there("filler")).unwrap();
    let zeros = vec![0; 1 << 20];
    let filled = (0..300).try_for_each(|number| filler.write_all_at(&zeros, number << 20));
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    setting.mount("a", OPTIONS);
    // The file appears before it is complete.
    wait_until(|| conflicts(&setting).first().is_some_and(|kept| fs::read(kept).unwrap() == content));
    assert_eq!(conflicts(&setting).len(), 1);
    wait_until(|| setting.status("a")["cache"]["journal_bytes"].as_u64() < Some(1 << 20));
    setting.unmount("a");
    assert_eq!((segments(&setting), conflicts(&setting).len()), (0, 1));
}
