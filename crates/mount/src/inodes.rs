//! Nodes: the kernel's node numbers, the handles of the layer below, and the kernel's lookup counts.
//!
//! A node number is never reused for another file during a mount. Programs do not see it: they see the
//! origin's `fileid`, which is in the attributes. The kernel counts each reply that names a node and
//! subtracts that count with FORGET. At zero the node is gone.
//!
//! A node remembers where its file was found. An open goes by name, so that it finds the file that the name
//! leads to now. If the file is removed or renamed while it is open, the name identifies its node. A file
//! may be found under several names: its links, or a name that another client has given it since. The
//! kernel may cache each of them, and an OPEN does not say which name it came by.
//!
//! A forgotten number is remembered for some time with its file. Programs with a file handle
//! (open_by_handle_at(2)) use that number again, and a new lookup of the file gets it again.
//!
//! A node may be **retired**: the next lookup of its file gets a new node, and existing opens keep the old
//! one. This is how a file leaves passthrough: the kernel cannot undo passthrough for an existing open. The
//! nodes of a file share the count of its opens.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{
    Attributes, Handle, Lease, Name, OpenId, Owner, Share, SharedHandle, Verifier, Wcc, WccAttributes,
};

use crate::front::wall;
use crate::inodes::forgotten::Forgotten;
use crate::ops::doubt::Doubt;
use crate::pages::Pages;
use crate::passthrough::Passed;
use crate::wire::abi::ROOT;

mod forgotten;
mod opens;
mod part;

pub use self::opens::{Opens, Silly};
use self::part::{Absent, Part};

/// Names remembered for each file. If a file has more links, the kernel may cache none of its names.
pub const NAMES_MAX: usize = 8;
/// Entries of retired nodes that are kept without a check whether they are used.
const RETIRED_MIN: usize = 1024;

/// The places of a file: the node of the directory and the name. Most files have one.
pub type Names = SmallVec<[(u64, Name); 1]>;

/// A file that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    /// Its node number.
    pub number: u64,
    handle: SharedHandle,
    /// The mutable part. Lock order: the table first, then this.
    pub state: Mutex<NodeState>,
    /// The opens of the file, by this node or another.
    pub opens: Arc<Opens>,
    /// Most nodes lack them.
    waits: OnceLock<Box<Waits>>,
}

/// What tasks may wait for at a node.
#[derive(Debug, Default)]
pub struct Waits {
    /// Woken when a lock on the file may be free.
    pub unlocked: Notify,
    /// Woken when the kernel has dropped the doubted names of this directory.
    pub settled: Notify,
    /// Held during an append while the kernel may be wrong about the end of file: it may send several
    /// direct writes at a time.
    pub appending: tokio::sync::Mutex<()>,
}

/// The mutable part of an inode.
#[derive(Debug, Default)]
pub struct NodeState {
    /// Where the file was found and may still be: the node of the directory and the name. The latest is
    /// last.
    pub names: Names,
    /// The last of `names` that was taken away. A thread that found the node under it will look it up again.
    pub last_name: Option<Box<(u64, Name)>>,
    /// The lease that the layer below has granted.
    pub lease: Option<Lease>,
    /// The attributes last sent to the kernel.
    pub told: Option<WccAttributes>,
    /// The size last sent to the kernel.
    pub told_size: u64,
    /// The time of the last lock of the file. For a directory: of the last lock of a file in it.
    pub locked: Option<Instant>,
    /// What a directory has besides.
    pub directory: Part<DirectoryPart>,
    /// What a file has that was opened.
    pub opened: Part<OpenedPart>,
    /// What a file has that was locked.
    pub locks: Part<LocksPart>,
}

/// The part of a directory's node.
#[derive(Debug, Default)]
pub struct DirectoryPart {
    /// For a directory that another client has moved: its name in another directory, which the kernel is
    /// being told to drop.
    pub moved_from: Option<(u64, Name)>,
    /// The attributes last sent to the kernel.
    pub seen: Option<Attributes>,
    /// What processes see that have the directory open after its removal.
    pub removed: Option<Removed>,
    /// The listing that the kernel keeps, if it is complete.
    pub listed: Option<Listed>,
    /// The open by which the kernel is reading that listing now.
    pub lister: Option<u64>,
    /// Names that the kernel caches although another client may have changed them.
    pub doubt: Doubt,
}

impl Absent for DirectoryPart {
    const ABSENT: &'static DirectoryPart = &DirectoryPart {
        moved_from: None,
        seen: None,
        removed: None,
        listed: None,
        lister: None,
        doubt: Doubt::NONE,
    };
}

/// The part of the node of a file that was opened.
#[derive(Debug, Default)]
pub struct OpenedPart {
    /// Number of opens of this node.
    pub opens: u32,
    /// Opens that may write.
    pub writers: u32,
    /// Opens that read through the page cache or through this process.
    pub ordinary: u32,
    /// The backing file of the other opens. The kernel demands the same one for all of them.
    pub backing: Option<Arc<Passed>>,
    /// The state of the kernel's page cache for this file.
    pub pages: Pages,
    /// Number of opens and locks. Each may have shown another size than the kernel's.
    pub looks: u64,
    /// The value of `looks` when the kernel last appended at the true end of file.
    pub ends_known: u64,
}

impl Absent for OpenedPart {
    const ABSENT: &'static OpenedPart = &OpenedPart {
        opens: 0,
        writers: 0,
        ordinary: 0,
        backing: None,
        pages: Pages::NONE,
        looks: 0,
        ends_known: 0,
    };
}

/// The part of the node of a file that was locked.
#[derive(Debug, Default)]
pub struct LocksPart {
    /// The processes that got locks on the file, by lock owner, with the open that they used last. An entry
    /// stays until the owner gives up all its locks or that open is released. The kernel does not say which
    /// owners are open files (`F_OFD_SETLK`).
    pub lockers: BTreeMap<Owner, Locker>,
    /// Opens with locks of which a descriptor was closed, and when. Their RELEASE may be on its way.
    pub leaving: BTreeMap<OpenId, Instant>,
}

impl Absent for LocksPart {
    const ABSENT: &'static LocksPart = &LocksPart { lockers: BTreeMap::new(), leaving: BTreeMap::new() };
}

/// A directory that was removed.
#[derive(Clone, Debug)]
pub struct Removed {
    /// The attributes last sent to the kernel, without a link.
    pub attributes: Attributes,
    /// If another client has removed it: the name by which the kernel knew it.
    pub at: Option<(u64, Name)>,
    /// When the kernel dropped that name.
    pub dropped: Option<Instant>,
}

/// The process behind a lock owner.
#[derive(Clone, Copy, Debug)]
pub struct Locker {
    /// The process that asked for the latest lock.
    pub pid: u32,
    /// The open that it used.
    pub open: OpenId,
}

/// A directory listing that the kernel keeps.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The state of the directory at the open by which it was read.
    pub state: WccAttributes,
    /// The end of the validity of the file attributes that came with the listing.
    pub until: Instant,
    /// Its cookie verifier: the kernel may have lost a part of it, and asks for that by a cookie.
    pub verifier: Verifier,
}

/// The nodes.
#[derive(Debug)]
pub struct Inodes {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    by_number: HashMap<u64, (Arc<Inode>, u64)>,
    by_handle: HashSet<ByHandle>,
    /// The opens of files of which a node was retired.
    retired: HashMap<Handle, Weak<Opens>>,
    /// The size of `retired` at which unused entries are dropped.
    retired_max: usize,
    /// Ordered, so that the names of a directory are adjacent.
    by_name: BTreeMap<(u64, Name), Told>,
    forgotten: Forgotten,
    next: u64,
}

/// The current node of a file, found by the handle of the file.
#[derive(Debug)]
struct ByHandle(Arc<Inode>);

impl Borrow<[u8]> for ByHandle {
    fn borrow(&self) -> &[u8] {
        self.0.handle.as_bytes()
    }
}

impl Hash for ByHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.handle.as_bytes().hash(state);
    }
}

impl PartialEq for ByHandle {
    fn eq(&self, other: &ByHandle) -> bool {
        self.0.handle == other.0.handle
    }
}

impl Eq for ByHandle {}

/// A name that was sent to the kernel.
#[derive(Clone, Copy, Debug)]
struct Told {
    number: u64,
    /// How long the kernel may cache it.
    until: Instant,
}

impl Inode {
    fn new(number: u64, handle: Handle, opens: Arc<Opens>) -> Arc<Inode> {
        let (state, waits) = <_>::default();
        Arc::new(Inode { number, handle: (&handle).into(), state, opens, waits })
    }

    /// Its handle in the layer below.
    pub fn handle(&self) -> Handle {
        self.handle.handle()
    }

    /// What tasks may wait for here.
    pub fn waits(&self) -> &Waits {
        self.waits.get_or_init(Box::default)
    }

    /// A lock on the file may be free.
    pub fn wake_lockers(&self) {
        // Nobody has waited at a node without this part.
        if let Some(waits) = self.waits.get() {
            waits.unlocked.notify_waiters();
        }
    }

    /// Is a valid lease held on it?
    pub fn is_leased(&self) -> bool {
        self.state.lock().lease.is_some_and(|lease| is_valid(&lease))
    }

    /// A lock owner has given up its locks on the file.
    pub fn forget_locker(&self, owner: &Owner) {
        if let Some(locks) = self.state.lock().locks.used() {
            locks.lockers.remove(owner);
        }
    }

    /// If it is a directory, it was removed: processes that have it open see a link count of zero. `at`: the
    /// name by which the kernel may still know it.
    pub fn is_removed(&self, at: Option<(u64, Name)>) {
        let mut state = self.state.lock();
        if let Some(mut left) = state.directory.used().and_then(|part| part.seen.take()) {
            (left.nlink, left.ctime) = (0, wall());
            state.directory.removed = Some(Removed { attributes: left, at, dropped: None });
        }
    }
}

impl NodeState {
    /// Counts an open. `passed` says whether it reads from the backing file.
    pub fn opened(&mut self, access: Share, passed: bool) {
        self.opened.opens += 1;
        self.opened.writers += u32::from(access.contains(Share::WRITE));
        self.opened.ordinary += u32::from(!passed);
    }

    /// Undoes the count of [`NodeState::opened`], with the same arguments.
    pub fn closed(&mut self, access: Share, passed: bool) {
        let (writers, ordinary) = (u32::from(access.contains(Share::WRITE)), u32::from(!passed));
        let opened = &mut self.opened;
        let counted = opened.opens > 0 && opened.writers >= writers && opened.ordinary >= ordinary;
        debug_assert!(counted, "an open is closed that was not counted");
        opened.opens = opened.opens.saturating_sub(1);
        opened.writers = opened.writers.saturating_sub(writers);
        opened.ordinary = opened.ordinary.saturating_sub(ordinary);
    }

    /// Records a WRITE for the kernel. The kernel knows the new size by itself and asks for the times when
    /// it needs them. So the state that it was told before the write counts as the state after it.
    pub fn wrote(&mut self, wcc: &Wcc, leased: bool) {
        if let Some((before, after)) = self.opened.pages.wrote(wcc, leased)
            && self.told == Some(before)
        {
            self.told = Some(after);
        }
    }
}

/// A node that is not in passthrough and does not enter it while this value exists.
#[must_use]
#[derive(Debug)]
pub struct OrdinaryInode(Arc<Inode>);

impl Deref for OrdinaryInode {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        &self.0
    }
}

impl Drop for OrdinaryInode {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        debug_assert!(state.opened.ordinary > 0, "an ordinary open ends that was not counted");
        state.opened.ordinary = state.opened.ordinary.saturating_sub(1);
    }
}

/// Is the lease still within its term?
pub fn is_valid(lease: &Lease) -> bool {
    lease.until.is_none_or(|until| Instant::now() < until)
}

impl Table {
    /// Adds a node with one lookup for a file that has none. Reuses the last number of the file, if that is
    /// remembered.
    fn add(&mut self, handle: &Handle) -> Arc<Inode> {
        let number = self.forgotten.take(handle).unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let inode = Inode::new(number, *handle, self.opens_of(handle));
        self.by_number.insert(number, (inode.clone(), 1));
        self.by_handle.replace(ByHandle(inode.clone()));
        inode
    }

    /// The opens of a file that gets a node.
    fn opens_of(&self, handle: &Handle) -> Arc<Opens> {
        let shared = self.by_handle.get(handle.as_bytes()).map(|current| current.0.opens.clone());
        shared.or_else(|| self.retired.get(handle)?.upgrade()).unwrap_or_default()
    }

    /// The number of the current node of a file.
    fn number_of(&self, handle: &Handle) -> Option<u64> {
        self.by_handle.get(handle.as_bytes()).map(|current| current.0.number)
    }

    fn retire(&mut self, inode: &Inode) {
        self.by_handle.remove(inode.handle.as_bytes());
        if self.retired.len() >= self.retired_max {
            self.retired.retain(|_, opens| opens.strong_count() > 0);
            self.retired_max = RETIRED_MIN.max(2 * self.retired.len());
        }
        self.retired.insert(inode.handle(), Arc::downgrade(&inode.opens));
    }

    fn unname(&mut self, name: &(u64, Name), number: u64) {
        if self.by_name.get(name).is_some_and(|told| told.number == number) {
            self.by_name.remove(name);
        }
    }
}

impl Inodes {
    /// A table with the root only.
    pub fn new(root: Handle) -> Inodes {
        let root = Inode::new(ROOT, root, Arc::default());
        let table = Table {
            by_number: HashMap::from([(ROOT, (root.clone(), 1))]),
            by_handle: HashSet::from([ByHandle(root)]),
            retired: HashMap::new(),
            retired_max: RETIRED_MIN,
            by_name: BTreeMap::new(),
            forgotten: Forgotten::default(),
            next: ROOT + 1,
        };
        Inodes { table: Mutex::new(table) }
    }

    /// The inode of a node number.
    pub fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.table.lock().by_number.get(&number).map(|(inode, _)| inode.clone())
    }

    /// The file of a node number, even if the kernel has forgotten the node.
    pub fn file_of(&self, number: u64) -> Option<Handle> {
        let table = self.table.lock();
        let known = table.by_number.get(&number).map(|(inode, _)| inode.handle());
        known.or_else(|| table.forgotten.file_of(number))
    }

    /// The node of a file, if the kernel knows it.
    pub fn find(&self, handle: &Handle) -> Option<Arc<Inode>> {
        self.table.lock().by_handle.get(handle.as_bytes()).map(|current| current.0.clone())
    }

    /// The node of a file, with one more lookup. A reply to the kernel is about to name it.
    pub fn remember(&self, handle: &Handle) -> Arc<Inode> {
        let mut table = self.table.lock();
        if let Some(number) = table.number_of(handle)
            && let Some((inode, lookups)) = table.by_number.get_mut(&number)
        {
            *lookups += 1;
            return inode.clone();
        }
        table.add(handle)
    }

    /// The same, for a node that accepts every open. If the current node of the file is in passthrough, it
    /// is returned as the second value; the caller retires it.
    pub fn remember_ordinary(&self, handle: &Handle) -> (OrdinaryInode, Option<Arc<Inode>>) {
        let mut table = self.table.lock();
        let mut retired = None;
        if let Some(number) = table.number_of(handle)
            && let Some((inode, lookups)) = table.by_number.get_mut(&number)
        {
            let mut state = inode.state.lock();
            if state.opened.backing.is_none() {
                state.opened.ordinary += 1;
                *lookups += 1;
                return (OrdinaryInode(inode.clone()), None);
            }
            retired = Some(inode.clone());
        }
        let inode = table.add(handle);
        inode.state.lock().opened.ordinary += 1;
        (OrdinaryInode(inode), retired)
    }

    /// Adds a lookup, since a reply is about to name the node again. False if the kernel has forgotten the
    /// node.
    pub fn tell_again(&self, number: u64) -> bool {
        let mut table = self.table.lock();
        let known = table.by_number.get_mut(&number);
        known.map(|(_, lookups)| *lookups += 1).is_some()
    }

    /// Subtracts `count` lookups. Returns the inode if none is left.
    pub fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        if number == ROOT {
            return None;
        }
        let mut table = self.table.lock();
        let (_, lookups) = table.by_number.get_mut(&number)?;
        *lookups = lookups.saturating_sub(count);
        if *lookups > 0 {
            return None;
        }
        let (inode, _) = table.by_number.remove(&number)?;
        if table.number_of(&inode.handle()) == Some(number) {
            table.by_handle.remove(inode.handle.as_bytes());
            table.forgotten.insert(number, inode.handle());
        }
        for name in std::mem::take(&mut inode.state.lock().names) {
            table.unname(&name, number);
        }
        Some(inode)
    }

    /// Records that a file was found under a name, which the kernel may cache until `until`. `alone`: the
    /// file can have no other name, as a directory. Returns the name that this record displaced, if any.
    pub fn name(&self, inode: &Inode, at: (u64, Name), alone: bool, until: Instant) -> Option<(u64, Name)> {
        let mut table = self.table.lock();
        if !table.by_number.contains_key(&inode.number) {
            return None;
        }
        let mut state = inode.state.lock();
        state.names.retain(|name| *name != at);
        let most = if alone { 0 } else { NAMES_MAX - 1 };
        let lost = (state.names.len() > most).then(|| state.names.remove(0));
        if let Some(lost) = &lost {
            table.unname(lost, inode.number);
            if alone && lost.0 != at.0 {
                state.directory.moved_from = Some(lost.clone());
            }
        }
        state.names.push(at.clone());
        table.by_name.insert(at, Told { number: inode.number, until });
        lost
    }

    /// Records that a file is no longer under a name.
    pub fn unname(&self, inode: &Inode, at: &(u64, Name)) {
        let mut table = self.table.lock();
        {
            let mut state = inode.state.lock();
            state.names.retain(|name| name != at);
            state.last_name = Some(Box::new(at.clone()));
        }
        table.unname(at, inode.number);
    }

    /// The inode that was last found under a name.
    pub fn named(&self, parent: u64, name: &Name) -> Option<Arc<Inode>> {
        let table = self.table.lock();
        let told = table.by_name.get(&(parent, name.clone()))?;
        table.by_number.get(&told.number).map(|(inode, _)| inode.clone())
    }

    /// Does the kernel's cache have an entry of this name that is valid? If the kernel looks the name up
    /// nevertheless, it has a reason: it is about to create something there, or it got ESTALE.
    pub fn is_believed(&self, parent: u64, name: &Name) -> bool {
        let table = self.table.lock();
        table.by_name.get(&(parent, name.clone())).is_some_and(|told| told.until > Instant::now())
    }

    /// The names in a directory that the kernel caches without a lease on the file. The caller is about to
    /// invalidate them, so they count as expired from now on.
    pub fn doubt_names(&self, parent: u64) -> Vec<Name> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let Table { by_number, by_name, .. } = &mut *table;
        let Ok(first) = Name::new(&[1]) else { return Vec::new() };
        let children = by_name.range_mut((parent, first)..).take_while(|((of, _), _)| *of == parent);
        let believed = children.filter(|(_, told)| {
            let known = by_number.get(&told.number);
            told.until > now && !known.is_some_and(|(inode, _)| inode.is_leased())
        });
        let doubted = believed.map(|((_, name), told)| {
            told.until = now;
            name.clone()
        });
        doubted.collect()
    }

    /// Detaches the node from its file: the next lookup of the file gets another node.
    pub fn retire(&self, inode: &Inode) {
        let mut table = self.table.lock();
        if table.number_of(&inode.handle()) == Some(inode.number) && inode.number != ROOT {
            table.retire(inode);
        }
    }

    /// Would the next lookup of the file get this node?
    pub fn is_current(&self, inode: &Inode) -> bool {
        self.table.lock().number_of(&inode.handle()) == Some(inode.number)
    }

    /// Number of nodes that the kernel knows.
    pub fn len(&self) -> usize {
        self.table.lock().by_number.len()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.table.lock().by_number.values().map(|(inode, _)| inode.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
