//! OPEN, OPEN_DOWNGRADE and CLOSE.
//!
//! Over an origin with state, the first open costs one OPEN there. Later opens share it if it has their
//! share: each costs one GETATTR, and none under a lease. Three facts make an open without an OPEN call
//! right:
//! - The **name**: while a file's lease is held, a remembered name of it is true. REMOVE and RENAME of the
//!   file recall the lease (RFC 8881, section 10.4).
//! - The **right**: the origin has granted it to this very credential, by ACCESS or by an OPEN. If the
//!   right is not known, the open costs an ACCESS. If it is known to be missing, the origin decides.
//! - The **share**: the origin's open has it, so the origin keeps conflicting clients out. For reading alone,
//!   a lease does the same ([`crate::upstream::untold`]).
//!
//! Over an origin without state, an open is a LOOKUP or CREATE and an ACCESS. Only the cache knows of it.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use vfs::{
    Attributes, Caller, CreateHow, Freshness, Handle, Lease, Name, OpenId, OpenRequest, Opened, Result,
    SetAttributes, Share, Shares, Status, Want, Wcc,
};

use crate::core::Core;
use crate::names::{Leads, NameEntry};
use crate::object::ObjectState;
use crate::options::LookupCache;
use crate::table::Object;
use crate::upstream::needed;
use crate::upstream::untold::may_be_untold;

/// How often an OPEN that crossed a close is sent again.
const CROSSINGS_MAX: usize = 4;

impl Core {
    /// OPEN.
    pub async fn open(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let arrived = self.policy.event();
        // Whatever its freshness, an open is an open: attribute timeouts do not apply.
        let caller = &caller.clone().with_freshness(Freshness::Open);
        self.know_limits(caller, &request.handle).await;
        match self.has_state() {
            // While the origin's features are unknown, nothing can be promised.
            None => return Err(Status::Delay.into()),
            Some(false) => {
                let opened = self.open_without_state(caller, request).await?;
                self.step_opened(caller, request, &opened.handle);
                self.note_companion(request, &opened.handle);
                self.note_open(request, arrived);
                return Ok(opened);
            }
            Some(true) if request.reclaim => return self.reclaim_open(caller, request).await,
            Some(true) => {}
        }
        if request.name.is_some() {
            self.lease_names(caller, &self.object(&request.handle)).await;
        }
        if let Some(absent) = self.leased_absence(caller, request).await {
            self.counters.opens_shared.bump();
            return Err(absent);
        }
        let opened = self.open_with_state(caller, request, arrived).await?;
        self.note_companion(request, &opened.handle);
        self.note_open(request, arrived);
        Ok(opened)
    }

    async fn open_with_state(&self, caller: &Caller, request: &OpenRequest, arrived: u64) -> Result<Opened> {
        for _ in 0..CROSSINGS_MAX {
            match self.open_known(caller, request, arrived).await {
                // The file has just been removed. The name leads elsewhere by now, or nowhere: look again.
                Err(error) if error.status == Status::Stale && may_look_again(request) => {}
                opened => return opened,
            }
            let directory = self.object(&request.handle);
            self.revalidate(caller, &directory, self.policy.event()).await?;
        }
        self.open_at_origin(caller, request, None, arrived).await
    }

    /// An open is a coherence point for the negative entries of its directory too. An OPEN at the origin
    /// returns the directory's attributes. After an open without a call, the next use of a negative entry
    /// asks for them.
    fn note_open(&self, request: &OpenRequest, arrived: u64) {
        if request.name.is_some() {
            self.with(&self.object(&request.handle), |state| state.pass_open(arrived));
        }
    }

    async fn open_known(&self, caller: &Caller, request: &OpenRequest, arrived: u64) -> Result<Opened> {
        let target = if may_share(request) { self.target(caller, request).await } else { None };
        let Some(object) = target else {
            return self.open_at_origin(caller, request, None, arrived).await;
        };
        if let Some(opened) = self.open_shared(caller, request, &object, arrived).await? {
            return Ok(opened);
        }
        // Another open or close of this file may be in flight: wait for the turn, and look again.
        let covered = self.with(&object, |state| state.held.opens.covers(request.shares()));
        let turn = object.turn.clone().lock_owned().await;
        if !covered && let Some(opened) = self.open_shared(caller, request, &object, arrived).await? {
            return Ok(opened);
        }
        self.open_at_origin(caller, request, Some(turn), arrived).await
    }

    /// The file to open, if it is remembered. The name may lead to another one by now.
    async fn target(&self, caller: &Caller, request: &OpenRequest) -> Option<Arc<Object>> {
        let Some(name) = &request.name else { return Some(self.object(&request.handle)) };
        if self.policy.lookup_cache == LookupCache::None {
            return None;
        }
        let directory = self.object(&request.handle);
        let object = self.named(&directory, name)?;
        let shares = request.shares();
        let shared =
            |state: &mut ObjectState| state.held.opens.covers(shares) || may_be_untold(state, shares);
        if !self.with(&object, shared) {
            return Some(object);
        }
        if self.look_right(caller, &directory).is_none() {
            // Ask once whether this caller may look up names; the answer is remembered.
            let _ = self.ask_access(caller, &directory).await;
        }
        (self.look_right(caller, &directory) == Some(true)).then_some(object)
    }

    /// Is it known to which file the name leads?
    pub fn leads_to(&self, directory: &Arc<Object>, name: &Name) -> bool {
        self.policy.lookup_cache != LookupCache::None && self.named(directory, name).is_some()
    }

    /// The object that a name leads to, if that is remembered and the child's state still confirms it.
    fn named(&self, directory: &Arc<Object>, name: &Name) -> Option<Arc<Object>> {
        if let Some(Leads::To(child)) = self.leased_name(directory, name) {
            let object = self.object(&child);
            return (!self.with(&object, |state| state.is_suspect())).then_some(object);
        }
        let NameEntry { leads: Leads::To(child), epoch, racy, .. } = self.steady_entry(directory, name)?
        else {
            return None;
        };
        let object = self.object(&child);
        let holds = self.with(&object, |state| state.epoch() == epoch && !state.is_suspect());
        (holds && !racy).then_some(object)
    }

    /// An open that shares the one at the origin, or needs none there. It takes no call under a lease, and
    /// otherwise one GETATTR. None if it needs an OPEN.
    async fn open_shared(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        object: &Arc<Object>,
        arrived: u64,
    ) -> Result<Option<Opened>> {
        let shares = request.shares();
        // This keeps the origin's open from being closed while we ask.
        let usage = self.use_open(object, shares);
        let told = usage.is_some();
        let mut fresh = None;
        for attempt in 0..2 {
            let (may, shared) = self.with(object, |state| {
                let may = self.may(state, &caller.principal, needed(request.access));
                (may, told || may_be_untold(state, shares))
            });
            match may {
                _ if !shared => return Ok(None),
                Some(false) => return Ok(None),
                // An OPEN costs as much as this ACCESS, and may bring bytes.
                None if attempt > 0 || !told => return Ok(None),
                None => {
                    self.step_open(caller, request);
                    fresh = self.ask_right(caller, object, needed(request.access)).await?.attributes;
                }
                Some(true) => {}
            }
            let leased = self.with(object, |state| state.leased().is_some());
            if !leased && fresh.is_none() {
                fresh = match self.fresh(caller, object, arrived).await {
                    Ok(attributes) => Some(attributes),
                    // A name whose file is gone leads elsewhere by now.
                    Err(error) if request.name.is_some() && error.status == Status::Stale => return Ok(None),
                    Err(error) => return Err(error),
                };
            }
            let there = match &request.name {
                None => true,
                Some(name) => {
                    let directory = self.object(&request.handle);
                    self.look_right(caller, &directory) == Some(true)
                        && self.named(&directory, name).is_some_and(|now| Arc::ptr_eq(&now, object))
                }
            };
            if !there {
                return Ok(None);
            }
            // The reply may have taken the right away.
            let opened = self.with(object, |state| {
                let may = self.may(state, &caller.principal, needed(request.access)) == Some(true);
                let attributes = state.leased().copied().or(fresh)?;
                if told {
                    return (may && state.held.opens.covers(shares))
                        .then(|| self.opened_here(caller, request, object, state, attributes));
                }
                (may && may_be_untold(state, shares)).then(|| {
                    let opened = self.opened_here(caller, request, object, state, attributes);
                    state.held.opens.set_untold(opened.id);
                    opened
                })
            });
            if let Some(opened) = opened {
                self.counters.opens_shared.bump();
                self.use_guessed_file(caller, object);
                return Ok(Some(Opened { directory: self.leased_directory(request), ..opened }));
            }
        }
        Ok(None)
    }

    /// The attributes of the directory for an open that made nothing, if a lease vouches for them.
    fn leased_directory(&self, request: &OpenRequest) -> Wcc {
        let directory = request.name.is_some().then(|| self.object(&request.handle));
        Wcc::seen(directory.and_then(|directory| self.with(&directory, |state| state.leased().copied())))
    }

    /// The request to send for an open. Where the origin has no opens, an open by name costs a LOOKUP. If a
    /// lease vouches for the name, open by handle instead: then the directory is not needed.
    fn cheapest_below(&self, caller: &Caller, request: &OpenRequest) -> OpenRequest {
        let named = request.name.as_ref().filter(|_| request.create.is_none() && self.leases_alone());
        let handle = named.and_then(|name| {
            let directory = self.object(&request.handle);
            let may = self.look_right(caller, &directory) == Some(true);
            match self.leased_name(&directory, name).filter(|_| may)? {
                Leads::To(handle) => Some(handle),
                Leads::Nowhere => None,
            }
        });
        let by_name = || Core::open_below(request);
        handle.map_or_else(by_name, |handle| Core::open_handle_below(handle, request.shares(), Want::Any))
    }

    /// An open that sends an OPEN.
    async fn open_at_origin(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        turn: Option<OwnedMutexGuard<()>>,
        arrived: u64,
    ) -> Result<Opened> {
        self.step_open(caller, request);
        let below = self.cheapest_below(caller, request);
        let piggyback = self.piggyback_on_open(&below);
        let mut first = match self.open_with_piggyback(caller, below, turn, piggyback).await {
            Err(error) if error.status == Status::ShareDenied => {
                let Some(turn) = self.make_way(caller, request, arrived).await else { return Err(error) };
                self.ask_open(caller, Core::open_below(request), Some(turn)).await?
            }
            asked => asked?,
        };
        if let Some(brought) = first.brought.take() {
            brought.store_unasked().await;
        }
        let (object, told) = (first.object, first.opened);
        let mut usage = first.usage;
        let shares = request.shares();
        for _ in 0..CROSSINGS_MAX {
            if usage.is_some() {
                break;
            }
            // A close of ours was in flight, and may have ended this open too.
            let turn = object.turn.clone().lock_owned().await;
            let again = Core::open_handle_below(told.handle, shares, Want::Any);
            usage = self.ask_open(caller, again, Some(turn)).await?.usage;
        }
        if usage.is_none() {
            return Err(Status::Delay.into());
        }
        let opened = self.with(&object, |state| {
            let here = self.opened_here(caller, request, &object, state, told.attributes);
            state.fresh |= (told.created || empties(request)) && state.is_empty();
            Opened { directory: told.directory, created: told.created, granted: told.granted, ..here }
        });
        Ok(opened)
    }

    /// Registers a local open.
    pub fn opened_here(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        object: &Arc<Object>,
        state: &mut ObjectState,
        attributes: Attributes,
    ) -> Opened {
        let fresh = self.opens.next_id();
        let shares = request.shares();
        let (id, new) = state.held.opens.open(fresh, caller.holder, &request.owner, shares);
        state.held.opens.let_in(id, &caller.principal);
        if new {
            self.opens.insert(id, object.clone());
        }
        let max = self.right_age_max(state);
        let granted = state.rights.answer(&caller.principal, self.policy.wall(), max);
        let lease = self.hand_up(state, request.want);
        let directory = Wcc::default();
        Opened {
            id,
            handle: object.handle,
            attributes,
            lease,
            directory,
            created: false,
            granted,
            directory_lease: None,
            read: None,
        }
    }

    /// The lease to hand to the layer above: if one is held, the layer wants it, and it listens for
    /// recalls.
    pub fn hand_up(&self, state: &mut ObjectState, want: Want) -> Option<Lease> {
        let change = state.leased()?.change;
        let lease = state.held.lease.as_mut().filter(|lease| lease.is_free())?;
        if want == Want::None || !self.above.is_heard() {
            return None;
        }
        if !std::mem::replace(&mut lease.given, true) {
            self.origin.leases().give(lease.id, lease.above);
        }
        Some(Lease {
            id: lease.above,
            kind: lease.kind,
            until: lease.until(),
            change,
            space_limit: lease.space_limit,
        })
    }

    /// OPEN_DOWNGRADE. When it returns, the origin no longer denies other clients anything that no local
    /// open denies.
    pub async fn downgrade(&self, open: OpenId, access: Share, deny: Share) -> Result<()> {
        let object = self.opened_object(open)?;
        if !self.with(&object, |state| state.held.opens.downgrade(open, Shares { access, deny })) {
            return Err(Status::Inval.into());
        }
        self.stop_denying(&object).await;
        Ok(())
    }

    /// CLOSE. The origin's open is closed after a delay if no local open needs it by then, and at once if
    /// it denies other clients anything.
    pub async fn close(&self, caller: &Caller, open: OpenId) -> Result<()> {
        let object = self.opened_object(open)?;
        if self.with(&object, |state| state.held.locks.is_empty()) {
            self.end_open(&object, open).await;
            return Ok(());
        }
        // Run to completion: the locks must go even if the requester gives up.
        let core = self.share().ok_or(Status::ServerFault)?;
        let caller = caller.clone();
        vfs::run_to_completion(async move {
            // If a lease is being returned, its locks are sent to the origin first. A return that begins
            // later does not find the locks that end here.
            let locking = object.locking.lock().await;
            let told = core.with(&object, |state| state.held.locks.end_open(open));
            drop(locking);
            let usage = core.use_open_in_turn(&object, Shares::NONE).await;
            core.forget_open(&object, open);
            for owner in told {
                let Some(usage) = &usage else { break };
                core.counters.lock.bump();
                // If this fails, the lock ends with the origin's open.
                let _ = core.below.unlock(&caller, usage.id, &owner, (0, u64::MAX)).await;
            }
            drop(usage);
            core.stop_denying(&object).await;
        })
        .await;
        Ok(())
    }

    async fn end_open(&self, object: &Arc<Object>, open: OpenId) {
        self.forget_open(object, open);
        self.stop_denying(object).await;
    }

    fn forget_open(&self, object: &Arc<Object>, open: OpenId) {
        self.opens.remove(open);
        self.with(object, |state| {
            state.held.opens.close(open);
            state.fresh &= state.held.opens.is_local();
        });
    }

    /// The file that a local open is of.
    pub fn opened_object(&self, open: OpenId) -> Result<Arc<Object>> {
        self.opens.get(open).ok_or(Status::BadStateId.into())
    }

    async fn open_without_state(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        if let Some(opened) = self.open_by_right(caller, request).await {
            return Ok(opened);
        }
        let (handle, directory, created, told) = self.find_or_make(caller, request).await?;
        let object = self.object(&handle);
        let bits = needed(request.access);
        let mut attributes = told;
        if !created && self.with(&object, |state| self.may(state, &caller.principal, bits)) != Some(true) {
            let accessed = self.ask_access(caller, &object).await?;
            attributes = accessed.attributes.or(attributes);
            if !accessed.granted.contains(bits) {
                return Err(Status::Access.into());
            }
        }
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.getattr(caller, &handle).await?,
        };
        let opened = self.with(&object, |state| {
            state.fresh |= (created || empties(request)) && state.is_empty();
            self.opened_here(caller, request, &object, state, attributes)
        });
        Ok(Opened { directory, created, ..opened })
    }

    /// A remembered name leaves two questions: whether it still leads there, and whether this caller may
    /// open the file. One ACCESS answers both, because attributes come with it. None if they did not settle
    /// it.
    async fn open_by_right(&self, caller: &Caller, request: &OpenRequest) -> Option<Opened> {
        let name = request.name.as_ref().filter(|_| request.create.is_none())?;
        let directory = self.object(&request.handle);
        let uses_names = self.policy.lookup_cache != LookupCache::None;
        if !uses_names || self.look_right(caller, &directory) != Some(true) {
            return None;
        }
        let object = self.named(&directory, name)?;
        let bits = needed(request.access);
        if self.with(&object, |state| self.may(state, &caller.principal, bits)).is_some() {
            return None;
        }
        let accessed = self.ask_access(caller, &object).await.ok()?;
        let there = self.named(&directory, name).is_some_and(|now| Arc::ptr_eq(&now, &object));
        let attributes = accessed.attributes.filter(|_| there && accessed.granted.contains(bits))?;
        self.counters.names.hit();
        Some(self.with(&object, |state| self.opened_here(caller, request, &object, state, attributes)))
    }

    /// Finds or makes the file to open, with the calls of v3.
    async fn find_or_make(
        &self,
        caller: &Caller,
        request: &OpenRequest,
    ) -> Result<(Handle, Wcc, bool, Option<Attributes>)> {
        let Some(name) = &request.name else { return Ok((request.handle, Wcc::default(), false, None)) };
        let directory = &request.handle;
        let Some((how, set)) = &request.create else {
            let found = self.lookup(caller, directory, name).await?;
            return Ok((found.node.handle, Wcc::default(), false, found.node.attributes));
        };
        // CREATE says whether the file existed before only if it must not exist.
        let first = if *how == CreateHow::Unchecked { CreateHow::Guarded } else { *how };
        let make = self.below.create(caller, directory, name, first, set);
        match self.make(directory, name, make).await {
            Ok(made) => Ok((made.node.handle, made.directory, true, made.node.attributes)),
            Err(error) if error.status == Status::Exist && *how == CreateHow::Unchecked => {
                let found = self.lookup(caller, directory, name).await?;
                let handle = found.node.handle;
                let mut attributes = found.node.attributes;
                if let Some(size) = set.size {
                    let cut = SetAttributes { size: Some(size), ..SetAttributes::default() };
                    attributes = self.setattr(caller, &handle, &cut, None).await?.after;
                }
                Ok((handle, Wcc::default(), false, attributes))
            }
            Err(error) => Err(error),
        }
    }
}

/// May the name be looked up once more if its file is gone?
fn may_look_again(request: &OpenRequest) -> bool {
    request.name.is_some() && request.create.is_none()
}

/// May an open do without an OPEN of its own? Not if it may change something.
fn may_share(request: &OpenRequest) -> bool {
    let changes = match &request.create {
        None => false,
        Some((CreateHow::Unchecked, set)) => set.size.is_some(),
        Some(_) => true,
    };
    !changes
}

/// Does the open truncate the file to nothing?
fn empties(request: &OpenRequest) -> bool {
    request.create.as_ref().is_some_and(|(_, set)| set.size == Some(0))
}
