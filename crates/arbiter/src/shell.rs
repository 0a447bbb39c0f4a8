//! The shell around the state machines: one lock, the execution of their effects, and background tasks.
//!
//! The lock is never held across an await. Gauges beside it count what matters for each kind of operation.
//! So an operation takes no lock if nothing is held that could conflict with it.

mod admission;
mod attributes;
mod capacity;
mod changes;
mod directories;
mod locking;
mod opens;
mod tasks;
mod terms;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use vfs::{Callback, Callbacks, Caller, FileSystem, Handle, LeaseId, Name, OpenId};

use crate::held::{HeldLease, Holdings};
use crate::leases::{Effect, Leases};
use crate::locks::{Locks, Notice};
use crate::options::{Delegations, Options};
use crate::shares::ShareTable;

pub(crate) use attributes::Asked;
pub(crate) use changes::Victims;
pub(crate) use opens::Below;
pub(crate) use tasks::Tasks;

/// Limit of callbacks queued for the front; further ones wait in `State::outbox`.
const CALLBACKS_MAX: usize = 1024;

/// All state behind the lock.
pub(crate) struct State {
    pub(crate) shares: ShareTable,
    pub(crate) locks: Locks,
    pub(crate) leases: Leases,
    /// The opens at the layer below, for each open of a client.
    below: HashMap<OpenId, Vec<Below>>,
    /// Wakes requesters that wait for the return of leases on a file.
    waiting: HashMap<Handle, Arc<Notify>>,
    /// Names that are being changed, by directory.
    names: HashSet<(Handle, Name)>,
    /// Questions to holders of write leases, by lease.
    asked: HashMap<LeaseId, Arc<Asked>>,
    /// Callbacks beyond the queue of the front: at most a few for each lease and each lock waiter.
    outbox: VecDeque<Callback>,
    /// The next wakeup of the task that watches deadlines.
    alarm: Option<Instant>,
}

/// Numbers of what is held, readable without the lock.
#[derive(Default)]
struct Gauges {
    file_leases: AtomicUsize,
    directory_leases: AtomicUsize,
    write_leases: AtomicUsize,
    denying_opens: AtomicUsize,
    questions: AtomicU64,
}

/// The shell. See the module.
pub(crate) struct Shell {
    pub(crate) below: Arc<dyn FileSystem>,
    options: Options,
    state: Mutex<State>,
    gauges: Gauges,
    next_open: AtomicU64,
    /// The layer below has no opens.
    stateless: AtomicBool,
    /// A front takes callbacks, so that leases may be granted.
    granting: AtomicBool,
    up: mpsc::Sender<Callback>,
    callbacks: Mutex<Option<Callbacks>>,
    /// A name may be changed again.
    names_freed: Notify,
    capacity: capacity::Capacity,
    /// The outbox has callbacks.
    outbox_filled: Notify,
    /// The earliest deadline has changed.
    deadlines_changed: Notify,
}

impl Shell {
    pub(crate) fn new(below: Arc<dyn FileSystem>, options: Options) -> Shell {
        let (up, callbacks) = mpsc::channel(CALLBACKS_MAX);
        let state = State {
            shares: ShareTable::default(),
            locks: Locks::default(),
            leases: Leases::new(&options),
            below: HashMap::new(),
            waiting: HashMap::new(),
            names: HashSet::new(),
            asked: HashMap::new(),
            outbox: VecDeque::new(),
            alarm: None,
        };
        Shell {
            below,
            options,
            state: Mutex::new(state),
            gauges: Gauges::default(),
            next_open: AtomicU64::new(1),
            stateless: AtomicBool::new(false),
            granting: AtomicBool::new(false),
            up,
            callbacks: Mutex::new(Some(callbacks)),
            names_freed: Notify::new(),
            capacity: capacity::Capacity::default(),
            outbox_filled: Notify::new(),
            deadlines_changed: Notify::new(),
        }
    }

    /// The callbacks for the front; `None` at all later calls. From then on leases are granted.
    pub(crate) fn callbacks(&self) -> Option<Callbacks> {
        let callbacks = self.callbacks.lock().take()?;
        self.granting.store(self.options.delegations != Delegations::Never, Ordering::Release);
        Some(callbacks)
    }

    /// The front has returned a lease.
    pub(crate) fn returned(self: &Arc<Shell>, lease: LeaseId) {
        self.with(|state, now| state.leases.returned(now, lease));
    }

    pub(crate) fn held(&self) -> Holdings {
        let state = self.state.lock();
        let counts = state.leases.counts();
        Holdings {
            opens: state.shares.len(),
            denying_opens: state.shares.denying(),
            locks: state.locks.len(),
            lock_waiters: state.locks.waiting(),
            read_leases: state.leases.len() - state.leases.writes() - state.leases.directories(),
            write_leases: state.leases.writes(),
            directory_leases: state.leases.directories(),
            in_flight: state.leases.in_flight(),
            granted: counts.granted,
            recalls: counts.recalled,
            returned: counts.returned,
            revoked: counts.revoked,
            recall_time: counts.recall_time,
            recall_time_max: counts.recall_time_max,
            questions: self.gauges.questions.load(Ordering::Relaxed),
        }
    }

    /// Checks the counters at the end: whatever belongs to an open ends with it, and so does whatever belongs
    /// to a lease.
    pub(crate) fn check_counters(&self) {
        let state = self.state.lock();
        if state.shares.is_empty() {
            debug_assert_eq!(state.shares.denying(), 0, "denying opens, and no open");
            debug_assert_eq!(state.locks.len(), 0, "byte-range locks, and no open");
            debug_assert_eq!(state.locks.waiting(), 0, "lock waiters, and no open");
            debug_assert_eq!(state.below.len(), 0, "opens at the layer below, and no open");
        }
        if state.leases.is_empty() {
            debug_assert_eq!(state.leases.writes(), 0, "write leases, and no lease");
            debug_assert_eq!(state.leases.directories(), 0, "directory leases, and no lease");
            debug_assert_eq!(self.gauges.file_leases.load(Ordering::Acquire), 0, "gauge of file leases");
            debug_assert_eq!(self.gauges.write_leases.load(Ordering::Acquire), 0, "gauge of write leases");
        }
    }

    pub(crate) fn leases(&self, behind: Option<LeaseId>, limit: usize) -> Vec<HeldLease> {
        let now = Instant::now();
        let listed = self.state.lock().leases.list(behind, limit);
        let lease = |lease: crate::leases::Listed| HeldLease {
            id: lease.id,
            holder: lease.holder,
            handle: lease.handle,
            kind: lease.kind,
            directory: lease.directory,
            recalled: lease.recalled.map(|at| now.duration_since(at)),
        };
        listed.into_iter().map(lease).collect()
    }

    fn is_granting(&self) -> bool {
        self.granting.load(Ordering::Acquire)
    }

    /// Runs an event on the state, and carries out its effects.
    fn with<T>(self: &Arc<Shell>, event: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock();
        let now = Instant::now();
        let result = event(&mut state, now);
        self.settle(&mut state, now);
        result
    }

    /// Carries out the effects of an event.
    fn settle(self: &Arc<Shell>, state: &mut MutexGuard<'_, State>, now: Instant) {
        loop {
            let effects = state.leases.effects();
            if effects.is_empty() {
                break;
            }
            for effect in &effects {
                self.carry_out(state, now, effect);
            }
        }
        let expiry = state.leases.next_expiry();
        if expiry.is_some_and(|at| state.alarm.is_none_or(|alarm| at < alarm)) {
            state.alarm = expiry;
            self.deadlines_changed.notify_one();
        }
        let directories = state.leases.directories();
        self.gauges.file_leases.store(state.leases.len() - directories, Ordering::Release);
        self.gauges.directory_leases.store(directories, Ordering::Release);
        self.gauges.write_leases.store(state.leases.writes(), Ordering::Release);
        self.gauges.denying_opens.store(state.shares.denying(), Ordering::Release);
    }

    fn carry_out(self: &Arc<Shell>, state: &mut MutexGuard<'_, State>, now: Instant, effect: &Effect) {
        match *effect {
            Effect::Recall(recall) => self.post(state, Callback::Recall(recall)),
            Effect::Revoked(id, handle) => self.post(state, Callback::Revoked { id, handle }),
            Effect::RecallAny(holder, keep) => {
                self.post(state, Callback::RecallAny { holder: Some(holder), keep });
            }
            Effect::Gone(id, handle) => {
                state.asked.remove(&id);
                if let Some(waiting) = state.waiting.get(&handle) {
                    waiting.notify_waiters();
                }
                if !state.shares.is_open(&handle) {
                    state.leases.closed(now, &handle);
                }
            }
            Effect::GiveBack(id) => self.give_back(id),
        }
    }

    /// Returns a lease to the layer below. This runs to completion even if the requester goes away.
    fn give_back(self: &Arc<Shell>, id: LeaseId) {
        let shell = self.clone();
        let give_back = async move {
            if let Err(error) = shell.below.returned(&Caller::machine(), id).await {
                tracing::debug!(?id, %error, "the layer below did not take a lease back");
            }
            shell.capacity.is_more();
            shell.with(|state, _| state.leases.gave_back(id));
        };
        detach(give_back);
    }

    /// Sends a callback to the front, in the order of the calls.
    fn post(&self, state: &mut State, callback: Callback) {
        if !state.outbox.is_empty() {
            state.outbox.push_back(callback);
        } else if let Err(mpsc::error::TrySendError::Full(callback)) = self.up.try_send(callback) {
            state.outbox.push_back(callback);
            self.outbox_filled.notify_one();
        }
    }

    fn notify(&self, state: &mut State, notices: Vec<Notice>) {
        for Notice { holder, owner, handle } in notices {
            self.post(state, Callback::NotifyLock { holder, owner, handle });
        }
    }
}

/// Runs work to completion, independent of its requester.
fn detach(work: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(work));
    }
}
