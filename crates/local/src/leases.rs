//! Leases on local files: this layer promises the layer above that it reports other users of a file before
//! they proceed.
//!
//! An open grants a lease, one for each file, kept until it is returned. The layer above arbitrates among
//! clients. This layer recalls a lease for one of two reasons: a process of this machine wants the file, or
//! there are too many leases. The kernel blocks such a process while a [`crate::guard`] is held. Without
//! guards (the file system has none, or the process is neither root nor the owner), a lease promises
//! nothing about such processes. If the kernel refuses a guard because a process has the file open, the
//! open gets no lease, or a read lease.
//!
//! A directory lease has no guard, since the kernel has none for directories. Instead the directory is
//! watched ([`crate::watch`]). The lease is recalled when a process of this machine has changed the
//! directory, or a name in it. A periodic check detects removed directories. If the watches fail, all
//! directory leases are recalled, since missed changes are unknown.
//!
//! If the directory is **exclusive** ([`crate::Options::exclusive`]), no process of this machine uses it
//! except this one. Then a lease has no guard and no watch, and keeps no descriptor: it is a record in the
//! [table]. The limit of leases then depends on memory alone.
//!
//! Leases are granted once a consumer has taken the stream of callbacks. The kernel announces a blocked
//! process with `SIGIO`; a task then checks all guards. It does so only after `SIGIO` or the loss of a
//! guard: other recalls are in a queue.

mod table;
mod task;

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::SignalKind;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use vfs::{Callback, Callbacks, Handle, Lease, LeaseId, LeaseKind, Principal, Share, Status, Want};

use crate::attributes::Stat;
use crate::descriptors::{Descriptors, Node, Use};
use crate::errno;
use crate::guard::{Guarding, Wanted};
use crate::handles::Parsed;
use crate::identity;
use crate::promises::{Growth, InFlight, Promises, Taken};
use crate::sys::KernelHandle;
use crate::tree::Tree;
use crate::watch::{Events, Seen, Watches};
use table::{Detection, Pending, Table};

/// Limit of callbacks that wait for the consumer.
const CALLBACKS_MAX: usize = 256;
/// Time for the return of a lease that no process of this machine waits for.
const RECALL_MAX: Duration = Duration::from_secs(30);

/// How long a directory gets no lease after a process of this machine has changed it.
const RESTLESS: Duration = Duration::from_secs(30);
/// Limit of such directories that are remembered.
const RESTLESS_MAX: usize = 256;

/// The last lease id. Ids are unique in the process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// All leases of one exported directory.
pub(crate) struct Leases {
    state: Mutex<State>,
    /// Leases have no guards and no watches.
    exclusive: bool,
    descriptors: Arc<Descriptors>,
    /// The watches of directories, if the kernel provides them.
    watches: OnceLock<Watches>,
    /// Space that is reserved for holders.
    pub(crate) promises: Promises,
    /// Wakes the task: a recall is due, or this value was dropped.
    attention: Arc<Notify>,
    /// A guard may be lost or may block a process.
    look: AtomicBool,
    /// Time until the kernel breaks a lease, less a reserve.
    break_max: Duration,
    taken: Mutex<bool>,
}

struct State {
    table: Table,
    /// Directories that processes of this machine changed recently, with the end of the time without
    /// leases.
    restless: VecDeque<(Instant, Handle)>,
    /// The callbacks have a consumer.
    heard: bool,
}

/// The limits of the leases of one exported directory, and how other processes are detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Limit of leases.
    pub(crate) leases: usize,
    /// A lease that was used within this time is not recalled to grant another one.
    pub(crate) idle_min: Duration,
    /// No other process uses the directory, so none is detected.
    pub(crate) exclusive: bool,
}

impl Leases {
    pub(crate) fn new(descriptors: Arc<Descriptors>, bounds: Bounds) -> Leases {
        let kernels = std::fs::read_to_string("/proc/sys/fs/lease-break-time").ok();
        let seconds = kernels.and_then(|text| text.trim().parse().ok()).unwrap_or(45_u64);
        Leases {
            state: Mutex::new(State {
                table: Table::new(bounds.leases, bounds.idle_min),
                restless: VecDeque::new(),
                heard: false,
            }),
            exclusive: bounds.exclusive,
            descriptors,
            watches: OnceLock::new(),
            promises: Promises::default(),
            attention: Arc::default(),
            look: AtomicBool::new(false),
            break_max: Duration::from_secs(seconds) * 2 / 3,
            taken: Mutex::new(false),
        }
    }

    /// The stream of callbacks; `None` at all later calls. Must be called in a tokio runtime.
    pub(crate) fn callbacks(self: &Arc<Leases>) -> Option<Callbacks> {
        let mut taken = self.taken.lock();
        if *taken || tokio::runtime::Handle::try_current().is_err() {
            return None;
        }
        // Before the first guard: without a handler, SIGIO ends the process.
        let signal = tokio::signal::unix::signal(SignalKind::io())
            .inspect_err(|cause| tracing::warn!("no leases on local files: SIGIO cannot be had: {cause}"))
            .ok()?;
        *taken = true;
        let events = if self.exclusive { None } else { self.watch_directories() };
        let (callbacks, stream) = mpsc::channel(CALLBACKS_MAX);
        self.state.lock().heard = true;
        tokio::spawn(task::watch(Arc::downgrade(self), self.attention.clone(), (signal, events), callbacks));
        Some(stream)
    }

    /// Creates the watches and returns their events, if the kernel provides them.
    fn watch_directories(&self) -> Option<Events> {
        let watches = Watches::new().inspect_err(|cause| {
            tracing::info!("processes of this machine that change names are not noticed: {cause}");
        });
        let events = watches.as_ref().ok()?.events().ok()?;
        self.watches.set(watches.ok()?).ok()?;
        Some(events)
    }

    /// Recalls leases on directories that other processes changed.
    fn seen(&self, seen: &[Seen]) {
        let mut state = self.state.lock();
        let changed = |watched: KernelHandle| {
            seen.iter().any(|seen| *seen == Seen::Lost || *seen == Seen::Changed(watched))
        };
        let watched = |detection: &Detection| detection.watched.is_some_and(changed);
        let changed = state.table.detecting().filter(|(_, _, detection)| watched(detection));
        let changed: Vec<_> = changed.map(|(id, _, detection)| (id, detection.node.handle)).collect();
        for (id, handle) in changed {
            state.table.ask(id, Pending::all(RECALL_MAX));
            state.restless.push_back((Instant::now() + RESTLESS, handle));
        }
        let excess = state.restless.len().saturating_sub(RESTLESS_MAX);
        state.restless.drain(..excess);
    }

    /// Are there leased directories, which may be removed?
    fn watches_any(&self) -> bool {
        self.state.lock().table.watches_any()
    }

    /// Recalls leases on removed directories.
    fn look_for_removed(&self) {
        let mut state = self.state.lock();
        let is_removed = |detection: &Detection| {
            detection.watched.is_some() && Stat::of(&detection.node.path).is_ok_and(|stat| !stat.is_linked())
        };
        let kept = state.table.detecting().filter(|(_, granted, _)| granted.recall.is_none());
        let removed = kept.filter(|(_, _, detection)| is_removed(detection));
        let removed: Vec<LeaseId> = removed.map(|(id, ..)| id).collect();
        removed.into_iter().for_each(|id| state.table.ask(id, Pending::all(RECALL_MAX)));
    }

    /// Grants or confirms the lease of an open. The caller fills in `change`.
    pub(crate) fn grant(&self, tree: &Tree, node: &Arc<Node>, access: Share, want: Want) -> Option<Lease> {
        let wanted = match want {
            Want::None => return None,
            Want::Read => LeaseKind::Read,
            Want::Any | Want::Write => LeaseKind::Write,
        };
        let mut state = self.state.lock();
        if !state.heard {
            return None;
        }
        let id = self.entry(&mut state, node)?;
        let granted = state.table.get_mut(id)?;
        if granted.recall.is_some() {
            return None;
        }
        if granted.kind < wanted {
            let permitted = match &granted.detection {
                Some(detection) => take_guard(tree, &detection.node, access, wanted),
                None => Some(wanted),
            };
            match permitted {
                Some(kind) => granted.kind = kind,
                None if granted.kind == LeaseKind::Timeout => {
                    self.end(&mut state.table, id);
                    return None;
                }
                None => {
                    state.table.ask(id, Pending::all(RECALL_MAX));
                    self.attention.notify_one();
                    return None;
                }
            }
        }
        let writes = granted.kind == LeaseKind::Write && access.contains(Share::WRITE);
        let space_limit = if writes { self.promise(node) } else { Lease::NO_SPACE_LIMIT };
        Some(Lease { id, kind: granted.kind, until: None, change: 0, space_limit })
    }

    /// Reserves space for the next writer of a file. Returns the size up to which space is reserved; 0 for
    /// a sparse file, which may need more than that.
    fn promise(&self, node: &Node) -> u64 {
        let stat = Stat::of(&node.path).ok().filter(|stat| stat.used() >= stat.size());
        let available = available(node, false).ok();
        let (Some(stat), Some(available)) = (stat, available) else { return 0 };
        self.promises.make(node.mount.fsid, &node.handle, stat.size(), available)
    }

    /// A file is about to get data in `range`, in bytes. A hole between the old end and `range` takes no
    /// space. In a file with holes, any WRITE may take space. The bytes count as in flight until the result
    /// is dropped, after the WRITE.
    ///
    /// # Errors
    /// DELAY, until holders have written the data that space was promised for.
    pub(crate) fn may_grow(
        &self,
        principal: &Principal,
        node: &Node,
        before: &Stat,
        range: &Range<u64>,
    ) -> Result<InFlight<'_>, Status> {
        let fsid = node.mount.fsid;
        if self.promises.is_empty() {
            return Ok(self.promises.in_flight(fsid, 0));
        }
        let has_holes = before.used() < before.size();
        let from = if has_holes { range.start } else { range.start.max(before.size()) };
        let growth = Growth { fsid, handle: &node.handle, from, to: range.end };
        let taken =
            self.promises.take(&growth, Instant::now(), || available(node, identity::is_root(principal)))?;
        let first = match taken {
            Taken::Yes { counted } => return Ok(self.promises.in_flight(fsid, counted)),
            Taken::Short { first } => first,
        };
        if first {
            let mut state = self.state.lock();
            for handle in self.promises.holders() {
                if let Some(id) = state.table.of_file(&handle) {
                    state.table.ask(id, Pending::all(RECALL_MAX));
                }
            }
            drop(state);
            self.attention.notify_one();
        }
        Err(Status::Delay)
    }

    /// Grants or confirms a read lease on a directory. The caller fills in `change`.
    pub(crate) fn grant_directory(&self, node: &Arc<Node>) -> Option<Lease> {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.restless.retain(|(until, _)| *until > now);
        if !state.heard || state.restless.iter().any(|(_, handle)| *handle == node.handle) {
            return None;
        }
        let id = self.entry(&mut state, node)?;
        let granted = state.table.get_mut(id).filter(|granted| granted.recall.is_none())?;
        granted.kind = LeaseKind::Read;
        let detection = granted.detection.as_ref().filter(|detection| detection.watched.is_none());
        if let (Some(_), Some(watches)) = (detection, self.watches.get())
            && let Some(watched) = watches.begin(node.path.as_fd())
        {
            state.table.watch(id, watched);
            // It may be the first directory that needs the periodic check.
            self.attention.notify_one();
        }
        Some(Lease { id, kind: LeaseKind::Read, until: None, change: 0, space_limit: Lease::NO_SPACE_LIMIT })
    }

    /// The entry of a file, marked as used now. Adds one if there is none and the capacity allows it.
    fn entry(&self, state: &mut State, node: &Arc<Node>) -> Option<LeaseId> {
        let now = Instant::now();
        let Some(id) = state.table.of_file(&node.handle) else {
            return self.admit(&mut state.table, now, node);
        };
        state.table.touch(now, id);
        Some(id)
    }

    /// Adds an entry for a file if the capacity allows it. Near the limit, recalls unused leases.
    fn admit(&self, table: &mut Table, now: Instant, node: &Arc<Node>) -> Option<LeaseId> {
        let batch = table.batch(now);
        if !batch.is_empty() {
            batch.into_iter().for_each(|id| table.ask(id, Pending::all(RECALL_MAX)));
            self.attention.notify_one();
        }
        if table.is_full() {
            return None;
        }
        // A handle that only our table knows must not leave it while a client has the lease.
        let is_lasting = !matches!(Parsed::parse(&node.handle), Some(Parsed::Table(_)));
        let detection = if self.exclusive && is_lasting {
            None
        } else {
            let node = self.descriptors.pin(node, Use::Lease, None)?;
            Some(Box::new(Detection { node, watched: None }))
        };
        let id = LeaseId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1);
        table.add(now, id, &node.handle, detection);
        Some(id)
    }

    /// Recalls a lease.
    pub(crate) fn recall(&self, id: LeaseId) {
        self.state.lock().table.ask(id, Pending::all(RECALL_MAX));
        self.attention.notify_one();
    }

    /// May the return of a lease wait for the kernel?
    pub(crate) fn waits_at_return(&self) -> bool {
        !self.exclusive
    }

    /// The holder returns a lease, or downgrades it to a read lease if the recall permits that.
    pub(crate) fn returned(&self, tree: &Tree, id: LeaseId) {
        let mut state = self.state.lock();
        let Some(granted) = state.table.get_mut(id) else { return };
        if granted.recall.as_ref().is_none_or(|recall| recall.keep.is_none()) {
            self.end(&mut state.table, id);
            return;
        }
        granted.kind = LeaseKind::Read;
        self.promises.end(&granted.handle.handle());
        let node = granted.detection.as_ref().map(|detection| &detection.node);
        let keeps = node.is_none_or(|node| match node.wanted() {
            Wanted::Nothing => true,
            Wanted::Read => exchange_guard(tree, node),
            Wanted::Write => false,
        });
        if keeps {
            state.table.keeps(id);
        } else {
            granted.recall = Some(Box::new(Pending::all(self.break_max)));
            self.attention.notify_one();
        }
    }

    /// A file is gone, and its lease with it.
    pub(crate) fn gone(&self, handle: &Handle) {
        let mut state = self.state.lock();
        if let Some(id) = state.table.of_file(handle) {
            self.end(&mut state.table, id);
        }
    }

    /// A guard was lost: the task checks the guards.
    pub(crate) fn look_again(&self) {
        self.look.store(true, Ordering::Release);
        self.attention.notify_one();
    }

    /// Ends all leases: the callbacks have no consumer any more.
    pub(crate) fn end_all(&self) {
        let mut state = self.state.lock();
        state.heard = false;
        for id in state.table.ids() {
            self.end(&mut state.table, id);
        }
    }

    fn end(&self, table: &mut Table, id: LeaseId) {
        let Some(granted) = table.remove(id) else { return };
        self.promises.end(&granted.handle.handle());
        let Some(Detection { node, watched }) = granted.detection.map(|detection| *detection) else { return };
        node.unguard();
        if let Some(watches) = self.watches.get().filter(|_| watched.is_some()) {
            watches.end(node.path.as_fd());
        }
        self.descriptors.unpin(&node, Use::Lease);
    }

    /// The callbacks that are due now, and the time of the next check.
    fn due(&self, now: Instant) -> (Vec<Callback>, Option<Instant>) {
        let mut state = self.state.lock();
        if self.look.swap(false, Ordering::AcqRel) {
            self.look_at_guards(&mut state.table);
        }
        let due = state.table.due(now);
        for id in due.revoked {
            self.end(&mut state.table, id);
        }
        (due.callbacks, due.next)
    }

    /// Recalls the leases whose guards block processes of this machine or are lost.
    fn look_at_guards(&self, table: &mut Table) {
        let guarded = table.detecting().filter(|(_, granted, _)| granted.recall.is_none());
        let wanted: Vec<_> = guarded.map(|(id, _, detection)| (id, detection.node.wanted())).collect();
        for (id, wanted) in wanted {
            let keep = match wanted {
                Wanted::Nothing => continue,
                Wanted::Read => Some(LeaseKind::Read),
                Wanted::Write => None,
            };
            table.ask(id, Pending { keep, ..Pending::all(self.break_max) });
        }
    }
}

/// Free bytes on the file system of a file; with `reserved`, including those reserved for the superuser.
fn available(node: &Node, reserved: bool) -> Result<u64, Status> {
    let space = rustix::fs::fstatvfs(node.path.as_fd()).map_err(errno::status)?;
    let blocks = if reserved { space.f_bfree } else { space.f_bavail };
    Ok(blocks.saturating_mul(space.f_frsize))
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.attention.notify_one();
    }
}

/// Replaces a guard that blocks readers by one that does not. False if a process may have written in
/// between.
fn exchange_guard(tree: &Tree, node: &Node) -> bool {
    let look = || Stat::of(&node.path).map(|stat| (stat.ctime(), stat.size()));
    let before = look();
    node.unguard();
    tree.guard(node, LeaseKind::Read) == Guarding::Held && before.is_ok() && before == look()
}

/// The strongest lease that the guard permits. A missing guard mechanism permits any.
fn take_guard(tree: &Tree, node: &Node, access: Share, wanted: LeaseKind) -> Option<LeaseKind> {
    match tree.guard(node, wanted) {
        Guarding::Held | Guarding::Unavailable => return Some(wanted),
        Guarding::InUse => {}
    }
    let writes = access.contains(Share::WRITE) || tree.opens.is_open_for_writing(&node.handle);
    if wanted == LeaseKind::Read || writes {
        return None;
    }
    (tree.guard(node, LeaseKind::Read) == Guarding::Held).then_some(LeaseKind::Read)
}
