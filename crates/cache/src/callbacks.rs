//! Callbacks from the layer below: recalls, queries and revocations.
//!
//! A recalled lease is first recalled from the layer above, if that holds it. The lease vouches for the known
//! state until it is returned. No operation of ours may delay the return beyond the deadline. Before the
//! return, the origin is told of the opens and the locks that it does not know of, and the known state is no
//! longer trusted. One OPEN tells it of all opens of the file.
//!
//! Of the locks that are held across calls (`table::Object`), a return takes only `locking`. Across calls,
//! `locking` is held only while another return tells the origin of locks. A return does not wait for `turn`,
//! because the origin may hold an OPEN until the lease is returned. It does not wait for `revalidation` or
//! `cutting` either. It waits for WRITEs until the deadline.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use vfs::grants::GrantNumber;
use vfs::{
    Callback, Callbacks, Caller, DelayedAttributes, LeaseId, Lock, LockRequest, Locked, OpenId, Query,
    Recall, SharedHandle, Times,
};

use crate::core::Core;
use crate::filesystem::overlay::overlay;
use crate::held_lease::HeldLease;
use crate::lease::Early;
use crate::object::ObjectState;
use crate::table::Object;
use crate::upstream::settle::is_useless;
use crate::writes::{Level, Pending};

/// How long the layer above has to return a lease that the cache wants to return on its own account.
const PATIENCE: Duration = Duration::from_secs(10);
/// A return on the cache's own account waits so long at most for the end of the reclaim phase.
const RECLAIM_MAX: Duration = Duration::from_secs(120);
/// A recall is answered this long before its deadline. If a quarter of the remaining time is less, it is
/// answered by that quarter before the deadline.
const MARGIN: Duration = Duration::from_secs(1);
/// Leases that are being returned at a time.
const RETURNS_MAX: usize = 32;

/// How much of the time for the answer to a recall the layer above has.
pub fn recall_time(time: Duration) -> Duration {
    time.saturating_sub(MARGIN.min(time / 4))
}

/// A call in flight that may bring a lease. The caller drops it when the result is recorded.
#[must_use]
pub struct GrantInFlight<'a> {
    core: &'a Core,
    number: GrantNumber,
}

impl Drop for GrantInFlight<'_> {
    fn drop(&mut self) {
        for lost in self.core.origin.leases().end_grant(self.number) {
            self.core.return_unknown(lost);
        }
        if self.core.origin.leases().len() > self.core.options.leases_max {
            self.core.trim_leases(self.core.options.leases_max);
        }
    }
}

/// Handles the callbacks from the layer below, for as long as the cache exists.
pub async fn listener(core: Weak<Core>, mut callbacks: Callbacks) {
    while let Some(callback) = callbacks.recv().await {
        let Some(core) = core.upgrade() else { return };
        core.on_callback(callback).await;
    }
}

impl Core {
    async fn on_callback(&self, callback: Callback) {
        match callback {
            Callback::Recall(recall) => match self.origin.leases().find(recall.id, Early::Recall(recall)) {
                Ok(Some(handle)) => self.start_recall(&self.glance(&handle), recall),
                Ok(None) => {}
                Err(()) => self.return_unknown(recall.id),
            },
            Callback::Revoked { id, .. } => {
                if let Ok(Some(handle)) = self.origin.leases().find(id, Early::Revoked) {
                    self.revoked(&self.glance(&handle), id).await;
                }
            }
            Callback::Getattr(query) => self.on_query(query).await,
            Callback::RecallAny { keep, .. } => self.trim_leases(keep as usize),
            Callback::NotifyLock { .. } => self.tell_above(callback).await,
        }
    }

    /// Passes a callback to the layer above, if that listens.
    async fn tell_above(&self, callback: Callback) {
        if self.above.is_heard() {
            self.above.send(callback).await;
        }
    }

    /// A call that may bring a lease is about to be sent.
    pub fn begin_grant(&self) -> GrantInFlight<'_> {
        GrantInFlight { core: self, number: self.origin.leases().begin_grant() }
    }

    /// Returns a lease that no object here has.
    fn return_unknown(&self, id: LeaseId) {
        let Some(core) = self.share() else { return };
        tokio::spawn(async move {
            core.counters.returned.bump();
            let _ = core.below.returned(&Caller::machine(), id).await;
        });
    }

    /// A lease is recalled: starts a task that returns it.
    pub fn start_recall(&self, object: &Arc<Object>, recall: Recall) {
        self.counters.recalls.bump();
        let Some(core) = self.share() else { return };
        let object = object.clone();
        tokio::spawn(async move { core.recall(&object, recall).await });
    }

    async fn recall(&self, object: &Arc<Object>, recall: Recall) {
        let now = Instant::now();
        let deadline = now + recall_time(recall.deadline.saturating_duration_since(now));
        self.wait_for_believers(object, recall.id, deadline).await;
        self.call_in(object, recall.id, deadline).await;
        self.tell_opens_before(object, deadline).await;
        self.send_before(object, deadline).await;
        self.sync_journal_before(deadline).await;
        self.give_back(object, recall.id).await;
        self.settle_soon(object);
    }

    /// If an earlier incarnation gave an adopted lease to the layer above, this process cannot recall it
    /// there. Its holder relies on the lease until it learns of the restart. Every holder has learnt of it
    /// when the reclaim phase is over.
    async fn wait_for_believers(&self, object: &Arc<Object>, id: LeaseId, deadline: Instant) {
        let adopted = |lease: &HeldLease| lease.id == id && lease.adopted;
        if self.with(object, |state| state.held.lease.as_ref().is_some_and(adopted)) {
            let _ = tokio::time::timeout_at(deadline, self.origin.adopting().ended()).await;
        }
    }

    /// Recalls the lease of a file from the layer above, which has until the deadline. The wait ends if that
    /// layer stops listening meanwhile, as a mount does at its end.
    async fn call_in(&self, object: &Arc<Object>, id: LeaseId, deadline: Instant) {
        let given = self.with(object, |state| {
            let lease = state.held.lease.as_mut().filter(|lease| lease.id == id)?;
            lease.recalled = true;
            lease.given.then(|| (lease.above, lease.returned.clone()))
        });
        // If the layer above does not listen any more, it relies on nothing.
        let Some((id, returned)) = given.filter(|_| self.above.is_heard()) else { return };
        let handle = object.handle;
        let wait = async {
            self.tell_above(Callback::Recall(Recall { id, handle, keep: None, deadline })).await;
            loop {
                let notified = returned.notified();
                let still = |lease: &HeldLease| lease.above == id && lease.given;
                if !self.with(object, |state| state.held.lease.as_ref().is_some_and(still)) {
                    break;
                }
                notified.await;
            }
        };
        let waited = tokio::select! {
            waited = tokio::time::timeout_at(deadline, wait) => waited,
            () = self.above.gone() => return,
        };
        if waited.is_err() {
            self.above.send_soon(Callback::Revoked { id, handle });
        }
    }

    /// Sends delayed writes to the origin before the lease is returned, if there is time.
    async fn send_before(&self, object: &Arc<Object>, deadline: Instant) {
        let sent = tokio::time::timeout_at(deadline, self.flush_writes(object, Level::Stable)).await;
        if sent.is_err() {
            tracing::warn!(
                "{} did not take what was written to {} before its lease had to be returned; it is sent after",
                self.options.origin,
                object.handle
            );
        }
    }

    /// Returns the lease of a file, if it is still this one. The layer above does not hold it any more.
    async fn give_back(&self, object: &Arc<Object>, id: LeaseId) {
        let mine = |lease: &&mut HeldLease| lease.id == id;
        self.with(object, |state| {
            state.held.lease.iter_mut().filter(mine).for_each(|lease| lease.recalled = true);
        });
        self.tell_locks(object).await;
        let lease = self.with(object, |state| {
            state.held.lease.as_ref().filter(|lease| lease.id == id)?;
            self.drop_lease(state)
        });
        let Some(lease) = lease else { return };
        self.counters.returned.bump();
        if let Err(error) = self.below.returned(&Caller::machine(), lease.id).await {
            tracing::debug!("return of the lease on {}: {error}", object.handle);
        }
        self.origin.leases().forget(lease.id);
    }

    /// Ends a lease here. The caller has the state locked, so that a grant that crosses the return notices.
    fn drop_lease(&self, state: &mut ObjectState) -> Option<HeldLease> {
        let lease = state.end_lease(&self.policy)?;
        self.origin.leases().take(lease.id, lease.above);
        Some(lease)
    }

    /// Tells the origin of the locks that it does not know of.
    async fn tell_locks(&self, object: &Arc<Object>) {
        let _locking = object.locking.lock().await;
        while !self.keeps_locks_alone() {
            let next = self.with(object, |state| {
                let upstream =
                    state.held.opens.upstream().map(|upstream| (upstream.id, upstream.caller.clone()));
                state.held.locks.untold().map(|held| (held.lock.clone(), upstream))
            });
            let Some((lock, upstream)) = next else { return };
            let Some((id, caller)) = upstream else {
                self.with(object, |state| state.held.locks.tell(&lock, false));
                tracing::warn!("a lock on {} is lost: there is no open to take it under", object.handle);
                continue;
            };
            self.counters.lock.bump();
            let request = LockRequest { lock: lock.clone(), wait: false, reclaim: false };
            let granted = match self.below.lock(&caller, id, &request).await {
                Ok(Locked::Granted) => true,
                Ok(Locked::Denied(_)) => false,
                Err(error) if error.status == vfs::Status::NotSupp => {
                    self.no_locks_below();
                    return;
                }
                Err(error) => {
                    self.lose_open(object, id, &error);
                    false
                }
            };
            match (self.with(object, |state| state.held.locks.tell(&lock, granted)), granted) {
                (true, false) => tracing::warn!("a lock on {} is lost: the origin refuses it", object.handle),
                (false, true) => self.untell(object, (id, &caller), &lock).await,
                _ => {}
            }
        }
    }

    /// The origin was told of a lock that was no longer held here when the origin granted it. A LOCK of the
    /// same owner, which was in flight before, has replaced it. Unlocks the parts that the owner no longer
    /// holds.
    async fn untell(&self, object: &Arc<Object>, (id, caller): (OpenId, &Caller), lock: &Lock) {
        for part in self.with(object, |state| state.held.locks.tell_again(lock)) {
            self.counters.lock.bump();
            if let Err(error) = self.below.unlock(caller, id, &lock.owner, part).await {
                self.lose_open(object, id, &error);
            }
        }
    }

    async fn revoked(&self, object: &Arc<Object>, id: LeaseId) {
        self.counters.revoked.bump();
        let lost = self.with(object, |state| {
            state.held.lease.as_ref().filter(|lease| lease.id == id)?;
            self.end_lost_lease(state, object)
        });
        let Some(lease) = lost else { return };
        if lease.given {
            self.tell_above(Callback::Revoked { id: lease.above, handle: object.handle }).await;
        }
        self.settle_soon(object);
    }

    /// The origin has granted another lease on the object. The one that is held has ended there, and the news
    /// of that have not arrived.
    pub fn lose_lease(&self, state: &mut ObjectState, object: &Arc<Object>) {
        self.counters.revoked.bump();
        if let Some(lease) = self.end_lost_lease(state, object).filter(|lease| lease.given) {
            self.above.send_soon(Callback::Revoked { id: lease.above, handle: object.handle });
        }
    }

    /// Ends a lease that the origin does not count as held any more.
    fn end_lost_lease(&self, state: &mut ObjectState, object: &Arc<Object>) -> Option<HeldLease> {
        let suspended = self.suspend_writes(state);
        let lease = self.drop_lease(state)?;
        if suspended {
            self.settle_suspended_soon(object);
        }
        self.origin.leases().forget(lease.id);
        lease.returned.notify_one();
        Some(lease)
    }

    /// The origin asks for the attributes of a file under a write lease (CB_GETATTR). The answer is the known
    /// state with the delayed writes, unless the layer above knows better: a client of several may have
    /// written what is not here yet. If there are delayed times that the origin would not show, the cache
    /// does not answer, and the origin recalls the lease.
    async fn on_query(&self, query: Query) {
        let Some(handle) = self.origin.leases().holder(query.id) else { return };
        let object = self.glance(&handle);
        let (held, above) = self.with(&object, |state| {
            let above = state.held.lease.as_ref().filter(|lease| lease.given).map(|lease| lease.above);
            (made_of(state, query.times), above)
        });
        // If one client writes here, it delays nothing of its own.
        let asks = self.delayed.as_ref().is_none_or(|delayed| delayed.options.shared);
        match (above.filter(|_| self.above.is_heard() && asks), held) {
            (Some(id), Some(held)) if held.modified => self.ask_above(Query { id, ..query }, held).await,
            (Some(id), _) if self.is_clean(&object) => {
                self.tell_above(Callback::Getattr(Query { id, ..query })).await;
            }
            (None, Some(held)) => drop(query.answer.send(held)),
            (_, None) | (Some(_), Some(_)) => {}
        }
    }

    /// The same for a file with delayed writes here, of which the layer above may have more.
    async fn ask_above(&self, query: Query, held: DelayedAttributes) {
        let (answer, answered) = oneshot::channel();
        let Query { answer: asked, .. } = query;
        self.tell_above(Callback::Getattr(Query { answer, ..query })).await;
        tokio::spawn(async move {
            let Ok(above) = answered.await else { return };
            // The origin may have stopped waiting.
            let _ = asked.send(if above.modified { above } else { held });
        });
    }

    /// Returns the least recently used leases beyond `keep`.
    pub fn trim_leases(&self, keep: usize) {
        let Some(core) = self.share() else { return };
        let surplus = self.origin.leases().beyond(keep, |handle| self.memory.table().last_use(handle));
        tokio::spawn(async move { core.return_all(surplus).await });
    }

    /// Returns the leases of these files, a limited number at a time.
    pub async fn return_all(self: &Arc<Core>, handles: Vec<SharedHandle>) {
        let mut returns = JoinSet::new();
        for handle in handles {
            if returns.len() >= RETURNS_MAX {
                returns.join_next().await;
            }
            let (core, object) = (self.clone(), self.glance(&handle.handle()));
            returns.spawn(async move { core.return_lease(&object).await });
        }
        while returns.join_next().await.is_some() {}
    }

    /// Returns the lease of a file, if it has one.
    pub async fn return_lease(&self, object: &Arc<Object>) {
        let id = self.with(object, |state| state.held.lease.as_ref().map(|lease| lease.id));
        let Some(id) = id else { return };
        self.wait_for_believers(object, id, Instant::now() + RECLAIM_MAX).await;
        self.call_in(object, id, Instant::now() + PATIENCE).await;
        self.tell_opens_before(object, Instant::now() + PATIENCE).await;
        self.send_before(object, Instant::now() + PATIENCE).await;
        self.sync_journal_before(Instant::now() + MARGIN).await;
        self.give_back(object, id).await;
        self.settle_soon(object);
    }

    /// The layer above has returned a lease.
    pub fn returned_above(&self, id: LeaseId) {
        let Some(handle) = self.origin.leases().take_back(id) else { return };
        self.with(&self.glance(&handle), |state| {
            if let Some(lease) = state.held.lease.as_mut().filter(|lease| lease.above == id) {
                lease.given = false;
                lease.returned.notify_one();
            }
        });
    }

    /// The object has lost its last name. A file's lease and its open at the origin end with the last local
    /// open. A directory is not opened, so a lease that arrived during its removal is returned at once.
    pub fn lost_its_name(&self, object: &Arc<Object>) {
        let useless = self.with(object, |state| {
            state.unlinked = true;
            is_useless(state) && state.held.opens.upstream().is_none()
        });
        match self.share().filter(|_| useless) {
            Some(core) => {
                let object = object.clone();
                tokio::spawn(async move { core.return_lease(&object).await });
            }
            None => self.settle_soon(object),
        }
    }
}

/// The attributes of a file as changed under a write lease. `shown` tells whether the origin shows times from
/// the answer. `None` if the answer would not tell everything.
fn made_of(state: &ObjectState, shown: bool) -> Option<DelayedAttributes> {
    let known = *state.leased()?;
    let writes = state.delayed.writes.as_ref().filter(|writes| !writes.is_clean());
    if !shown && writes.and_then(|writes| writes.pending()).is_some_and(Pending::sets_times) {
        return None;
    }
    let now = overlay(state, known, u64::MAX);
    let modified = writes.is_some();
    // Later than the origin's ctime, which tells the origin that these times are ours (`vfs::Times`).
    let ctime = if modified { now.ctime.max(known.ctime.plus(Duration::from_nanos(1))) } else { now.ctime };
    let times = Times { atime: now.atime, mtime: now.mtime, ctime };
    Some(DelayedAttributes { modified, size: now.size, times: Some(times) })
}
