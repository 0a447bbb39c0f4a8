//! What this layer, the authority over its files, promises the one above: that it hears of other users of a file first.
//!
//! A file that is opened gets a lease, one at a time, kept until it comes back. Among *our* clients the layer above
//! arbitrates; what is recalled from here is because of a process of this machine, which the kernel holds back while
//! we hold a [`crate::guard`], or because there are too many leases. Where no guard is to be had at all (a file system
//! without them, a process that is neither root nor the owner), a lease says nothing of such processes; where one is
//! refused because a process has the file open, there is no lease, or one for reading.
//!
//! A directory is leased without a guard: the kernel has none for directories. It is watched instead ([`crate::watch`]), and
//! recalled when a process of this machine has changed a name in it or its own; and looked at now and then, whether it is
//! there still. When the watches fail, all are recalled: what was missed is not known.
//!
//! Leases are granted once somebody has taken the stream of callbacks. The kernel tells of a waiting process with
//! `SIGIO`: a task then looks through all guards. For no other reason does it: what is recalled from here is in a queue.

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

/// Callbacks that wait to be taken.
const CALLBACKS_MAX: usize = 256;
/// Leases that are on their way back when the bound is near; fewer, where an eighth of the bound is less.
const RESERVE_MAX: usize = 256;
/// Time to give back a lease that is one too many, or whose guard was lost.
const RECALL_MAX: Duration = Duration::from_secs(30);

/// How often leased directories are looked at, whether they are there still: the kernel tells of a removal only in the
/// directory above, as long as we have one open.
const LOOK: Duration = Duration::from_secs(2);
/// After an error of the watches.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);

/// How long a directory is not leased that a process of this machine has changed.
const RESTLESS: Duration = Duration::from_secs(30);
/// So many of them are remembered.
const RESTLESS_MAX: usize = 256;

/// Ids are unique in the process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// All leases of one exported directory.
pub(crate) struct Leases {
    state: Mutex<State>,
    most: usize,
    descriptors: Arc<Descriptors>,
    /// Of directories, if there are any.
    watches: OnceLock<Watches>,
    /// Space that is set aside for holders.
    pub(crate) promises: Promises,
    /// Something is to be recalled, or it is all over.
    attention: Arc<Notify>,
    /// Guards may be gone or in somebody's way.
    look: AtomicBool,
    /// How long the kernel leaves us to let go, less a reserve.
    break_max: Duration,
    taken: Mutex<bool>,
}

#[derive(Default)]
struct State {
    by_id: HashMap<LeaseId, Granted>,
    by_file: HashMap<Handle, LeaseId>,
    /// By last use.
    by_use: BTreeMap<u64, LeaseId>,
    /// Those with a recall.
    asked: BTreeSet<LeaseId>,
    /// Counts grants, to tell which lease was of use for longest ago.
    clock: u64,
    /// Directories that processes of this machine changed lately, and until when they are not leased.
    restless: VecDeque<(Instant, Handle)>,
    /// Somebody hears callbacks.
    heard: bool,
}

struct Granted {
    node: Arc<Node>,
    kind: LeaseKind,
    used: u64,
    recall: Option<Pending>,
    /// Of a directory: what events call it.
    watched: Option<KernelHandle>,
}

#[derive(Clone, Copy)]
struct Pending {
    keep: Option<LeaseKind>,
    deadline: Instant,
    sent: bool,
}

impl State {
    /// Asks for a lease, unless it is asked for already.
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

    /// The stream of callbacks, once. Must be called in a tokio runtime.
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

    /// What is seen of directories, if anything can be.
    fn watch_directories(&self) -> Option<Events> {
        let watches = Watches::new().inspect_err(|cause| {
            tracing::info!("processes of this machine that change names are not noticed: {cause}");
        });
        let events = watches.as_ref().ok()?.events().ok()?;
        self.watches.set(watches.ok()?).ok()?;
        Some(events)
    }

    /// Somebody else changed directories.
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

    /// Are directories leased that may be removed?
    fn watches_any(&self) -> bool {
        self.state.lock().by_id.values().any(|granted| granted.watched.is_some())
    }

    /// Recalls leases on directories that are no more.
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

    /// Grants or confirms the lease that goes with an open. Its `change` is to be filled in.
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

    /// Sets space aside for whoever is going to write a file: up to which size of it. A sparse file may need more than that.
    fn promise(&self, node: &Node) -> u64 {
        let stat = Stat::of(&node.path).ok().filter(|stat| stat.used() >= stat.size());
        let available = available(node, false).ok();
        let (Some(stat), Some(available)) = (stat, available) else { return 0 };
        self.promises.make(node.mount.fsid, &node.handle, stat.size(), available)
    }

    /// A file is about to have data in `range`, in bytes. A hole that it leaves behind its end takes no space; in a file
    /// that has holes any WRITE may take some. Counts it until the result is dropped: after the WRITE.
    ///
    /// # Errors
    /// DELAY, until others have written what was promised to them.
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

    /// Grants or confirms a lease on a directory, for reading. Its `change` is to be filled in.
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
            // It may be the first that is to be looked at.
            self.attention.notify_one();
        }
        Some(Lease { id, kind: LeaseKind::Read, until: None, change: 0, space_limit: Lease::NO_SPACE_LIMIT })
    }

    /// The entry of a file, which is used now; a new one, if there is none and there is room.
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

    /// Makes an entry for a file, if there is room; near the bound, asks for the one back that was useful longest ago.
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

    /// A lease comes back, or what is left of it is kept.
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

    /// A file is gone: so is its lease.
    pub(crate) fn gone(&self, handle: &Handle) {
        let mut state = self.state.lock();
        if let Some(id) = state.by_file.get(handle).copied() {
            self.end(&mut state, id);
        }
    }

    /// A guard was lost on the way.
    pub(crate) fn look_again(&self) {
        self.look.store(true, Ordering::Release);
        self.attention.notify_one();
    }

    /// Ends all leases: nobody hears of them any more.
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

    /// What is to be said now, and when to look again at the latest.
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

    /// Asks for the leases whose guards are in the way of processes of this machine, or gone.
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

/// Bytes that are free on the file system of a file; `reserved` for the superuser too.
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

/// Sends callbacks, when the kernel or anybody here has a reason for some.
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
                break; // noticed below
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

/// Makes a guard that is in the way of readers one that is not. False if somebody may have written in between.
fn exchange_guard(tree: &Tree, node: &Node) -> bool {
    let look = || Stat::of(&node.path).map(|stat| (stat.ctime(), stat.size()));
    let before = look();
    node.unguard();
    tree.guard(node, LeaseKind::Read) == Guarding::Held && before.is_ok() && before == look()
}

/// The strongest lease that a guard, or its absence, allows.
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
