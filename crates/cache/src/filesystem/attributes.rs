//! GETATTR and ACCESS.

use std::sync::Arc;

use vfs::{AccessMask, Accessed, Attributes, Caller, Freshness, Handle, Result};

use crate::core::Core;
use crate::object::{Before, Opening};
use crate::table::{Found, Object};
use crate::trust::Sent;
use crate::walk::Action;

/// An object, as a caller finds it without a call.
pub enum Known {
    /// It is a file at rest, and these attributes are believed.
    AtRest(Attributes),
    /// It is awake.
    Awake(Arc<Object>),
}

impl Core {
    /// GETATTR: from memory within the timeouts or under a lease, else one GETATTR.
    pub async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let arrived = self.policy.event();
        let object = match self.known_or_awake(caller, handle) {
            Known::AtRest(attributes) => {
                self.counters.attributes.hit();
                return Ok(attributes);
            }
            Known::Awake(object) => object,
        };
        let enters = self.enters(caller, &object);
        let caller = &self.demanding(caller, &object);
        let open = self.policy.is_open(caller);
        if let Some(attributes) = self.with(&object, |state| state.believed(open).copied()) {
            self.counters.attributes.hit();
            if enters {
                self.use_guess(caller, &object, || Action::Entered);
            }
            return Ok(attributes);
        }
        self.counters.attributes.miss();
        if enters && let Some(attributes) = Box::pin(self.enter(caller, &object, arrived)).await {
            return Ok(attributes);
        }
        self.ask_attributes(caller, &object, arrived).await
    }

    /// The attributes of a file at rest, if they are believed for this caller: the file stays at rest.
    /// Otherwise the object, which is then awake.
    pub fn known_or_awake(&self, caller: &Caller, handle: &Handle) -> Known {
        match self.find(handle) {
            Found::Awake(object) => return Known::Awake(object),
            Found::Resting(resting) => {
                let open = self.policy.is_open(caller);
                let known = if open { resting.leased() } else { resting.current_within(None) };
                if let Some(attributes) = known.filter(|known| !known.is_dir()) {
                    return Known::AtRest(*attributes);
                }
            }
            Found::Nothing => {}
        }
        Known::Awake(self.object(handle))
    }

    /// ACCESS: the remembered answer, confirmed by one GETATTR at an open; else one ACCESS.
    pub async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed> {
        let arrived = self.policy.event();
        let object = self.object(handle);
        let caller = &self.demanding(caller, &object);
        if self.remembered_access(caller, &object).is_some() {
            let attributes = self.fresh(caller, &object, arrived).await?;
            if let Some(granted) = self.remembered_access(caller, &object) {
                self.counters.access.hit();
                return Ok(Accessed { granted: granted & asked, attributes: Some(attributes) });
            }
        }
        self.counters.access.miss();
        let accessed = self.ask_access(caller, &object).await?;
        Ok(Accessed { granted: accessed.granted & asked, attributes: accessed.attributes })
    }

    /// The caller with its freshness resolved for this object: an open or a `stat`. Directories may count
    /// otherwise than files.
    pub fn demanding(&self, caller: &Caller, object: &Arc<Object>) -> Caller {
        let counts = self.with(object, |state| {
            let is_dir = state.attributes().is_some_and(Attributes::is_dir);
            is_dir
                && (caller.freshness == Freshness::Directory || state.proves_absence(&self.policy).is_none())
        });
        match caller.freshness {
            Freshness::Open | Freshness::Timeout => caller.clone(),
            Freshness::Directory | Freshness::Recent if counts => {
                caller.clone().with_freshness(Freshness::Open)
            }
            Freshness::Directory | Freshness::Recent => caller.clone().with_freshness(Freshness::Timeout),
        }
    }

    fn remembered_access(&self, caller: &Caller, object: &Arc<Object>) -> Option<AccessMask> {
        self.with(object, |state| {
            let max = self.right_age_max(state);
            let usable = state.attributes().is_some() && !state.is_suspect();
            usable.then(|| state.rights.answer(&caller.principal, self.policy.wall(), max)).flatten()
        })
    }

    /// Asks the origin for all rights at once, so that the answer serves later questions.
    pub async fn ask_access(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        self.know_limits(caller, &object.handle).await;
        if self.wants_directory(object) {
            return self.ask_delegated(caller, object).await;
        }
        self.ask_rights(caller, object).await
    }

    /// The same, without asking for a lease.
    pub async fn ask_rights(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.access_calls.bump();
        let accessed = match self.below.access(caller, &object.handle, AccessMask::all()).await {
            Ok(accessed) => accessed,
            Err(error) => {
                self.note_error(object, &error, &sent);
                return Err(error);
            }
        };
        self.note_access(caller, object, &accessed, (&sent, &before));
        Ok(accessed)
    }

    /// Asks whether the caller has a right. Over an origin with leases alone, ACCESS checks rights one by
    /// one, so only this one is requested for a file. A refusal is not remembered then.
    pub async fn ask_right(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        right: AccessMask,
    ) -> Result<Accessed> {
        self.know_limits(caller, &object.handle).await;
        let is_dir = self.with(object, |state| state.attributes().is_none_or(Attributes::is_dir));
        if is_dir || !self.leases_alone() {
            return self.ask_access(caller, object).await;
        }
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.access_calls.bump();
        let accessed = self.below.access(caller, &object.handle, right).await;
        match &accessed {
            Ok(told) if told.granted.contains(right) => {
                self.remember_success(caller, object, right, &sent, &before);
            }
            Ok(_) => {}
            Err(error) => self.note_error(object, error, &sent),
        }
        accessed
    }

    /// Records the answer to an ACCESS.
    pub fn note_access(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        accessed: &Accessed,
        (sent, before): (&Sent, &Before),
    ) {
        let seen = self.observe(object, accessed.attributes.as_ref(), sent, Opening::Yes);
        self.with(object, |state| {
            let clear = seen.is_some() || !state.is_suspect();
            if clear && state.is_of(seen, before) && state.rights.generation() == before.rights_generation {
                let racy = state.is_racy(&self.policy, sent);
                state.rights.remember_answer(&caller.principal, accessed.granted, racy, sent.wall);
                state.index.changed = true;
            }
        });
    }
}
