//! Directories that clients list again and again: a READDIRPLUS costs one system call an entry.
//!
//! The second listing of an unchanged directory remembers its names, each with the open file ([`Node`])
//! under it. A later listing takes the attributes from these files. It runs in the requester's task: it
//! opens nothing and waits for no disk.
//!
//! Under these conditions, each remembered name still leads to its file:
//!
//! - **The directory has the ctime that it had before its names were read**, and each change of its names
//!   gives it another one ([`Mount::tells_changes`](crate::mounts::Mount::tells_changes)). The kernel sets
//!   ctime first and lets lookups see the change later, both with the directory locked. Reading the names
//!   takes the same lock. So the changes up to that ctime were finished when the files were opened. A change
//!   after it had not begun to show when the ctime was compared again.
//! - **The kernel has reported no change of the mount table** since then
//!   ([`Mounts::generation`](crate::mounts::Mounts::generation)). A mount on an entry changes no ctime.
//! - **The caller may list and search the directory**, as the kernel decided for this ctime.
//!
//! Handle and attributes belong together in any case: both are those of one open file. If one of the files
//! was closed meanwhile (it was idle, or others needed the descriptors), the directory is read again.
//!
//! The number of directories and of their entries is bounded. A directory has one possible place, so a new
//! one replaces an old one without a search.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use vfs::{Entry, Handle, Listing, Name, Principal, ReadDir, Status, Timestamp};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::directory::{self, Budget, Opened};
use crate::permission::{EXECUTE, READ};
use crate::tree::{Tree, open_child};

/// Number of directories that are remembered at most.
const DIRECTORIES_MAX: usize = 64;
/// Entries of a remembered directory at most. All of them take less than a millisecond.
const ENTRIES_MAX: usize = 512;

/// The remembered directories.
pub(crate) struct Listings {
    places: Vec<Mutex<Option<Listed>>>,
    hasher: RandomState,
}

/// A directory that was listed.
struct Listed {
    directory: Handle,
    ctime: Timestamp,
    memory: Memory,
}

/// The knowledge of a directory that was listed.
#[derive(Clone)]
enum Memory {
    /// It was listed once.
    Once,
    /// It was to be remembered, and its names are not known yet. If there are too many, this remains.
    Reading,
    Names(Arc<Names>),
}

/// All names of a directory, in the kernel's order.
struct Names {
    /// Changes of the mount table before they were read.
    mounts: u64,
    entries: Vec<Remembered>,
}

/// A name and its file.
struct Remembered {
    name: Name,
    fileid: u64,
    cookie: u64,
    /// `None` if another file system is mounted there.
    node: Option<Weak<Node>>,
}

impl Listings {
    pub(crate) fn new() -> Listings {
        Listings {
            places: (0..DIRECTORIES_MAX).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        }
    }

    /// The names of a directory with this ctime.
    fn names(&self, directory: &Handle, ctime: Timestamp) -> Option<Arc<Names>> {
        match &self.place(directory).lock().as_ref()?.of(directory, ctime)?.memory {
            Memory::Names(names) => Some(names.clone()),
            Memory::Once | Memory::Reading => None,
        }
    }

    /// Records that a directory with this ctime is being listed. True if its names should be remembered now.
    fn is_listed_again(&self, directory: &Handle, ctime: Timestamp) -> bool {
        let mut place = self.place(directory).lock();
        let before =
            place.as_ref().and_then(|listed| listed.of(directory, ctime)).map(|listed| &listed.memory);
        let memory = if before.is_some() { Memory::Reading } else { Memory::Once };
        let again = matches!(before, Some(Memory::Once | Memory::Names(_)));
        *place = Some(Listed { directory: *directory, ctime, memory });
        again
    }

    fn remember(&self, directory: &Handle, ctime: Timestamp, names: Names) {
        let memory = Memory::Names(Arc::new(names));
        *self.place(directory).lock() = Some(Listed { directory: *directory, ctime, memory });
    }

    /// The names of a directory with this ctime cannot be remembered.
    fn give_up(&self, directory: &Handle, ctime: Timestamp) {
        *self.place(directory).lock() =
            Some(Listed { directory: *directory, ctime, memory: Memory::Reading });
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for place in &self.places {
            *place.lock() = None;
        }
    }

    fn place(&self, directory: &Handle) -> &Mutex<Option<Listed>> {
        &self.places[self.hasher.hash_one(directory) as usize % DIRECTORIES_MAX]
    }
}

impl Listed {
    fn of(&self, directory: &Handle, ctime: Timestamp) -> Option<&Listed> {
        (self.ctime == ctime && self.directory == *directory).then_some(self)
    }
}

/// Reads from a cookie on, if the directory is remembered and the caller is known to have the rights.
pub(crate) fn read_remembered(
    tree: &Tree,
    principal: &Principal,
    directory: &Node,
    part: &ReadDir,
) -> Result<Option<Listing>, Status> {
    let stat = tree.stat_directory(directory)?;
    let Some(names) = tree.listings.names(&directory.handle, stat.ctime()) else { return Ok(None) };
    if !directory.is_granted(principal, &stat, READ | EXECUTE) {
        return Ok(None);
    }
    if tree.mounts.generation() != Some(names.mounts) {
        return Ok(None);
    }
    let Some(from) = names.position(part.cookie) else { return Ok(None) };
    let Some((entries, eof)) = entries(tree, &names.entries[from..], part) else { return Ok(None) };
    let directory = Some(stat.attributes(directory.mount.fsid));
    Ok(Some(Listing { entries, verifier: [0; 8], eof, directory, directory_lease: None }))
}

/// As [`read_remembered`], after the rights of the caller were checked and the directory was remembered, if
/// that is possible and necessary.
pub(crate) fn read_again(
    tree: &Tree,
    principal: &Principal,
    opened: &Opened<'_>,
    part: &ReadDir,
) -> Result<Option<Listing>, Status> {
    let Opened { directory, stat, .. } = opened;
    // A right that is not granted for this ctime will not be found later either.
    if !opened.tells_changes
        || directory.check(principal, stat, READ | EXECUTE).is_err()
        || !directory.is_granted(principal, stat, READ | EXECUTE)
    {
        return Ok(None);
    }
    if let Some(listing) = read_remembered(tree, principal, directory, part)? {
        return Ok(Some(listing));
    }
    if !tree.listings.is_listed_again(&directory.handle, stat.ctime()) {
        return Ok(None);
    }
    let Some(names) = read_names(tree, opened) else { return Ok(None) };
    tree.listings.remember(&directory.handle, stat.ctime(), names);
    let listing = read_remembered(tree, principal, directory, part)?;
    if listing.is_none() {
        // Its files were closed at once.
        tree.listings.give_up(&directory.handle, stat.ctime());
    }
    Ok(listing)
}

/// All names, with an open file for each. `None` if there are too many, if the directory is being changed,
/// or if an entry cannot be opened.
fn read_names(tree: &Tree, opened: &Opened<'_>) -> Option<Names> {
    let directory = opened.directory;
    let mounts = tree.mounts.generation()?;
    let (names, true) = directory::names(&opened.file, Budget::entries(ENTRIES_MAX)).ok()? else {
        return None;
    };
    // The open files are idle ones: they must not drive out those of other clients.
    if names.len() > tree.descriptors.idle_max() / 4 {
        return None;
    }
    let mut entries = Vec::with_capacity(names.len());
    for Entry { name, fileid, cookie, .. } in names {
        let path = open_child(&opened.file, &name).ok()?;
        let found = tree.describe(directory, Some(&name), &path).ok()?;
        let is_inside = found.mount.id == directory.mount.id;
        let node = is_inside.then(|| tree.keep(&found, path));
        entries.push(Remembered { name, fileid, cookie, node: node.as_ref().map(Arc::downgrade) });
    }
    opened.is_unchanged().then_some(Names { mounts, entries })
}

/// The entries that fit, and whether they are all. `None` if a file was closed meanwhile.
fn entries(tree: &Tree, names: &[Remembered], part: &ReadDir) -> Option<(Vec<Entry>, bool)> {
    let mut budget = Budget::of(part);
    let mut entries = Vec::with_capacity(names.len());
    for remembered in names {
        if !budget.fits(&remembered.name) {
            return Some((entries, false));
        }
        let node = match &remembered.node {
            Some(node) if part.plus => Some(described(tree, node)?),
            _ => None,
        };
        entries.push(Entry {
            fileid: remembered.fileid,
            cookie: remembered.cookie,
            node,
            name: remembered.name.clone(),
            file_type: None,
        });
    }
    Some((entries, true))
}

fn described(tree: &Tree, node: &Weak<Node>) -> Option<vfs::Node> {
    let node = node.upgrade()?;
    tree.descriptors.touch(&node);
    let stat = Stat::of(&node.path).ok()?;
    let stat = tree.numbered(&stat, &node.mount, Some(&node));
    Some(vfs::Node { handle: node.handle, attributes: Some(stat.attributes(node.mount.fsid)) })
}

impl Names {
    /// The index after the entry with this cookie.
    fn position(&self, cookie: u64) -> Option<usize> {
        if cookie < Entry::FIRST_COOKIE {
            return Some(0);
        }
        self.entries.iter().position(|entry| entry.cookie == cookie).map(|at| at + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Options, workers};

    const ALL: ReadDir = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1 << 20,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };

    fn me() -> Principal {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        vfs::Caller::unix(uid, gid, &[]).principal
    }

    fn tree(home: &tempfile::TempDir, files: usize) -> Tree {
        workers::start().unwrap();
        let directory = home.path().join("exported");
        std::fs::create_dir(&directory).unwrap();
        for number in 0..files {
            std::fs::write(directory.join(number.to_string()), "").unwrap();
        }
        // Longer than a tick: rights are cached only then.
        std::thread::sleep(Duration::from_millis(50));
        Tree::open(&directory, Options::new(home.path().join("state"))).unwrap()
    }

    fn is_remembered(tree: &Tree) -> bool {
        read_remembered(tree, &me(), &tree.root, &ALL).unwrap().is_some()
    }

    #[test]
    fn the_second_listing_remembers() {
        let home = tempfile::tempdir().unwrap();
        let tree = tree(&home, 10);
        if !tree.names_by_kernel(&tree.root.mount) {
            eprintln!("skipped: no handles of the kernel");
            return;
        }
        let list = || directory::read(&tree, &me(), &tree.root, ALL).unwrap().entries;
        let first = list();
        assert!(!is_remembered(&tree));
        assert_eq!(list(), first);
        assert!(is_remembered(&tree));
        let remembered = read_remembered(&tree, &me(), &tree.root, &ALL).unwrap();
        assert_eq!(remembered.map(|listing| listing.entries), Some(first));
        // A closed file, and a change.
        tree.descriptors.clear();
        assert!(!is_remembered(&tree));
        list();
        assert!(is_remembered(&tree));
        std::fs::write(home.path().join("exported/new"), "").unwrap();
        assert!(!is_remembered(&tree));
    }

    #[test]
    fn a_large_directory_is_tried_once() {
        let home = tempfile::tempdir().unwrap();
        let tree = tree(&home, ENTRIES_MAX + 1);
        for _ in 0..4 {
            assert_eq!(
                directory::read(&tree, &me(), &tree.root, ALL).unwrap().entries.len(),
                ENTRIES_MAX + 1
            );
        }
        assert!(!is_remembered(&tree));
        let ctime = tree.stat(&tree.root).unwrap().ctime();
        assert!(!tree.listings.is_listed_again(&tree.root.handle, ctime));
    }

    /// Directories share places: the bound holds, and each is remembered for as long as it is alone.
    #[test]
    fn places_are_bounded() {
        let listings = Listings::new();
        let ctime = Timestamp::new(1, 1);
        for number in 0..10_u32 * DIRECTORIES_MAX as u32 {
            let directory = Handle::new(&number.to_be_bytes()).unwrap();
            assert!(!listings.is_listed_again(&directory, ctime));
            assert!(listings.is_listed_again(&directory, ctime));
            listings.remember(&directory, ctime, Names { mounts: 0, entries: Vec::new() });
            assert!(listings.names(&directory, ctime).is_some());
            assert!(listings.names(&directory, Timestamp::new(1, 2)).is_none());
        }
        assert_eq!(listings.places.len(), DIRECTORIES_MAX);
    }
}
