//! `fsync=journal`: an fsync under a write lease is answered from the local disk, and its bytes outlast the
//! machine. A power cut is imitated: the mount is killed, everything that the journal had not synced is cut
//! off, and the rest is marked as of an earlier boot. The record of leases is removed, because it is not
//! used after a restart of the machine.
//!
//! Promise: fsync-from-the-journal

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use lab::Rng;
use rustix::process::{Signal, kill_process};

use crate::setting::{Setting, may_mount, wait_until};

const OPTIONS: &str = "vers=4.2,nofill,fsync=journal";
/// Where a segment has the boot id, the number of synced bytes, and its first entry.
const BOOT_AT: u64 = 8;
const SYNCED_AT: usize = 16;
const ENTRIES_AT: u64 = 32;
/// More than any sync of the local disk takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The segments of the journal of the mount `a`.
fn segments(setting: &Setting) -> Vec<PathBuf> {
    let entries = fs::read_dir(setting.place("cache-a/writeback")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The contents of the files that are kept because they could not be sent.
fn conflicts(setting: &Setting) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(setting.place("cache-a/conflicts")).into_iter().flatten();
    entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect()
}

fn local_fsyncs(setting: &Setting) -> u64 {
    setting.status("a")["cache"]["local_fsyncs"].as_u64().unwrap()
}

/// Kills the mount `a`, and leaves its cache directory as after a power cut.
fn cut_power(setting: &mut Setting) {
    setting.kill("a");
    cut_off(setting);
}

/// Leaves the cache directory of a killed mount as after a power cut.
fn cut_off(setting: &Setting) {
    for segment in segments(setting) {
        let header = fs::read(&segment).unwrap();
        let synced = u64::from_le_bytes(*header[SYNCED_AT..].first_chunk().unwrap());
        let file = File::options().write(true).open(&segment).unwrap();
        file.set_len(synced.max(ENTRIES_AT)).unwrap();
        file.write_all_at(b"another.", BOOT_AT).unwrap();
    }
    fs::remove_dir_all(setting.place("cache-a/state")).unwrap();
}

/// Runs a step while the server does not answer. The step must not need it.
fn without_server<T: Send + 'static>(setting: &Setting, step: impl FnOnce() -> T + Send + 'static) -> T {
    let server = setting.server().pid();
    lab::freeze(server);
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || send.send(step()));
    let result = done.recv_timeout(PATIENCE);
    kill_process(server, Signal::CONT).unwrap();
    result.expect("the step waits for the server")
}

#[test]
fn an_fsync_is_answered_without_the_server_and_outlasts_the_machine() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    let database = File::create(setting.at("a", "database")).unwrap();
    database.write_all_at(&[1; 8192], 0).unwrap();
    let direct = File::options()
        .custom_flags(0o4_010_000)
        .write(true)
        .create(true)
        .truncate(false)
        .open(setting.at("a", "log"));
    let direct = direct.unwrap();
    let (database, direct) = without_server(&setting, move || {
        for number in 0..20_u64 {
            database.write_all_at(&number.to_le_bytes(), number * 512).unwrap();
            database.sync_data().unwrap();
            // O_SYNC: the write itself is answered when it is durable.
            direct.write_all_at(&number.to_le_bytes(), number * 8).unwrap();
        }
        (database, direct)
    });
    assert!(local_fsyncs(&setting) >= 40, "{}", local_fsyncs(&setting));
    // Nothing has answered for these.
    database.write_all_at(&[9; 100], 20_000).unwrap();
    assert_eq!(fs::metadata(setting.there("database")).unwrap().len(), 0);
    cut_power(&mut setting);
    drop((database, direct));
    setting.mount("a", OPTIONS);
    let mut wanted = vec![1; 8192];
    wanted.resize(19 * 512 + 8, 0);
    let mut log = Vec::new();
    for number in 0..20_u64 {
        wanted[number as usize * 512..][..8].copy_from_slice(&number.to_le_bytes());
        log.extend(number.to_le_bytes());
    }
    for place in [setting.at("a", "database"), setting.there("database")] {
        let found = fs::read(place).unwrap();
        assert!(found.len() >= wanted.len() && found[..wanted.len()] == wanted);
    }
    assert_eq!(fs::read(setting.at("a", "log")).unwrap(), log);
    assert_eq!(conflicts(&setting), Vec::<Vec<u8>>::new());
    setting.unmount("a");
    assert_eq!(segments(&setting), Vec::<PathBuf>::new());
    setting.verify("a");
}

#[test]
fn an_fsync_without_a_lease_or_the_option_goes_to_the_server() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    for (options, content) in [("vers=3,nofill,fsync=journal", b"one"), ("vers=4.2,nofill", b"two")] {
        setting.mount("a", options);
        let file = File::create(setting.at("a", "file")).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!((local_fsyncs(&setting), fs::read(setting.there("file")).unwrap()), (0, content.to_vec()));
        drop(file);
        setting.unmount("a");
    }
}

#[test]
fn what_was_synced_reaches_other_clients_and_is_kept_if_they_changed_the_file() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    setting.mount("b", "vers=4.2,nofill");
    let write = |name: &str, content: &[u8]| {
        let file = File::create(setting.at("a", name)).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.sync_all().unwrap();
    };
    write("read", b"read by b");
    write("changed", b"changed by a");
    write("left", b"left alone");
    assert_eq!(fs::read(setting.at("b", "read")).unwrap(), b"read by b");
    cut_power(&mut setting);
    let other = setting.at("b", "changed");
    fs::write(&other, "changed by b").unwrap();
    File::open(&other).unwrap().sync_all().unwrap();
    setting.mount("a", OPTIONS);
    assert_eq!(fs::read(setting.at("a", "changed")).unwrap(), b"changed by b");
    assert_eq!(fs::read(setting.at("a", "left")).unwrap(), b"left alone");
    assert_eq!(fs::read(setting.at("a", "read")).unwrap(), b"read by b");
    assert_eq!(conflicts(&setting), [b"changed by a"]);
    wait_until(|| setting.status("a")["cache"]["dirty_bytes"] == 0);
    setting.unmount("a");
    setting.unmount("b");
    assert_eq!(fs::read(setting.there("left")).unwrap(), b"left alone");
}

#[test]
fn bytes_that_the_server_has_are_not_kept_as_a_conflict() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    setting.mount("b", "vers=4.2,nofill");
    for (name, content) in [("same", "sent by a"), ("other", "also by a")] {
        let file = File::create(setting.at("a", name)).unwrap();
        file.write_all_at(content.as_bytes(), 0).unwrap();
        file.sync_all().unwrap();
    }
    // The disk has the entries, and will not have the marks that they are over.
    let before: Vec<_> =
        segments(&setting).into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    assert_eq!(fs::read(setting.at("b", "same")).unwrap(), b"sent by a");
    fs::write(setting.at("b", "other"), "later by b").unwrap();
    assert_eq!(fs::read(setting.at("b", "other")).unwrap(), b"later by b");
    setting.kill("a");
    let writeback = setting.place("cache-a/writeback");
    fs::remove_dir_all(&writeback).unwrap();
    fs::create_dir(&writeback).unwrap();
    before.iter().for_each(|(content, path)| fs::write(path, content).unwrap());
    cut_off(&setting);
    setting.mount("a", OPTIONS);
    assert_eq!(conflicts(&setting), [b"also by a"]);
    assert_eq!(fs::read(setting.at("a", "same")).unwrap(), b"sent by a");
    assert_eq!(fs::read(setting.at("a", "other")).unwrap(), b"later by b");
    setting.unmount("a");
    setting.unmount("b");
}

/// How a program writes one number after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Over the last one, `COPIES` times.
    InPlace,
    /// The same, after a truncation by O_TRUNC.
    Anew,
    /// Behind the last one.
    Appended,
}

/// How often a number is written, so that a file has several pages.
const COPIES: usize = 2000;

impl Way {
    /// Writes a number, and syncs it.
    fn write(self, path: &Path, number: u64) {
        let mut options = File::options();
        options.write(true).create(true);
        match self {
            Way::InPlace => options.truncate(false),
            Way::Anew => options.truncate(true),
            Way::Appended => options.append(true),
        };
        let file = options.open(path).unwrap();
        let copies = if self == Way::Appended { 1 } else { COPIES };
        std::io::Write::write_all(&mut &file, &number.to_le_bytes().repeat(copies)).unwrap();
        file.sync_data().unwrap();
    }

    /// May a reader find these numbers, if this one was synced before it began to read? `alone`: nothing
    /// else was begun until it had read.
    fn allows(self, found: &[u64], synced: u64, alone: bool) -> bool {
        let complete = match self {
            Way::InPlace | Way::Anew => found.len() == COPIES && found.iter().all(|number| *number == synced),
            Way::Appended => found.len() as u64 == synced,
        };
        let newer = match self {
            Way::InPlace => found.len() == COPIES && found.iter().all(|number| *number >= synced),
            // The file may be cut, and a part of it may be written again.
            Way::Anew => found.iter().all(|number| *number >= synced || *number == 0),
            // The size may be known before the last bytes.
            Way::Appended => {
                let right =
                    |(number, wanted): (&u64, u64)| *number == wanted || (*number == 0 && wanted > synced);
                found.len() as u64 >= synced && found.iter().zip(1..).all(right)
            }
        };
        newer && (complete || !alone)
    }
}

/// Sets a flag when it is dropped.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// One mount writes and syncs one file after the other, and another one reads. The first read of a file
/// takes the lease back in the middle of a truncation, a write or a sync. A reader finds nothing older than
/// what was synced before it began.
#[test]
fn nobody_reads_less_than_was_synced_while_the_lease_is_taken_back() {
    const FILES: u64 = 40;
    const NUMBERS: u64 = 30;
    if !may_mount() {
        return;
    }
    let mut rng = Rng::from_environment();
    let mut setting = Setting::new();
    setting.mount("a", OPTIONS);
    setting.mount("b", "vers=4.2,nofill");
    let (mut reads, before) = (0, local_fsyncs(&setting));
    for way in [Way::InPlace, Way::Anew, Way::Appended] {
        for file in 0..FILES {
            let name = format!("{way:?}-{file}");
            let (here, there) = (setting.at("a", &name), setting.at("b", &name));
            let pause = Duration::from_micros(rng.below(20_000) as u64);
            way.write(&here, 1);
            let (begun, synced) = (AtomicU64::new(1), AtomicU64::new(1));
            let done = AtomicBool::new(false);
            reads += std::thread::scope(|scope| {
                let _done = Done(&done);
                let reader = scope.spawn(|| {
                    std::thread::sleep(pause);
                    let (mut reads, mut is_last) = (0, false);
                    // The last read comes after the last sync.
                    while !std::mem::replace(&mut is_last, done.load(Ordering::SeqCst)) {
                        let known = synced.load(Ordering::SeqCst);
                        let found = numbers(&fs::read(&there).unwrap());
                        let alone = begun.load(Ordering::SeqCst) == known;
                        assert!(
                            way.allows(&found, known, alone),
                            "{name}: {known} was synced, alone: {alone}, found {} numbers up to {:?} from {:?} on",
                            found.len(),
                            found.iter().max(),
                            found.iter().min()
                        );
                        reads += 1;
                    }
                    reads
                });
                for number in 2..=NUMBERS {
                    begun.store(number, Ordering::SeqCst);
                    way.write(&here, number);
                    synced.store(number, Ordering::SeqCst);
                }
                done.store(true, Ordering::SeqCst);
                reader.join().unwrap()
            });
        }
    }
    let here = local_fsyncs(&setting) - before;
    eprintln!("{} syncs, {here} of them answered here, {reads} reads", 3 * FILES * NUMBERS);
    assert!(here >= FILES, "the lease was hardly ever there");
    setting.unmount("a");
    setting.unmount("b");
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (eights, _) = bytes.as_chunks();
    eights.iter().map(|eight| u64::from_le_bytes(*eight)).collect()
}

/// A mount lives on after its lease, and another one has written meanwhile.
// Promise: revoked-write-leases
#[test]
fn a_mount_that_was_frozen_writes_over_nobody() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", OPTIONS);
    setting.mount("b", "vers=4.2,nofill");
    let file = File::create(setting.at("a", "file")).unwrap();
    file.write_all_at(b"by a", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(local_fsyncs(&setting), 1);
    let mount = setting.pid_of("a").unwrap();
    lab::freeze(mount);
    let theirs = File::create(setting.at("b", "file")).unwrap();
    theirs.write_all_at(b"by b, later", 0).unwrap();
    theirs.sync_all().unwrap();
    kill_process(mount, Signal::CONT).unwrap();
    wait_until(|| conflicts(&setting) == [b"by a"]);
    wait_until(|| file.sync_all().is_err());
    drop((file, theirs));
    assert_eq!(fs::read(setting.at("a", "file")).unwrap(), b"by b, later");
    assert_eq!(setting.status("a")["cache"]["conflicts"], 1);
    setting.unmount("a");
    setting.unmount("b");
    assert_eq!(fs::read(setting.there("file")).unwrap(), b"by b, later");
    assert_eq!(segments(&setting), Vec::<PathBuf>::new());
}
