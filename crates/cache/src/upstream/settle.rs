//! When the cache narrows and closes the open that it has at the origin.
//!
//! As a rule it does so after a delay, from a queue by time. Two cases cannot wait: the open denies other
//! clients something that no local open denies any more, or it conflicts with a new OPEN of ours. Then the
//! cache does it at once, and the operation waits for it. An open that only a lease keeps is closed when
//! there are too many of these ([`crate::kept_opens`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;
use tokio::time::Instant;
use vfs::{Caller, Handle, OpenId, OpenRequest, SharedHandle, Shares, Want};

use crate::core::Core;
use crate::object::ObjectState;
use crate::opens::{Keep, Opens, Step, Upstream};
use crate::table::Object;

/// Surplus opens that are closed at a time.
const CLOSES_MAX: usize = 32;
/// The longest wait for operations under an open that must go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Narrows and closes opens that are due, until the cache is dropped.
pub async fn settler(core: Weak<Core>) {
    loop {
        let (next, wake) = {
            let Some(core) = core.upgrade() else { return };
            let (due, next) = core.origin.settling().due();
            for object in due {
                let core = core.clone();
                tokio::spawn(async move { core.settle(&object).await });
            }
            (next, core.origin.settling().wake())
        };
        match next {
            Some(at) => drop(tokio::time::timeout_at(at, wake.notified()).await),
            None => wake.notified().await,
        }
    }
}

impl Core {
    /// Queues a check whether the open at the origin is still needed. If a lease keeps the open, nothing is
    /// queued: the end of the lease queues the check. This matters for a file that is opened and closed all
    /// the time.
    pub fn settle_soon(&self, object: &Arc<Object>) {
        let (wanted, newly_kept) = self.with(object, |state| {
            let kept = keeps_open(state) && !state.held.opens.denies_more() && !is_useless(state);
            let opens = &state.held.opens;
            let untold = state.held.lease.is_none() && opens.untold().is_some();
            let needed = untold || is_useless(state);
            let wanted = !opens.awaited && (needed || (opens.upstream().is_some() && !kept));
            state.held.opens.awaited |= wanted;
            (wanted, if kept { state.held.opens.note_kept() } else { None })
        });
        if wanted {
            self.origin.settling().push(Instant::now(), object.clone());
        }
        if let Some(open) = newly_kept {
            self.enter_kept_open(&object.handle, open);
        }
    }

    /// Enters an open at the origin that only a lease keeps. If there are too many, the least recently used
    /// ones are closed.
    pub fn enter_kept_open(&self, file: &Handle, open: OpenId) {
        let used = self.memory.table().last_use(file).unwrap_or(0);
        self.origin.kept_opens().push(SharedHandle::from(file), open, used);
        self.close_surplus_soon();
    }

    /// If there are too many opens at the origin that only leases keep, closes some. Nobody waits for that.
    /// As long as clients may reclaim opens, all are needed.
    pub fn close_surplus_soon(&self) {
        let (kept, adopting) = (self.origin.kept_opens(), self.origin.adopting());
        let may_be_reclaimed = adopting.has_any() && !adopting.is_over();
        if kept.len() > self.options.kept_opens_max
            && !kept.is_closing()
            && !may_be_reclaimed
            && let (Some(core), Ok(runtime)) = (self.share(), Runtime::try_current())
        {
            runtime.spawn(async move { core.close_surplus().await });
        }
    }

    /// Closes opens that only a lease keeps, until a sixteenth of their number is free.
    async fn close_surplus(self: &Arc<Core>) {
        let kept_opens_max = self.options.kept_opens_max;
        let Some(closing) = self.origin.kept_opens().begin_closing() else { return };
        let keep = kept_opens_max - kept_opens_max.div_ceil(16);
        let table = self.memory.table();
        let surplus = closing.beyond(keep, |handle, open| table.last_use_of_open(handle, open));
        let mut closes = JoinSet::new();
        for (file, open) in surplus {
            if closes.len() >= CLOSES_MAX {
                closes.join_next().await;
            }
            let (core, object) = (self.clone(), self.glance(&file.handle()));
            closes.spawn(async move { core.close_kept(&object, open).await });
        }
        while closes.join_next().await.is_some() {}
    }

    /// Closes the open of a file that only a lease keeps. The lease stays.
    async fn close_kept(&self, object: &Arc<Object>, open: OpenId) {
        let _turn = object.turn.lock().await;
        let step = self.with(object, |state| {
            let idle = state.held.opens.take_kept(open);
            if !idle || has_unwritten(state) || state.held.locks.has_adopted() {
                return Step::Nothing;
            }
            let idle_max = self.options.close_delay;
            let now = Keep { leased: true, unlinked: false, idle_max, yields: true, may_name: false };
            state.held.opens.step(now)
        });
        if let Step::Close(upstream) = step {
            self.close_below(object, &upstream).await;
        }
    }

    /// CLOSE.
    async fn close_below(&self, object: &Arc<Object>, upstream: &Upstream) {
        self.counters.close.bump();
        let caller = Caller { deadline: None, ..upstream.caller.clone() };
        if let Err(error) = self.below.close(&caller, upstream.id).await {
            tracing::debug!("CLOSE of {}: {error}", object.handle);
        }
        self.with(object, |state| state.held.opens.narrowed(upstream.id, None, self.policy.event()));
    }

    /// Narrows or closes the open at the origin, if it is due.
    async fn settle(&self, object: &Arc<Object>) {
        let _turn = object.turn.lock().await;
        let useless = self.with(object, |state| {
            state.held.opens.awaited = false;
            is_useless(state)
        });
        if self.with(object, |state| state.held.lease.is_none()) {
            self.tell_opens(object).await;
        }
        if useless && let Some(core) = self.share() {
            let object = object.clone();
            tokio::spawn(async move { core.return_lease(&object).await });
        }
        if let Some(time) = self.settle_step(object, false).await {
            self.with(object, |state| state.held.opens.awaited = true);
            self.origin.settling().push(Instant::now() + time, object.clone());
        }
    }

    /// Takes the next step. The caller must hold the file's turn. Returns how long to wait, if the step is
    /// not due yet.
    async fn settle_step(&self, object: &Arc<Object>, yields: bool) -> Option<Duration> {
        let mut may_name = true;
        loop {
            let step = self.with(object, |state| {
                let (leased, unlinked) = (keeps_open(state), state.unlinked);
                let idle_max = self.options.close_delay;
                state.held.opens.step(Keep { leased, unlinked, idle_max, yields, may_name })
            });
            let (id, to) = match step {
                Step::Nothing => return None,
                Step::Wait(time) => return Some(time),
                Step::Name(shares) => {
                    // Their users may do what the user of the origin's open may not.
                    self.tell_opens(object).await;
                    may_name = self.name_shares(object, shares).await;
                    continue;
                }
                Step::Narrow(upstream, to) => {
                    self.counters.downgrade.bump();
                    let caller = Caller { deadline: None, ..upstream.caller };
                    let narrowed = self.below.downgrade(&caller, upstream.id, to.access, to.deny).await;
                    if let Err(error) = &narrowed {
                        tracing::debug!("OPEN_DOWNGRADE of {}: {error}", object.handle);
                    }
                    (upstream.id, if narrowed.is_ok() { to } else { upstream.shares })
                }
                Step::Close(upstream) => {
                    self.close_below(object, &upstream).await;
                    return None;
                }
            };
            self.with(object, |state| state.held.opens.narrowed(id, Some(to), self.policy.event()));
            return None;
        }
    }

    /// Sends an OPEN with shares that the origin's open has, so that a downgrade may name them. False if
    /// that failed.
    async fn name_shares(&self, object: &Arc<Object>, shares: Shares) -> bool {
        let caller =
            self.with(object, |state| state.held.opens.upstream().map(|upstream| upstream.caller.clone()));
        let Some(caller) = caller else { return false };
        let request = Core::open_handle_below(object.handle, shares, Want::None);
        self.ask_open(&Caller { deadline: None, ..caller }, request, None).await.is_ok()
    }

    /// Ends what the origin still denies other clients for an open that has ended. This goes on even if the
    /// requester gives up.
    pub async fn stop_denying(&self, object: &Arc<Object>) {
        let Some(core) = self.share().filter(|_| self.with(object, |state| state.held.opens.denies_more()))
        else {
            return self.settle_soon(object);
        };
        let object = object.clone();
        let stopping = tokio::spawn(async move {
            let _turn = object.turn.lock().await;
            core.settle_until(&object, false, |state| !state.denies_more()).await;
            core.settle_soon(&object);
        });
        let _ = stopping.await;
    }

    /// The origin denied an OPEN that arrived at the event `arrived`. If the cause may be a share that the
    /// cache keeps without need, gives that share up. Returns the file's turn if the OPEN may be sent
    /// again.
    pub async fn make_way(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        arrived: u64,
    ) -> Option<OwnedMutexGuard<()>> {
        let object = match &request.name {
            None => self.object(&request.handle),
            Some(name) => {
                let found = self.lookup(caller, &request.handle, name).await.ok()?;
                self.object(&found.node.handle)
            }
        };
        let shares = request.shares();
        let turn = object.turn.clone().lock_owned().await;
        if self.with(&object, |state| state.held.opens.stands_in_the_way(shares)) {
            self.settle_until(&object, true, |opens| !opens.stands_in_the_way(shares)).await;
        }
        self.with(&object, |state| state.held.opens.narrowed_since(arrived)).then_some(turn)
    }

    /// Narrows or closes the open at the origin until `enough` holds. The caller must hold the file's turn.
    async fn settle_until(&self, object: &Arc<Object>, yields: bool, enough: impl Fn(&Opens) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.with(object, |state| enough(&state.held.opens)) && Instant::now() < deadline {
            match self.settle_step(object, yields).await {
                Some(time) => tokio::time::sleep(time).await,
                None => return,
            }
        }
    }
}

/// Does the origin's open stay, even without a local open? A lease needs it, and so do delayed writes and the
/// locks that no client has reclaimed yet.
fn keeps_open(state: &ObjectState) -> bool {
    state.held.lease.is_some() || has_unwritten(state) || state.held.locks.has_adopted()
}

fn has_unwritten(state: &ObjectState) -> bool {
    state.delayed.writes.as_ref().is_some_and(|writes| !writes.is_clean())
}

/// Is there a lease on a file that has no name and no local open?
pub fn is_useless(state: &ObjectState) -> bool {
    state.held.lease.is_some() && state.unlinked && !state.held.opens.is_local()
}
