//! READDIRPLUS while names change: handle and attributes of an entry belong to one file, and a listing has
//! every change that ended before it began.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Served, is_root, name, serve, user};
use rustix::fs::{CWD, RenameFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use vfs::{Caller, Entry, FileSystem, FileType, Handle, ReadDir, Status};

/// How long names are changed.
const DURATION: Duration = Duration::from_secs(4);
/// Threads that change names of a directory, each with names of its own.
const CHANGERS: u64 = 3;
const NAMES_EACH: u64 = 8;
/// Longer than a tick of the kernel's clock. After it, a directory can be remembered.
const PAUSE: Duration = Duration::from_millis(45);

/// A caller that the process can serve.
fn me() -> Caller {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Caller::unix(uid, gid, &[])
}

async fn list(served: &Served, caller: &Caller, directory: &Handle) -> Result<Vec<Entry>, Status> {
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1 << 20,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let listing = served.fs.readdir(caller, directory, part).await.map_err(|error| error.status)?;
    assert!(listing.eof);
    Ok(listing.entries)
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Changes names of `directory`. Objects are made in `beside`, complete, and then moved.
struct Changer {
    random: Random,
    number: u64,
    directory: PathBuf,
    beside: PathBuf,
}

/// The size of each object, so that two objects with one inode number are told apart.
static NEXT_SIZE: AtomicU64 = AtomicU64::new(1);

impl Changer {
    fn any_name(&mut self) -> PathBuf {
        self.directory.join(format!("{}-{}", self.number, self.random.below(NAMES_EACH)))
    }

    fn make(&mut self) -> PathBuf {
        let size = NEXT_SIZE.fetch_add(1, Ordering::Relaxed);
        let made = self.beside.join(size.to_string());
        match self.random.below(4) {
            0 => std::fs::create_dir(&made).unwrap(),
            1 => std::os::unix::fs::symlink("t".repeat(1 + size as usize % 4000), &made).unwrap(),
            _ => File::create(&made).unwrap().set_len(size).unwrap(),
        }
        made
    }

    fn change(&mut self) {
        let (at, other) = (self.any_name(), self.any_name());
        match self.random.below(6) {
            0 => remove(&at),
            1 => {
                let _ = std::fs::rename(at, other);
            }
            2 => {
                let _ = rustix::fs::renameat_with(CWD, &at, CWD, &other, RenameFlags::EXCHANGE);
            }
            3 => {
                // The inode number is often that of the removed object.
                remove(&at);
                let made = self.make();
                std::fs::rename(made, at).unwrap();
            }
            _ => {
                let made = self.make();
                if rustix::fs::renameat_with(CWD, &made, CWD, &at, RenameFlags::EXCHANGE).is_err() {
                    std::fs::rename(&made, &at).unwrap();
                }
                remove(&made);
            }
        }
    }

    /// Every name of this thread is listed as it is now.
    fn check(&self, entries: &[Entry]) {
        for index in 0..NAMES_EACH {
            let wanted = format!("{}-{index}", self.number);
            let there = std::fs::symlink_metadata(self.directory.join(&wanted)).ok();
            let listed = entries.iter().find(|entry| entry.name == name(&wanted));
            let described = listed.map(|entry| entry.node.unwrap().attributes.unwrap());
            let seen = described.map(|attributes| (attributes.fileid, attributes.file_type));
            assert_eq!(seen, there.as_ref().map(|there| (there.ino(), file_type(there))), "{wanted}");
        }
    }
}

fn remove(path: &Path) {
    if std::fs::remove_file(path).is_err() {
        let _ = std::fs::remove_dir(path);
    }
}

fn file_type(metadata: &Metadata) -> FileType {
    if metadata.is_dir() {
        FileType::Directory
    } else if metadata.is_symlink() {
        FileType::Symlink
    } else {
        FileType::Regular
    }
}

/// The handle of each entry leads to the file of its attributes.
async fn check_handles(served: &Served, entries: &[Entry]) -> usize {
    let mut checked = 0;
    for entry in entries {
        let Some(node) = entry.node else { continue };
        let listed = node.attributes.unwrap();
        let got = match served.fs.getattr(&me(), &node.handle).await {
            Ok(got) => got,
            Err(error) if error.status == Status::Stale => continue, // it was removed since
            Err(error) => panic!("{error:?}"),
        };
        assert_eq!((got.fileid, got.file_type), (listed.fileid, listed.file_type), "{:?}", entry.name);
        if got.file_type != FileType::Directory {
            assert_eq!(got.size, listed.size, "{:?}", entry.name);
        }
        checked += 1;
    }
    checked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn handle_and_attributes_belong_together_whatever_is_renamed() {
    let served = Arc::new(serve());
    std::fs::create_dir(served.path("d")).unwrap();
    std::fs::create_dir(served.path("beside")).unwrap();
    let directory = served.handle("d").await;
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    eprintln!("seed {seed}");
    let over = Arc::new(AtomicBool::new(false));
    let mut changers = Vec::new();
    for number in 0..CHANGERS {
        let (served, over, runtime) = (served.clone(), over.clone(), tokio::runtime::Handle::current());
        let mut changer = Changer {
            random: Random(seed.wrapping_mul(2 * number + 1)),
            number,
            directory: served.path("d"),
            beside: served.path("beside"),
        };
        changers.push(std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for _ in 0..changer.random.below(40) {
                    changer.change();
                }
                for _ in 0..4 {
                    let entries = runtime.block_on(list(&served, &me(), &directory)).unwrap();
                    changer.check(&entries);
                    if changer.random.below(2) == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }));
    }
    let mut listers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (served, over) = (served.clone(), over.clone());
        listers.spawn(async move {
            let mut checked = 0;
            while !over.load(Ordering::Relaxed) {
                let entries = list(&served, &me(), &directory).await.unwrap();
                checked += check_handles(&served, &entries).await;
            }
            checked
        });
    }
    let began = Instant::now();
    while began.elapsed() < DURATION && !changers.iter().any(std::thread::JoinHandle::is_finished) {
        tokio::time::sleep(PAUSE).await;
    }
    over.store(true, Ordering::Relaxed);
    for changer in changers {
        tokio::task::spawn_blocking(move || changer.join()).await.unwrap().unwrap();
    }
    let checked: usize = listers.join_all().await.into_iter().sum();
    assert!(checked > 100, "only {checked} entries were checked");
}

/// Lists until the directory can be remembered, and twice more.
async fn list_until_remembered(served: &Served, caller: &Caller, directory: &Handle) -> Vec<Entry> {
    tokio::time::sleep(PAUSE).await;
    for _ in 0..3 {
        list(served, caller, directory).await.unwrap();
    }
    list(served, caller, directory).await.unwrap()
}

#[tokio::test]
async fn a_remembered_directory_shows_what_processes_change() {
    let served = serve();
    std::fs::create_dir(served.path("d")).unwrap();
    for file in ["a", "b", "c"] {
        std::fs::write(served.path("d").join(file), file).unwrap();
    }
    let directory = served.handle("d").await;
    let first = list(&served, &me(), &directory).await.unwrap();
    assert_eq!(list_until_remembered(&served, &me(), &directory).await, first);
    // Attributes, which the directory knows nothing of.
    std::fs::write(served.path("d/a"), "longer").unwrap();
    std::fs::set_permissions(served.path("d/b"), PermissionsExt::from_mode(0o640)).unwrap();
    let listed = list(&served, &me(), &directory).await.unwrap();
    let find = |listed: &[Entry], wanted: &str| {
        listed.iter().find(|entry| entry.name == name(wanted)).map(|entry| entry.node.unwrap())
    };
    assert_eq!(find(&listed, "a").unwrap().attributes.unwrap().size, 6);
    assert_eq!(find(&listed, "b").unwrap().attributes.unwrap().mode, 0o640);
    // Names.
    std::fs::rename(served.path("d/a"), served.path("d/b")).unwrap();
    let listed = list(&served, &me(), &directory).await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(find(&listed, "b").unwrap().handle, find(&first, "a").unwrap().handle);
    std::fs::remove_file(served.path("d/c")).unwrap();
    assert_eq!(list(&served, &me(), &directory).await.unwrap().len(), 1);
    // In parts.
    list_until_remembered(&served, &me(), &directory).await;
    let cookie = listed[0].cookie;
    let part = ReadDir {
        cookie,
        verifier: [0; 8],
        bytes: 1,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let rest = served.fs.readdir(&me(), &directory, part).await.unwrap();
    assert!(rest.eof && rest.entries.len() <= 1);
}

#[tokio::test]
async fn a_remembered_directory_is_listed_by_right() {
    if !is_root() {
        return;
    }
    let served = serve();
    std::fs::create_dir(served.path("d")).unwrap();
    std::fs::write(served.path("d/a"), "").unwrap();
    let directory = served.handle("d").await;
    assert_eq!(list_until_remembered(&served, &user(1000), &directory).await.len(), 1);
    std::fs::set_permissions(served.path("d"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(list_until_remembered(&served, &user(0), &directory).await.len(), 1);
    assert_eq!(list(&served, &user(1000), &directory).await.unwrap_err(), Status::Access);
    // A caller that may list and not search sees names only.
    std::fs::set_permissions(served.path("d"), PermissionsExt::from_mode(0o744)).unwrap();
    assert!(list_until_remembered(&served, &user(0), &directory).await[0].node.is_some());
    assert!(list(&served, &user(1000), &directory).await.unwrap()[0].node.is_none());
}

#[tokio::test]
async fn a_mount_on_an_entry_hides_it_at_once() {
    if !is_root() {
        return;
    }
    let served = serve();
    std::fs::create_dir_all(served.path("d/mnt")).unwrap();
    let directory = served.handle("d").await;
    let before = list_until_remembered(&served, &me(), &directory).await;
    assert!(before[0].node.is_some());
    let at = served.path("d/mnt");
    if let Err(errno) = rustix::mount::mount("tmpfs", &at, "tmpfs", MountFlags::empty(), Some(c"size=1m")) {
        eprintln!("skipped: mounting a tmpfs is refused: {errno}");
        return;
    }
    let hidden = list(&served, &me(), &directory).await.unwrap()[0].node;
    let remembered = list_until_remembered(&served, &me(), &directory).await[0].node;
    rustix::mount::unmount(&at, UnmountFlags::DETACH).unwrap();
    let after = list(&served, &me(), &directory).await.unwrap();
    assert_eq!((hidden, remembered), (None, None), "a mount point is looked up, not listed");
    assert_eq!(after, before);
}
