//! What is under way at the same time, call by call: the kernel and the whole front for real, over a cache over an origin
//! that holds any call back, before it takes effect or before its reply.
//!
//! Two things are tried here. **A removed file that is open has no link** from when `unlink` returns, whatever was asked
//! before and is answered after. And **no notification closes a cycle**: while the kernel keeps a lock for a process that
//! waits for the origin, the origin may itself wait for us to give back a lease, whose return tells the kernel of what
//! that lock guards (see the table in `notify`).
//!
//! Promise: no-program-hangs

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use mount::{Mount, Options, Target};
use rustix::fs::Advice;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use vfs::LeaseKind;

use crate::files::wait_until;
use crate::origin::state::Policy;
use crate::origin::{Bench, Gate, Origin, root};
use crate::setting::may_mount;

/// Whoever is not held up by a gate is done within this time.
const SOON: Duration = Duration::from_secs(10);
/// After it somebody has looked whether those who wait have been killed (`session::LOOK`). Were it too short, a fault would
/// not be seen; nothing fails by it.
const LOOKED_AFTER: Duration = Duration::from_millis(1600);
/// After it an open is done that need not wait. Were it too short, a fault would not be seen; nothing fails by it.
const OPENED_AFTER: Duration = Duration::from_millis(300);

/// A mount of an origin with gates.
struct Setting {
    mount: Option<Mount>,
    bench: Bench,
    runtime: Runtime,
    directory: TempDir,
}

impl Setting {
    /// Nothing is believed but what a lease vouches for, if the origin gives any.
    fn new(policy: Option<Policy>) -> Setting {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut bench = policy.map_or_else(Bench::new, Bench::with_state);
        bench.behind = Some(cache::WriteBehind::default());
        let mut options = bench.options();
        let zero = Duration::ZERO;
        options.timeouts = cache::Timeouts { acregmin: zero, acregmax: zero, acdirmin: zero, acdirmax: zero };
        let directory = tempfile::tempdir().unwrap();
        let target = Target { allow_other: true, ..Target::new(directory.path(), "gated") };
        let mounting = async {
            let cache = bench.open_with(options).await;
            Mount::start(cache, target, Options { passthrough: false, ..Options::default() }).await
        };
        let mount = Some(runtime.block_on(mounting).unwrap());
        Setting { mount, bench, runtime, directory }
    }

    fn origin(&self) -> &Arc<Origin> {
        &self.bench.origin
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Waits until a call has come to a gate.
    fn come(&self, gate: &Gate) {
        self.runtime.block_on(gate.wait_for(1));
    }

    /// Another client writes a file, as soon as the lease on it is back: how long that takes.
    fn others_write(&self, file: &vfs::Handle) -> Duration {
        let start = Instant::now();
        let write = self.origin().others_write(file, 0, b"new");
        let written = async { tokio::time::timeout(SOON, write).await };
        assert!(self.runtime.block_on(written).is_ok(), "the lease is not given back");
        start.elapsed()
    }

    /// As [`soon`], for what no thread of this process could end if it hung: the connection is broken first.
    #[track_caller]
    fn soon<T>(&self, result: &Receiver<T>) -> T {
        result.recv_timeout(SOON).unwrap_or_else(|_| {
            let (_, minor) = mount::mounted_at(self.directory.path()).expect("it is mounted");
            mount::break_connection(minor).expect("this process is privileged");
            panic!("it waits for what it need not wait for");
        })
    }

    fn unmount(&mut self) {
        let mount = self.mount.take().unwrap();
        self.runtime.block_on(mount.stop(Duration::from_secs(1)));
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            self.runtime.block_on(mount.stop(Duration::from_secs(1)));
        }
    }
}

/// Does something on a thread of its own, as another process would.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result
}

#[track_caller]
fn soon<T>(result: &Receiver<T>) -> T {
    result.recv_timeout(SOON).expect("it waits for what it need not wait for")
}

/// The orders in which a GETATTR may have been answered by the origin, beside the RENAME that gives the last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    BeforeTheRename,
    AfterTheRename,
}

/// With a FLUSH (of a copy of the descriptor, that a program which has just been started closes) and its WRITE under way
/// all the time, and GETATTRs of other processes that were sent before, of both states of the file.
///
/// Excluded by it: that attributes which were fetched before the name went are told to the kernel without the last name
/// taken off (it is taken off when they are told, not when they are fetched), that such an answer reaches the kernel's
/// inode (Linux drops what was asked for before the `unlink` returned: `fuse_entry_unlinked` moves `attr_version`), and that
/// the end of a FLUSH brings any of it back. CREATE and LINK, whose attributes Linux takes whatever their age, and SETATTR
/// hold the lock of the inode or of a name that `unlink` holds too.
#[test]
fn a_removed_file_has_no_link_whatever_is_under_way() {
    if !may_mount() {
        return;
    }
    for policy in [None, Some(Policy::Never)] {
        for fetched in [Fetched::BeforeTheRename, Fetched::AfterTheRename] {
            eprintln!("{policy:?}, {fetched:?}");
            removed_while_all_is_under_way(&Setting::new(policy), fetched);
        }
    }
}

fn removed_while_all_is_under_way(setting: &Setting, fetched: Fetched) {
    let origin = setting.origin();
    let file =
        Arc::new(File::options().read(true).write(true).create_new(true).open(setting.at("f")).unwrap());
    file.write_all_at(&[b'x'; 10_000], 0).unwrap();
    let write = origin.gate("WRITE");
    let copy = file.try_clone().unwrap();
    let flushed = aside(move || drop(copy));
    setting.come(&write);
    // What the kernel asks for before it removes is not held up.
    let rename = origin.gate("RENAME");
    let path = setting.at("f");
    let removed = aside(move || fs::remove_file(path).unwrap());
    setting.come(&rename);
    if fetched == Fetched::AfterTheRename {
        rename.admit(1);
        wait_until(|| origin.tree().get(&root()).unwrap().names.keys().any(|name| name.as_bytes() != b"f"));
    }
    let getattr = origin.gate("GETATTR");
    getattr.admit(1);
    let links = || {
        let file = file.clone();
        aside(move || file.metadata().unwrap().nlink())
    };
    let asked_before = links();
    setting.come(&getattr);
    rename.open();
    soon(&removed);
    let asked_after = links();
    getattr.open();
    assert_eq!((soon(&asked_before), soon(&asked_after)), (0, 0));
    assert_eq!(soon(&links()), 0, "what the kernel has kept of it");
    write.open();
    soon(&flushed);
    assert_eq!(soon(&links()), 0, "after the FLUSH");
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, 9_997).unwrap();
    assert_eq!((&bytes, fs::metadata(setting.at("f")).is_err()), (b"xxx", true));
    drop(file);
    wait_until(|| origin.tree().get(&root()).unwrap().names.is_empty());
}

/// The directory is locked by who removes a name in it, and the origin removes nothing before the lease is back.
#[test]
fn a_lease_goes_back_while_its_directory_is_locked_by_who_waits_for_that() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(Some(Policy::Always(LeaseKind::Read)));
    let origin = setting.origin();
    let (wanted, other) = (origin.put(&root(), "f", b"old"), origin.put(&root(), "other", b"other"));
    origin.put(&root(), "g", b"");
    let file = File::open(setting.at("f")).unwrap();
    let beside = File::open(setting.at("other")).unwrap();
    assert!(origin.lease(&wanted).is_some() && origin.lease(&other).is_some());
    let remove = origin.gate("REMOVE");
    let path = setting.at("g");
    let removed = aside(move || fs::remove_file(path).unwrap());
    setting.come(&remove);
    let took = setting.others_write(&wanted);
    assert!(removed.try_recv().is_err(), "it was to be removed only now");
    // The next one does not wait for longer because the first could not be told of its name.
    let took_next = setting.others_write(&other);
    assert!(took.max(took_next) < Duration::from_secs(3), "{took:?}, {took_next:?}");
    assert_eq!((file.metadata().unwrap().len(), beside.metadata().unwrap().len()), (3, 5));
    remove.open();
    soon(&removed);
    assert_eq!(fs::read(setting.at("f")).unwrap(), b"new");
    assert_eq!(fs::read(setting.at("other")).unwrap(), b"newer");
}

/// The same with pages, which are locked while they are being read, and with a second file's attributes.
#[test]
fn a_lease_goes_back_while_pages_of_its_file_are_being_read() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(Some(Policy::Always(LeaseKind::Read)));
    let origin = setting.origin();
    let wanted = origin.put(&root(), "f", &vec![b'o'; 1 << 20]);
    let file = Arc::new(File::open(setting.at("f")).unwrap());
    assert!(origin.lease(&wanted).is_some());
    let read = origin.gate("READ");
    let reader = file.clone();
    let found = aside(move || {
        let mut bytes = vec![0; 1 << 20];
        reader.read_exact_at(&mut bytes, 0).map(|()| bytes)
    });
    setting.come(&read);
    let took = setting.others_write(&wanted);
    assert!(took < Duration::from_secs(3), "{took:?}");
    // An open that finds another state drops pages, for which the kernel waits, and nobody else: not who looks at the file.
    let path = setting.at("f");
    let opened = aside(move || File::open(path).unwrap().metadata().unwrap().len());
    let looked = file.clone();
    assert_eq!(soon(&aside(move || looked.metadata().unwrap().len())), 1 << 20);
    read.open();
    assert_eq!((soon(&opened), soon(&found).unwrap().len()), (1 << 20, 1 << 20));
    assert_eq!(fs::read(setting.at("f")).unwrap()[..4], *b"newo");
}

/// A program that is being started closes what it does not keep, and until that is done not all of its `/proc` can be looked
/// at. It may wait for the origin for longer than it takes until somebody looks whether it has been killed.
#[test]
fn who_closes_files_as_it_is_started_keeps_nobody_waiting() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    setting.origin().put(&root(), "other", b"other");
    let file = File::create_new(setting.at("f")).unwrap();
    file.write_all_at(&[b'x'; 10_000], 0).unwrap();
    let write = setting.origin().gate("WRITE");
    // More than there are threads that answer.
    let start = || aside(|| Command::new("true").status().unwrap().success());
    let started: Vec<_> = (0..3).map(|_| start()).collect();
    setting.come(&write);
    std::thread::sleep(LOOKED_AFTER);
    let path = setting.at("other");
    assert_eq!(setting.soon(&aside(move || fs::metadata(path).unwrap().len())), 5);
    write.open();
    assert!(started.iter().all(|started| setting.soon(started)));
}

/// A program that has been killed closes all its files, which nothing can interrupt any more.
#[test]
fn who_closes_files_as_it_is_killed_does_not_wait_for_the_origin() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    let write = setting.origin().gate("WRITE");
    let script = format!("exec > {}; echo x; kill -9 $$", setting.at("f").display());
    let ended = aside(move || Command::new("sh").arg("-c").arg(script).status().unwrap().signal());
    setting.come(&write);
    assert_eq!(setting.soon(&ended), Some(9));
    write.open();
}

/// Who is killed while it reads a directory is told of no node, and gives none back.
#[test]
fn what_a_killed_listing_would_have_told_is_forgotten() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    let names = ["f", "g", "h"];
    for name in names {
        setting.origin().put(&root(), name, b"x");
    }
    let readdir = setting.origin().gate("READDIR");
    let mut ls = Command::new("ls").arg("-l").arg(setting.at("")).stdout(Stdio::null()).spawn().unwrap();
    setting.come(&readdir);
    ls.kill().unwrap();
    let ended = aside(move || ls.wait().unwrap().signal());
    assert_eq!(setting.soon(&ended), Some(9));
    readdir.open();
    assert_eq!(fs::read_dir(setting.at("")).unwrap().count(), 3);
    // The kernel gives back what it knows of a file that is no more.
    names.iter().for_each(|name| fs::remove_file(setting.at(name)).unwrap());
    wait_until(|| setting.mount.as_ref().unwrap().stats().nodes == 1);
}

/// Nobody has a file open, but READs that were made ahead wait for the origin; who tells the kernel of the file's change
/// waits for their pages, and who finishes the unmount for him.
#[test]
fn an_unmount_ends_while_a_notification_waits_for_pages() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new(None);
    let handle = setting.origin().put(&root(), "f", &vec![b'o'; 1 << 20]);
    let file = File::open(setting.at("f")).unwrap();
    let read = setting.origin().gate("READ");
    rustix::fs::fadvise(&file, 0, std::num::NonZeroU64::new(1 << 20), Advice::WillNeed).unwrap();
    setting.come(&read);
    drop(file);
    setting.origin().tree().write(&handle, 0, b"changed").unwrap();
    assert_eq!(fs::metadata(setting.at("f")).unwrap().len(), 1 << 20);
    if fs::read_to_string("/proc/self/stack").is_ok() {
        wait_until(|| is_anybody_in("fuse_reverse_inval_inode"));
    }
    let start = Instant::now();
    setting.unmount();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(mount::mounted_at(setting.directory.path()).is_none());
    read.open();
}

/// Is a thread of this process in that function of the kernel?
fn is_anybody_in(function: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut stacks = tasks.filter_map(|task| fs::read_to_string(task.path().join("stack")).ok());
    stacks.any(|stack| stack.contains(function))
}

/// An origin without opens keeps no file for who has it open. So this machine does, also for an open that is under way: its last
/// call has taken effect, and the program does not have the file yet.
// Promise: opens-beside-renames
#[test]
fn a_file_that_is_replaced_while_it_is_being_opened_is_read_until_its_close() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    fs::write(setting.at("f"), b"old").unwrap();
    fs::write(setting.at("new"), b"new").unwrap();
    let access = setting.origin().gate("ACCESS");
    let path = setting.at("f");
    let opened = aside(move || File::open(path).unwrap());
    setting.come(&access);
    access.admit(1);
    let (new, path) = (setting.at("new"), setting.at("f"));
    let replaced = aside(move || fs::rename(new, path).unwrap());
    setting.soon(&replaced);
    access.open();
    let file = setting.soon(&opened);
    assert_eq!(read_all(&file), b"old");
    assert_eq!(fs::read(setting.at("f")).unwrap(), b"new");
    drop(file);
    // The name that it had meanwhile is gone.
    wait_until(|| setting.origin().tree().get(&root()).unwrap().names.len() == 1);
}

/// The other order: the removal is under way when the open begins, and has found the file closed.
// Promise: opens-beside-renames
#[test]
fn a_file_is_not_opened_by_a_name_that_is_being_given_to_another() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    fs::write(setting.at("f"), b"old").unwrap();
    fs::write(setting.at("new"), b"new").unwrap();
    let rename = setting.origin().gate("RENAME");
    let (new, path) = (setting.at("new"), setting.at("f"));
    let replaced = aside(move || fs::rename(new, path).unwrap());
    setting.come(&rename);
    let path = setting.at("f");
    let opened = aside(move || File::open(path).unwrap());
    // Long enough for an open that does not wait: its file would be gone.
    let early = opened.recv_timeout(OPENED_AFTER).ok();
    rename.open();
    setting.soon(&replaced);
    let file = early.unwrap_or_else(|| setting.soon(&opened));
    assert_eq!(read_all(&file), b"new");
}

fn read_all(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}
