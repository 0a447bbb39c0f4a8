//! Descriptors of files in use, by handle. With them a GETATTR is one system call.
//!
//! A [`Node`] keeps an `O_PATH` descriptor, and after the first data access one for reading and one for
//! writing. The cache of nodes is sharded and bounded, and evicts with one second chance (CLOCK). The
//! [`crate::sweeper`] closes idle descriptors: an open descriptor keeps a mount busy and the space of a
//! removed file allocated. One for writing prevents the execution of a program.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use vfs::{FileType, Handle};

use crate::attributes::Stat;
use crate::change_attribute::{ChangeCounter, Forgotten};
use crate::guard::{FileState, Guard};
use crate::identity;
use crate::mounts::Mount;
use crate::permission::Grants;
use crate::ranges::Ranges;
use crate::syncs::Syncs;

const SHARDS: usize = 16;
/// Nodes that one operation closes at most to free descriptors.
const EVICTED_AT_ONCE: usize = 4;

/// Descriptors of an open or idle node: its own, one for reading, and one for writing.
pub(crate) const PER_NODE: usize = 3;
/// Descriptors of a leased file that is not open: its own, and that of its guard.
pub(crate) const PER_LEASED_FILE: usize = 2;
/// Descriptors of a leased directory.
const PER_LEASED_DIRECTORY: usize = 1;

/// A file in use.
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) mount: Arc<Mount>,
    pub(crate) file_type: FileType,
    /// `O_PATH`: names the inode, even if it is renamed or removed.
    pub(crate) path: OwnedFd,
    pub(crate) data: Mutex<OpenFiles>,
    pub(crate) grants: Mutex<Grants>,
    pub(crate) ranges: Arc<Ranges>,
    pub(crate) change: ChangeCounter,
    pub(crate) syncs: Syncs,
    /// Number of opens and of leases. Only changed under the lock of its shard.
    opens: AtomicUsize,
    leases: AtomicUsize,
    /// Time of last use, in ticks of the sweeper.
    used: AtomicU32,
}

/// Why a node is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// An open, which also keeps a file without a name.
    Open,
    /// A lease.
    Lease,
}

/// Descriptors for data, opened at the first use.
#[derive(Default)]
pub(crate) struct OpenFiles {
    pub(crate) reading: Option<Arc<File>>,
    pub(crate) writing: Option<Arc<File>>,
    /// When `writing` was last used, in ticks of the sweeper.
    pub(crate) wrote: u32,
    /// With a guard, both descriptors are the guard's.
    pub(crate) guard: Option<Guard>,
    /// A guard was lost.
    pub(crate) guard_lost: bool,
    /// A guard was released to take another one: the state of the file before.
    pub(crate) replaced: Option<FileState>,
}

impl Node {
    pub(crate) fn new(handle: Handle, mount: Arc<Mount>, stat: &Stat, path: OwnedFd) -> Node {
        Node {
            handle,
            mount,
            file_type: stat.file_type(),
            path,
            data: Mutex::default(),
            grants: Mutex::default(),
            ranges: Arc::default(),
            change: ChangeCounter::new(stat),
            syncs: Syncs::default(),
            opens: AtomicUsize::new(0),
            leases: AtomicUsize::new(0),
            used: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    /// Does any client have it open?
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Relaxed) > 0
    }

    /// Has the file a name? If that cannot be read, none.
    pub(crate) fn is_linked(&self) -> bool {
        Stat::of(&self.path).is_ok_and(|stat| stat.is_linked())
    }

    /// Must it stay in use?
    pub(crate) fn is_kept(&self) -> bool {
        self.is_open() || self.leases.load(Ordering::Relaxed) > 0
    }

    fn uses(&self, what: Use) -> &AtomicUsize {
        match what {
            Use::Open => &self.opens,
            Use::Lease => &self.leases,
        }
    }

    /// Descriptors that it may need for its opens and leases.
    fn cost(&self) -> usize {
        match self.file_type {
            _ if self.is_open() => PER_NODE,
            _ if !self.is_kept() => 0,
            FileType::Directory => PER_LEASED_DIRECTORY,
            _ => PER_LEASED_FILE,
        }
    }
}

/// The cache of nodes.
pub(crate) struct Descriptors {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    bounds: Bounds,
    /// Nodes with opens or leases, in addition to idle ones, and the descriptors that they may need.
    kept: AtomicUsize,
    spent: AtomicUsize,
    pub(crate) forgotten: Forgotten,
    now: AtomicU32,
}

/// Limits of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Idle nodes; fewer if kept nodes need the descriptors.
    pub(crate) idle: usize,
    /// Nodes that are kept.
    pub(crate) kept: usize,
    /// Descriptors of kept nodes.
    pub(crate) spent: usize,
    /// Descriptors of all nodes.
    pub(crate) descriptors: usize,
}

#[derive(Default)]
struct Shard {
    index: HashMap<Handle, usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    hand: usize,
    /// Nodes with opens or leases: excluded from the limit of idle nodes and from eviction.
    kept: usize,
}

struct Slot {
    node: Arc<Node>,
    /// Used since the hand last passed it.
    again: AtomicBool,
}

/// Capacity for one more kept file, until it is used by [`Descriptors::pin`] or dropped.
pub(crate) struct Capacity<'d>(&'d Descriptors);

impl Capacity<'_> {
    /// Uses `cost` of its descriptors and releases the rest.
    fn take(self, cost: usize) {
        debug_assert!(cost <= PER_NODE, "{cost} descriptors were taken, and {PER_NODE} were reserved");
        self.0.spent.fetch_sub(PER_NODE.saturating_sub(cost), Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Capacity<'_> {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::Relaxed);
        self.0.spent.fetch_sub(PER_NODE, Ordering::Relaxed);
    }
}

impl Descriptors {
    /// A cache with these limits; the limit of idle nodes is approximate.
    pub(crate) fn new(bounds: Bounds) -> Descriptors {
        Descriptors {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            bounds,
            kept: AtomicUsize::new(0),
            spent: AtomicUsize::new(0),
            forgotten: Forgotten::default(),
            now: AtomicU32::new(1),
        }
    }

    pub(crate) fn get(&self, handle: &Handle) -> Option<Arc<Node>> {
        let shard = self.shard(handle).lock();
        let slot = shard.slots.get(*shard.index.get(handle)?)?.as_ref()?;
        slot.again.store(true, Ordering::Relaxed);
        slot.node.used.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        Some(slot.node.clone())
    }

    /// Records the use of a node that [`Descriptors::get`] has not returned.
    pub(crate) fn touch(&self, node: &Node) {
        node.used.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Adds a node. If the cache has one with this handle, returns that one instead.
    pub(crate) fn insert(&self, node: Node) -> Arc<Node> {
        let mut shard = self.shard(&node.handle).lock();
        if let Some(slot) = shard.index.get(&node.handle).and_then(|&at| shard.slots.get(at)?.as_ref()) {
            return slot.node.clone();
        }
        let evicted = self.evict(&mut shard, self.idle_per_shard() - 1);
        node.used.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        let node = Arc::new(node);
        shard.add(node.clone());
        drop(shard);
        drop(evicted); // closes its descriptors without the lock
        node
    }

    /// Limit of idle nodes, as the kept nodes permit.
    pub(crate) fn idle_max(&self) -> usize {
        self.idle_per_shard() * SHARDS
    }

    /// Limit of idle nodes in a shard, as the kept nodes permit: at least one.
    fn idle_per_shard(&self) -> usize {
        let left = self.bounds.descriptors.saturating_sub(self.spent.load(Ordering::Relaxed));
        (left / PER_NODE).min(self.bounds.idle).div_ceil(SHARDS).max(1)
    }

    /// Removes idle nodes beyond the limit from a shard, a few at a time. The caller drops them without the
    /// lock.
    fn evict(&self, shard: &mut Shard, idle_max: usize) -> Vec<Arc<Node>> {
        let mut evicted = Vec::new();
        while shard.index.len().saturating_sub(shard.kept) > idle_max && evicted.len() < EVICTED_AT_ONCE {
            let Some(node) = shard.evict() else { break };
            node.change.forget(&self.forgotten);
            evicted.push(node);
        }
        evicted
    }

    /// Reserves capacity for one more kept file, for a caller that must not fail later. `None` if too many
    /// are kept.
    pub(crate) fn capacity(&self) -> Option<Capacity<'_>> {
        self.reserve(1, PER_NODE).then(|| Capacity(self))
    }

    /// Is less than a sixteenth of the capacity left?
    pub(crate) fn is_nearly_full(&self) -> bool {
        let is_most = |of: &AtomicUsize, max: usize| of.load(Ordering::Relaxed) >= max - max / 16;
        is_most(&self.kept, self.bounds.kept) || is_most(&self.spent, self.bounds.spent)
    }

    /// Counts nodes and descriptors as kept, if the limits permit.
    fn reserve(&self, nodes: usize, cost: usize) -> bool {
        let add = |to: &AtomicUsize, more: usize, max: usize| {
            let within = |now: usize| Some(now + more).filter(|sum| *sum <= max);
            to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
        };
        if !add(&self.kept, nodes, self.bounds.kept) {
            return false;
        }
        let fits = add(&self.spent, cost, self.bounds.spent);
        if !fits {
            self.kept.fetch_sub(nodes, Ordering::Relaxed);
        }
        fits
    }

    /// Keeps a node, from reserved capacity or from what is free. Returns the kept node: if the node was
    /// forgotten meanwhile, the cache may have another one. A node takes capacity once, however often it is
    /// pinned. `None` if too many are kept.
    pub(crate) fn pin(
        &self,
        node: &Arc<Node>,
        what: Use,
        capacity: Option<Capacity<'_>>,
    ) -> Option<Arc<Node>> {
        let mut shard = self.shard(&node.handle).lock();
        let kept = match shard.get(&node.handle) {
            Some(kept) => kept,
            None => node.clone(),
        };
        let before = kept.cost();
        kept.uses(what).fetch_add(1, Ordering::Relaxed);
        let cost = kept.cost();
        let fits = match capacity {
            Some(capacity) if before == 0 => {
                capacity.take(cost);
                true
            }
            other => {
                drop(other);
                cost == before || self.reserve(usize::from(before == 0), cost - before)
            }
        };
        if !fits {
            kept.uses(what).fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        shard.kept += usize::from(before == 0);
        if !shard.index.contains_key(&node.handle) {
            shard.add(kept.clone());
        }
        let evicted = self.evict(&mut shard, self.idle_per_shard());
        drop(shard);
        drop(evicted);
        Some(kept)
    }

    /// Undoes a [`Descriptors::pin`].
    pub(crate) fn unpin(&self, node: &Node, what: Use) {
        let mut shard = self.shard(&node.handle).lock();
        let before = node.cost();
        node.uses(what).fetch_sub(1, Ordering::Relaxed);
        self.spent.fetch_sub(before - node.cost(), Ordering::Relaxed);
        if !node.is_kept() {
            self.kept.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(shard.kept > 0, "a node is unpinned in a shard that keeps none");
            shard.kept = shard.kept.saturating_sub(1);
            node.used.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Closes the descriptors of a file, unless it is open.
    pub(crate) fn forget(&self, handle: &Handle) {
        let mut shard = self.shard(handle).lock();
        if shard.get(handle).is_some_and(|node| node.is_open()) {
            return;
        }
        let forgotten = shard.remove(handle);
        drop(shard);
        drop(forgotten);
    }

    /// Advances the clock: closes nodes that were unused for `idle_max` ticks, and descriptors for writing
    /// much sooner.
    pub(crate) fn tick(&self, idle_max: u32, idle_writing_max: u32) {
        let reopens = identity::is_privileged();
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        for shard in &self.shards {
            let mut closing = Vec::new();
            let mut closing_data = Vec::new();
            let mut shard = shard.lock();
            let nodes: Vec<Arc<Node>> = shard.slots.iter().flatten().map(|slot| slot.node.clone()).collect();
            for node in nodes {
                let is_idle = now.saturating_sub(node.used.load(Ordering::Relaxed)) > idle_max;
                if is_idle && !node.is_kept() {
                    node.change.forget(&self.forgotten);
                    closing.extend(shard.remove(&node.handle));
                    continue;
                }
                // Without privileges, the file of an open could not be opened again.
                if node.is_open() && !reopens {
                    continue;
                }
                let mut data = node.data.lock();
                if data.guard.is_some() {
                    continue;
                }
                if is_idle {
                    closing_data.extend(data.reading.take());
                }
                if now.saturating_sub(data.wrote) > idle_writing_max {
                    closing_data.extend(data.writing.take());
                }
            }
            drop(shard);
        }
    }

    /// The current tick of the sweeper.
    pub(crate) fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Closes all descriptors.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            drop(std::mem::take(&mut *shard.lock()));
        }
    }

    fn shard(&self, handle: &Handle) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(handle) as usize % SHARDS]
    }
}

impl Shard {
    fn get(&self, handle: &Handle) -> Option<Arc<Node>> {
        Some(self.slots.get(*self.index.get(handle)?)?.as_ref()?.node.clone())
    }

    fn add(&mut self, node: Arc<Node>) {
        let handle = node.handle;
        let slot = Some(Slot { node, again: AtomicBool::new(false) });
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(slot);
        } else {
            self.slots[at] = slot;
        }
        self.index.insert(handle, at);
    }

    fn remove(&mut self, handle: &Handle) -> Option<Arc<Node>> {
        let at = self.index.remove(handle)?;
        self.free.push(at);
        self.slots.get_mut(at)?.take().map(|slot| slot.node)
    }

    fn evict(&mut self) -> Option<Arc<Node>> {
        // Two rounds visit every slot after its second chance is used up.
        for _ in 0..2 * self.slots.len() {
            self.hand = (self.hand + 1) % self.slots.len();
            let Some(slot) = &self.slots[self.hand] else { continue };
            // An operation that has it may depend on it: a file in use has one node.
            let is_idle = Arc::strong_count(&slot.node) == 1 && !slot.node.is_kept();
            if is_idle && !slot.again.swap(false, Ordering::Relaxed) {
                let handle = slot.node.handle;
                return self.remove(&handle);
            }
        }
        None
    }
}

/// `/proc/self/fd`: opens an `O_PATH` descriptor for data. The kernel then checks the permissions of the
/// inode, not those of a path.
pub(crate) struct Proc(OwnedFd);

impl Proc {
    pub(crate) fn new() -> Result<Proc, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).map(Proc)
    }

    /// Reopens a file. Never waits for a writer of a pipe or for a lease, and never takes a controlling
    /// terminal.
    pub(crate) fn open(&self, file: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::openat(&self.0, name(file), flags, Mode::empty())
    }

    /// Sets the mode of a file that is not a symbolic link.
    pub(crate) fn chmod(&self, file: impl AsFd, mode: Mode) -> Result<(), Errno> {
        rustix::fs::chmodat(&self.0, name(file), mode, rustix::fs::AtFlags::empty())
    }

    /// Creates another name for a file.
    pub(crate) fn link(&self, file: impl AsFd, directory: impl AsFd, to: &[u8]) -> Result<(), Errno> {
        rustix::fs::linkat(&self.0, name(file), directory, to, rustix::fs::AtFlags::SYMLINK_FOLLOW)
    }

    /// The path of a file, as far as the kernel knows.
    pub(crate) fn path_of(&self, file: impl AsFd) -> Result<PathBuf, Errno> {
        use std::os::unix::ffi::OsStringExt;
        let path = rustix::fs::readlinkat(&self.0, name(file), Vec::new())?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes())))
    }
}

fn name(file: impl AsFd) -> String {
    file.as_fd().as_raw_fd().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::tree::{Tree, open_child};

    fn tree(home: &tempfile::TempDir, nodes_max: usize) -> Tree {
        let directory = home.path().join("exported");
        std::fs::create_dir(&directory).unwrap();
        for number in 0..100 {
            std::fs::write(directory.join(number.to_string()), "").unwrap();
        }
        let options = Options { descriptors_max: nodes_max, ..Options::new(home.path().join("state")) };
        Tree::open(&directory, options).unwrap()
    }

    fn open(tree: &Tree, number: usize) -> Handle {
        let name = vfs::Name::new(number.to_string().as_bytes()).unwrap();
        let path = open_child(&tree.root.path, &name).unwrap();
        let found = tree.describe(&tree.root, Some(&name), &path).unwrap();
        tree.keep(&found, path).handle
    }

    #[test]
    fn what_is_idle_is_closed() {
        let home = tempfile::tempdir().unwrap();
        let tree = tree(&home, 4096);
        let [idle, busy] = [0, 1].map(|number| open(&tree, number));
        for handle in [idle, busy] {
            tree.writing(&tree.cached(&handle).unwrap()).unwrap();
        }
        for _ in 0..3 {
            tree.descriptors.tick(60, 2);
            tree.writing(&tree.cached(&busy).unwrap()).unwrap();
        }
        assert!(tree.cached(&busy).unwrap().data.lock().writing.is_some());
        assert!(tree.cached(&idle).unwrap().data.lock().writing.is_none());
        for _ in 0..61 {
            tree.descriptors.tick(60, 2);
            tree.cached(&busy);
        }
        assert!(tree.cached(&busy).is_some());
        assert!(tree.cached(&idle).is_none());
        assert_eq!(tree.node(&idle).unwrap().handle, idle, "and opened again");
        tree.descriptors.clear();
        assert!(tree.cached(&busy).is_none());
    }

    #[test]
    fn what_is_kept_is_counted_in_descriptors_and_takes_them_from_what_is_idle() {
        let home = tempfile::tempdir().unwrap();
        let tree = tree(&home, 4096);
        let bounds = Bounds { idle: 64, kept: 9, spent: 16, descriptors: 3 * SHARDS + 16 };
        let descriptors = Descriptors::new(bounds);
        let nodes: Vec<_> = (0..8).map(|number| tree.node(&open(&tree, number)).unwrap()).collect();
        let spent = || descriptors.spent.load(Ordering::Relaxed);
        assert_eq!(descriptors.idle_per_shard(), 2);
        for node in &nodes[..6] {
            assert!(descriptors.pin(node, Use::Lease, None).is_some());
        }
        assert_eq!((spent(), descriptors.idle_per_shard()), (12, 2));
        // A leased file takes the third descriptor when it is opened; unused capacity is released.
        let capacity = descriptors.capacity();
        assert!(capacity.is_some() && descriptors.capacity().is_none());
        assert!(descriptors.pin(&nodes[0], Use::Open, capacity).is_some());
        assert_eq!(spent(), 13);
        assert!(descriptors.pin(&nodes[6], Use::Open, descriptors.capacity()).is_some());
        assert_eq!((spent(), descriptors.idle_per_shard()), (16, 1));
        for (node, what) in [(&nodes[7], Use::Lease), (&nodes[1], Use::Open)] {
            assert!(descriptors.pin(node, what, None).is_none(), "there are no more");
            assert_eq!(spent(), 16);
        }
        descriptors.unpin(&nodes[0], Use::Lease);
        assert_eq!(spent(), 16);
        descriptors.unpin(&nodes[0], Use::Open);
        assert_eq!((spent(), descriptors.kept.load(Ordering::Relaxed)), (13, 6));
        descriptors.unpin(&nodes[6], Use::Open);
        nodes[1..6].iter().for_each(|node| descriptors.unpin(node, Use::Lease));
        assert_eq!((spent(), descriptors.kept.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        let tree = tree(&home, 2 * SHARDS);
        let favourite = open(&tree, 0);
        for number in 1..100 {
            assert!(tree.cached(&favourite).is_some());
            open(&tree, number);
        }
        let kept: usize = tree.descriptors.shards.iter().map(|shard| shard.lock().index.len()).sum();
        assert!(kept <= 2 * SHARDS, "{kept}");
        tree.descriptors.forget(&favourite);
        assert!(tree.cached(&favourite).is_none());
    }
}
