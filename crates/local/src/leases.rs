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
//! Leases are granted once a consumer has taken the stream of callbacks. The kernel announces a blocked
//! process with `SIGIO`; a task then checks all guards. It does so only after `SIGIO` or the loss of a
//! guard: other recalls are in a queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use vfs::{Callback, Callbacks, Handle, Lease, LeaseId, LeaseKind, Principal, Recall, Share, Status, Want};

use crate::attributes::Stat;
use crate::descriptors::{Descriptors, Node, Use};
use crate::errno;
use crate::guard::{Guarding, Wanted};
use crate::identity;
use crate::promises::{Growth, InFlight, Promises, Taken};
use crate::sys::KernelHandle;
use crate::tree::Tree;
use crate::watch::{Events, Seen, Watches};

/// Limit of callbacks that wait for the consumer.
const CALLBACKS_MAX: usize = 256;
/// When fewer entries than this are free, each new lease recalls an old one. The limit is an eighth of all
/// entries, if that is less.
const RESERVE_MAX: usize = 256;
/// Time for the return of a lease that no process of this machine waits for.
const RECALL_MAX: Duration = Duration::from_secs(30);

/// How often leased directories are checked for removal. While this process has a directory open, the
/// kernel reports its removal only to watches of the parent.
const LOOK: Duration = Duration::from_secs(2);
/// Pause after an error of the watches.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);

/// How long a directory gets no lease after a process of this machine has changed it.
const RESTLESS: Duration = Duration::from_secs(30);
/// Limit of such directories that are remembered.
const RESTLESS_MAX: usize = 256;

/// The last lease id. Ids are unique in the process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// All leases of one exported directory.
pub(crate) struct Leases {
    state: Mutex<State>,
    most: usize,
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

#[derive(Default)]
struct State {
    by_id: HashMap<LeaseId, Granted>,
    by_file: HashMap<Handle, LeaseId>,
    /// Leases in the order of their last use.
    by_use: BTreeMap<u64, LeaseId>,
    /// Leases with a recall.
    asked: BTreeSet<LeaseId>,
    /// Counts grants; gives the order of use.
    clock: u64,
    /// Directories that processes of this machine changed recently, with the end of the time without
    /// leases.
    restless: VecDeque<(Instant, Handle)>,
    /// The callbacks have a consumer.
    heard: bool,
}

struct Granted {
    node: Arc<Node>,
    kind: LeaseKind,
    used: u64,
    recall: Option<Pending>,
    /// For a directory: its handle in the events of the watch.
    watched: Option<KernelHandle>,
}

#[derive(Clone, Copy)]
struct Pending {
    keep: Option<LeaseKind>,
    deadline: Instant,
    sent: bool,
}

impl State {
    /// Records a recall, unless the lease has one already.
    fn ask(&mut self, id: LeaseId, recall: Pending) {
        if let Some(granted) = self.by_id.get_mut(&id) {
            granted.recall.get_or_insert(recall);
            self.asked.insert(id);
        }
    }
}

impl Leases {
    pub(crate) fn new(descriptors: Arc<Descriptors>, leases_max: usize) -> Leases {
        let kernels = std::fs::read_to_string("/proc/sys/fs/lease-break-time").ok();
        let seconds = kernels.and_then(|text| text.trim().parse().ok()).unwrap_or(45_u64);
        Leases {
            state: Mutex::default(),
            most: leases_max,
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
        let events = self.watch_directories();
        let (callbacks, stream) = mpsc::channel(CALLBACKS_MAX);
        self.state.lock().heard = true;
        tokio::spawn(watch(Arc::downgrade(self), self.attention.clone(), (signal, events), callbacks));
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
        let of_them = state.by_id.iter().filter(|(_, granted)| granted.watched.is_some_and(changed));
        let changed: Vec<_> = of_them.map(|(id, granted)| (*id, granted.node.handle)).collect();
        for (id, handle) in changed {
            state.ask(id, Pending::all(RECALL_MAX));
            state.restless.push_back((Instant::now() + RESTLESS, handle));
        }
        let excess = state.restless.len().saturating_sub(RESTLESS_MAX);
        state.restless.drain(..excess);
    }

    /// Are there leased directories, which may be removed?
    fn watches_any(&self) -> bool {
        self.state.lock().by_id.values().any(|granted| granted.watched.is_some())
    }

    /// Recalls leases on removed directories.
    fn look_for_removed(&self) {
        let mut state = self.state.lock();
        let is_removed = |granted: &Granted| {
            granted.watched.is_some()
                && granted.recall.is_none()
                && Stat::of(&granted.node.path).is_ok_and(|stat| !stat.is_linked())
        };
        let removed = state.by_id.iter().filter(|(_, granted)| is_removed(granted));
        let removed: Vec<LeaseId> = removed.map(|(id, _)| *id).collect();
        removed.into_iter().for_each(|id| state.ask(id, Pending::all(RECALL_MAX)));
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
        let granted = state.by_id.get_mut(&id)?;
        if granted.recall.is_some() {
            return None;
        }
        if granted.kind < wanted {
            match take_guard(tree, &granted.node, access, wanted) {
                Some(kind) => granted.kind = kind,
                None if granted.kind == LeaseKind::Timeout => {
                    self.end(&mut state, id);
                    return None;
                }
                None => {
                    state.ask(id, Pending::all(RECALL_MAX));
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
            let all = state.by_id.iter();
            let holders = all.filter(|(_, granted)| self.promises.holds(&granted.node.handle));
            for id in holders.map(|(id, _)| *id).collect::<Vec<_>>() {
                state.ask(id, Pending::all(RECALL_MAX));
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
        let granted = state.by_id.get_mut(&id).filter(|granted| granted.recall.is_none())?;
        granted.kind = LeaseKind::Read;
        if let Some(watches) = self.watches.get().filter(|_| granted.watched.is_none()) {
            granted.watched = watches.begin(node.path.as_fd());
            // It may be the first directory that needs the periodic check.
            self.attention.notify_one();
        }
        Some(Lease { id, kind: LeaseKind::Read, until: None, change: 0, space_limit: Lease::NO_SPACE_LIMIT })
    }

    /// The entry of a file, marked as used now. Adds one if there is none and the capacity allows it.
    fn entry(&self, state: &mut State, node: &Arc<Node>) -> Option<LeaseId> {
        state.clock += 1;
        let clock = state.clock;
        let Some(&id) = state.by_file.get(&node.handle) else { return self.admit(state, node) };
        if let Some(granted) = state.by_id.get_mut(&id).filter(|granted| granted.recall.is_none()) {
            state.by_use.remove(&granted.used);
            granted.used = clock;
            state.by_use.insert(clock, id);
        }
        Some(id)
    }

    /// Adds an entry for a file if the capacity allows it. Near the limit, recalls the least recently used
    /// lease.
    fn admit(&self, state: &mut State, node: &Arc<Node>) -> Option<LeaseId> {
        if state.by_id.len() >= self.most - (self.most / 8).min(RESERVE_MAX) {
            let unasked = |id: &&LeaseId| !state.asked.contains(id);
            if let Some(oldest) = state.by_use.values().find(unasked).copied() {
                state.ask(oldest, Pending::all(RECALL_MAX));
                self.attention.notify_one();
            }
        }
        if state.by_id.len() >= self.most {
            return None;
        }
        let node = self.descriptors.pin(node, Use::Lease, None)?;
        let id = LeaseId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1);
        state.by_file.insert(node.handle, id);
        let (kind, used) = (LeaseKind::Timeout, state.clock);
        let granted = Granted { node, kind, used, recall: None, watched: None };
        state.by_use.insert(used, id);
        state.by_id.insert(id, granted);
        Some(id)
    }

    /// Recalls a lease.
    pub(crate) fn recall(&self, id: LeaseId) {
        self.state.lock().ask(id, Pending::all(RECALL_MAX));
        self.attention.notify_one();
    }

    /// The holder returns a lease, or downgrades it to a read lease if the recall permits that.
    pub(crate) fn returned(&self, tree: &Tree, id: LeaseId) {
        let mut state = self.state.lock();
        let Some(granted) = state.by_id.get_mut(&id) else { return };
        if granted.recall.is_none_or(|recall| recall.keep.is_none()) {
            self.end(&mut state, id);
            return;
        }
        granted.kind = LeaseKind::Read;
        self.promises.end(&granted.node.handle);
        granted.recall = match granted.node.wanted() {
            Wanted::Nothing => None,
            Wanted::Read if exchange_guard(tree, &granted.node) => None,
            Wanted::Read | Wanted::Write => Some(Pending::all(self.break_max)),
        };
        if granted.recall.is_some() {
            self.attention.notify_one();
        } else {
            state.asked.remove(&id);
        }
    }

    /// A file is gone, and its lease with it.
    pub(crate) fn gone(&self, handle: &Handle) {
        let mut state = self.state.lock();
        if let Some(id) = state.by_file.get(handle).copied() {
            self.end(&mut state, id);
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
        let all: Vec<LeaseId> = state.by_id.keys().copied().collect();
        for id in all {
            self.end(&mut state, id);
        }
    }

    fn end(&self, state: &mut State, id: LeaseId) {
        if let Some(granted) = state.by_id.remove(&id) {
            state.by_file.remove(&granted.node.handle);
            state.by_use.remove(&granted.used);
            state.asked.remove(&id);
            self.promises.end(&granted.node.handle);
            granted.node.unguard();
            if let Some(watches) = self.watches.get().filter(|_| granted.watched.is_some()) {
                watches.end(granted.node.path.as_fd());
            }
            self.descriptors.unpin(&granted.node, Use::Lease);
        }
    }

    /// The callbacks that are due now, and the time of the next check.
    fn due(&self, now: Instant) -> (Vec<Callback>, Option<Instant>) {
        let mut callbacks = Vec::new();
        let mut state = self.state.lock();
        if self.look.swap(false, Ordering::AcqRel) {
            self.look_at_guards(&mut state);
        }
        let (mut revoked, mut next) = (Vec::new(), None);
        let State { by_id, asked, .. } = &mut *state;
        for &id in asked.iter() {
            let Some(granted) = by_id.get_mut(&id) else { continue };
            let handle = granted.node.handle;
            let Some(recall) = &mut granted.recall else { continue };
            if !recall.sent {
                recall.sent = true;
                let Pending { keep, deadline, .. } = *recall;
                callbacks.push(Callback::Recall(Recall { id, handle, keep, deadline }));
            } else if recall.deadline <= now {
                callbacks.push(Callback::Revoked { id, handle });
                revoked.push(id);
                continue;
            }
            let deadline = recall.deadline;
            next = Some(next.map_or(deadline, |next: Instant| next.min(deadline)));
        }
        for id in revoked {
            self.end(&mut state, id);
        }
        (callbacks, next)
    }

    /// Recalls the leases whose guards block processes of this machine or are lost.
    fn look_at_guards(&self, state: &mut State) {
        let wanted = state.by_id.iter().filter(|(_, granted)| granted.recall.is_none());
        let wanted: Vec<_> = wanted.map(|(id, granted)| (*id, granted.node.wanted())).collect();
        for (id, wanted) in wanted {
            let keep = match wanted {
                Wanted::Nothing => continue,
                Wanted::Read => Some(LeaseKind::Read),
                Wanted::Write => None,
            };
            state.ask(id, Pending { keep, ..Pending::all(self.break_max) });
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

impl Pending {
    fn all(within: Duration) -> Pending {
        Pending { keep: None, deadline: Instant::now() + within, sent: false }
    }
}

/// Sends callbacks when the kernel or this layer has a reason for them.
async fn watch(
    leases: Weak<Leases>,
    attention: Arc<Notify>,
    (mut signal, events): (Signal, Option<Events>),
    callbacks: mpsc::Sender<Callback>,
) {
    let (mut failed, mut looked) = (false, Instant::now());
    loop {
        let Some((due, next)) = leases.upgrade().map(|leases| leases.due(Instant::now())) else { return };
        for callback in due {
            if callbacks.send(callback).await.is_err() {
                break; // the select below notices it
            }
        }
        let wait = async {
            match next {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let seen = async {
            if failed {
                tokio::time::sleep(EVENTS_PAUSE).await;
            }
            match &events {
                Some(events) => events.next().await,
                None => std::future::pending().await,
            }
        };
        let any = leases.upgrade().is_some_and(|leases| leases.watches_any());
        let look = tokio::time::sleep_until(looked + LOOK);
        tokio::select! {
            _ = signal.recv() => {
                if let Some(leases) = leases.upgrade() {
                    leases.look.store(true, Ordering::Release);
                }
            }
            seen = seen => {
                let Some(leases) = leases.upgrade() else { return };
                failed = seen.is_err();
                let seen = seen.unwrap_or_else(|cause| {
                    tracing::warn!("changes of leased directories were missed, and all of them are recalled: {cause}");
                    vec![Seen::Lost]
                });
                leases.seen(&seen);
            }
            () = look, if any => {
                looked = Instant::now();
                leases.upgrade().iter().for_each(|leases| leases.look_for_removed());
            }
            () = attention.notified() => {}
            () = wait => {}
            () = callbacks.closed() => {
                if let Some(leases) = leases.upgrade() {
                    leases.end_all();
                }
                return;
            }
        }
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
