//! Concurrent requests in a controlled order: the real kernel and the complete front, over a cache, over a
//! gated origin. A gate holds a call back, before it takes effect or before its reply.
//!
//! The tests cover two properties. **A removed file that is open has no link** once `unlink` has returned,
//! whatever was asked before and is answered after. And **no notification closes a cycle**. The kernel may
//! hold a lock for a process that waits for the origin, while the origin waits for this mount to return a
//! lease. That return sends a notification about an object that the same lock guards (see the table in
//! `notify`).
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
use crate::origin::{Bench, Gate, Origin, name, root};
use crate::setting::may_mount;

/// Limit for any operation that no gate blocks.
const SOON: Duration = Duration::from_secs(10);
/// By then the session has checked whether the waiting processes were killed (`session::LOOK`). If this
/// were too short, the test could miss a fault, but it would not fail.
const LOOKED_AFTER: Duration = Duration::from_millis(1600);
/// By then an open that need not wait has finished. If this were too short, the test could miss a fault,
/// but it would not fail.
const OPENED_AFTER: Duration = Duration::from_millis(300);

/// A mount of a gated origin.
struct Setting {
    mount: Option<Mount>,
    bench: Bench,
    runtime: Runtime,
    directory: TempDir,
}

impl Setting {
    /// The caches trust only leases, if the origin grants any.
    fn new(policy: Option<Policy>) -> Setting {
        Setting::with_actimeo(policy, Duration::ZERO)
    }

    fn with_actimeo(policy: Option<Policy>, actimeo: Duration) -> Setting {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut bench = policy.map_or_else(Bench::new, Bench::with_state);
        bench.behind = Some(cache::WriteBehind::default());
        let mut options = bench.options();
        options.timeouts =
            cache::Timeouts { acregmin: actimeo, acregmax: actimeo, acdirmin: actimeo, acdirmax: actimeo };
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

    /// Waits until a call has reached a gate.
    fn come(&self, gate: &Gate) {
        self.runtime.block_on(gate.wait_for(1));
    }

    /// Another client writes a file as soon as the lease on it is returned. Returns the time until then.
    fn others_write(&self, file: &vfs::Handle) -> Duration {
        let start = Instant::now();
        let write = self.origin().others_write(file, 0, b"new");
        let written = async { tokio::time::timeout(SOON, write).await };
        assert!(self.runtime.block_on(written).is_ok(), "the lease is not given back");
        start.elapsed()
    }

    /// As [`soon`], for a process that this test could not end if it hung: on failure the connection is
    /// aborted first.
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

/// Runs work on its own thread, as another process would.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result
}

#[track_caller]
fn soon<T>(result: &Receiver<T>) -> T {
    result.recv_timeout(SOON).expect("it waits for what it need not wait for")
}

/// The state that the origin's reply to a GETATTR shows, relative to the RENAME to the silly name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    BeforeTheRename,
    AfterTheRename,
}

/// A FLUSH and its WRITE are in flight all the time: a program that has just been started closes a copy of
/// the descriptor. GETATTRs of other processes were sent before, for both states of the file.
///
/// The test excludes three faults:
/// - Attributes that were fetched before the removal reach the kernel with a link for the silly name. The
///   front subtracts that link when it builds the reply, not when it fetches.
/// - Such a reply changes the kernel's inode. Linux drops replies to requests that it sent before `unlink`
///   returned: `fuse_entry_unlinked` advances `attr_version`.
/// - The end of a FLUSH brings back old attributes.
///
/// CREATE, LINK and SETATTR need no test: each holds the lock of the inode or of a name that `unlink` holds
/// too. (Linux accepts the attributes of CREATE and LINK whatever their age.)
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
    // The kernel's requests before the removal are not gated.
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

/// An open whose name leads to another file than a moment ago opens that one at the second walk. If a rename
/// over the name is on its way by then, it did not see this open, and the origin keeps no file for it.
// Promise: opens-beside-renames
#[test]
fn a_file_that_a_second_walk_opens_is_not_one_that_a_rename_replaces() {
    if !may_mount() {
        return;
    }
    for held_open in [false, true] {
        eprintln!("held open: {held_open}");
        opened_beside_a_rename(&Setting::new(None), held_open);
    }
}

/// `held_open`: the replaced file is open until the rename is on its way, so that it has a silly name. That
/// name goes before the rename ends.
fn opened_beside_a_rename(setting: &Setting, held_open: bool) {
    let origin = setting.origin();
    origin.put(&root(), "f", b"first");
    origin.put(&root(), "new", b"third");
    let beside = origin.put_dir(&root(), "beside");
    origin.put(&beside, "x", b"");
    // From now on the kernel finds this directory without the lock of its parent.
    fs::metadata(setting.at("beside/x")).unwrap();
    let lookup = origin.gate("LOOKUP");
    lookup.admit(1);
    lookup.reply(1);
    let path = setting.at("f");
    let opened = aside(move || File::open(path));
    // The kernel has found the first file, and the front looks where the name leads.
    setting.runtime.block_on(lookup.wait_for(2));
    origin.gate("LOOKUP").open();
    origin.tree().remove(&root(), &name("f"), false).unwrap();
    origin.put(&root(), "f", b"second");
    let holder = held_open.then(|| File::open(setting.at("f")).unwrap());
    let rename = origin.gate("RENAME");
    let (from, to) = (setting.at("new"), setting.at("f"));
    let renamed = aside(move || fs::rename(from, to).unwrap());
    setting.come(&rename);
    lookup.open();
    std::thread::sleep(OPENED_AFTER);
    drop(holder);
    let remove = origin.gate("REMOVE");
    rename.open();
    if held_open {
        setting.come(&remove);
        // The end of any removal wakes those who wait for one.
        let (from, to) = (setting.at("beside/x"), setting.at("beside/y"));
        setting.soon(&aside(move || fs::rename(from, to).unwrap()));
        std::thread::sleep(OPENED_AFTER);
    }
    remove.open();
    setting.soon(&renamed);
    let file = setting.soon(&opened).unwrap();
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, *b"third");
}

/// The process that removes a name holds the directory's lock, and the origin removes nothing before it has
/// the lease back.
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
    // The second return does not wait longer although the first could not deliver its name notification.
    let took_next = setting.others_write(&other);
    assert!(took.max(took_next) < Duration::from_secs(3), "{took:?}, {took_next:?}");
    assert_eq!((file.metadata().unwrap().len(), beside.metadata().unwrap().len()), (3, 5));
    remove.open();
    soon(&removed);
    assert_eq!(fs::read(setting.at("f")).unwrap(), b"new");
    assert_eq!(fs::read(setting.at("other")).unwrap(), b"newer");
}

/// The same with pages, which are locked while they are read, and with a second file's attributes.
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
    // An open that finds another state drops pages. The kernel waits for that, but no other process does:
    // not one that asks for the file's attributes.
    let path = setting.at("f");
    let opened = aside(move || File::open(path).unwrap().metadata().unwrap().len());
    let looked = file.clone();
    assert_eq!(soon(&aside(move || looked.metadata().unwrap().len())), 1 << 20);
    read.open();
    assert_eq!((soon(&opened), soon(&found).unwrap().len()), (1 << 20, 1 << 20));
    assert_eq!(fs::read(setting.at("f")).unwrap()[..4], *b"newo");
}

/// A process in exec(2) closes its close-on-exec files. Until that is done, some of its `/proc` files
/// block. The close may wait for the origin for longer than the interval at which the session checks for
/// killed processes.
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
    // More processes than threads that answer requests.
    let start = || aside(|| Command::new("true").status().unwrap().success());
    let started: Vec<_> = (0..3).map(|_| start()).collect();
    setting.come(&write);
    std::thread::sleep(LOOKED_AFTER);
    let path = setting.at("other");
    assert_eq!(setting.soon(&aside(move || fs::metadata(path).unwrap().len())), 5);
    write.open();
    assert!(started.iter().all(|started| setting.soon(started)));
}

/// A killed process closes all its files, and nothing can interrupt these closes.
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

/// A process that is killed while it lists a directory gets no nodes, so the kernel will not forget them.
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
    // The kernel forgets the nodes of removed files.
    names.iter().for_each(|name| fs::remove_file(setting.at(name)).unwrap());
    wait_until(|| setting.mount.as_ref().unwrap().stats().nodes == 1);
}

/// The kernel drops parts of a listing that it keeps, as it drops pages of files.
#[test]
fn a_listing_that_the_kernel_has_lost_in_part_is_read_from_the_cache() {
    const FILES: u32 = 400;
    if !may_mount() {
        return;
    }
    let setting = Setting::with_actimeo(None, Duration::from_secs(600));
    for n in 0..FILES {
        setting.origin().put(&root(), &format!("f{n}"), b"x");
    }
    let asks = |lost_after: u32| {
        let directory = File::open(setting.at("")).unwrap();
        let mut room = Vec::with_capacity(4096);
        let mut entries = rustix::fs::RawDir::new(&directory, room.spare_capacity_mut());
        let mut found = 0;
        while let Some(entry) = entries.next() {
            entry.unwrap();
            found += 1;
            if found == lost_after {
                rustix::fs::fadvise(&directory, 0, None, Advice::DontNeed).unwrap();
            }
        }
        assert_eq!(found, FILES + 2);
        setting.origin().calls().iter().any(|(call, _)| *call == "READDIR")
    };
    wait_until(|| !asks(u32::MAX));
    assert!(!asks(100));
    assert!(!asks(u32::MAX), "the kernel has lost it");
}

/// No process has the file open, but READs of the read-ahead wait for the origin. The notification of the
/// file's change waits for their pages, and the end of the unmount waits for the notification.
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

/// An origin without opens does not keep a removed file for its opens, so the mount does. This includes an
/// open in flight: its last call has taken effect, but the program does not have the file yet.
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
    // The silly name is gone.
    wait_until(|| setting.origin().tree().get(&root()).unwrap().names.len() == 1);
}

/// The other order: the removal is in flight when the open begins, and has found the file closed.
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
    // Long enough for an open that does not wait; the file of such an open would be gone.
    let early = opened.recv_timeout(OPENED_AFTER).ok();
    rename.open();
    setting.soon(&replaced);
    let file = early.unwrap_or_else(|| setting.soon(&opened));
    assert_eq!(read_all(&file), b"new");
}

/// How often another client comes between, in the next test.
const ROUNDS: u64 = 4;

/// The kernel has found no such name. Another client makes the file before the CREATE gets to the origin,
/// and removes it when this mount has found it.
// Promise: opens-beside-renames
#[test]
fn a_file_is_made_however_often_others_make_and_remove_it() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new(None);
    let create = setting.origin().gate("CREATE");
    let path = setting.at("f");
    let made = aside(move || File::options().write(true).create(true).truncate(false).open(path));
    for round in 1..=ROUNDS {
        setting.runtime.block_on(create.wait_for(round));
        let origin = setting.origin().clone();
        origin.put(&root(), "f", b"");
        let remove = move || {
            let _wcc = origin.tree().remove(&root(), &name("f"), false).unwrap();
        };
        *setting.origin().after_effect.lock() = Some((Some("LOOKUP"), Box::new(remove)));
        create.admit(1);
        create.reply(1);
    }
    create.open();
    let file = setting.soon(&made).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    drop(file);
    assert_eq!(fs::read(setting.at("f")).unwrap(), b"x");
}

fn read_all(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
    bytes
}
