//! LOOKUP.

use std::sync::Arc;

use vfs::{
    AccessMask, Attributes, BringsDirectoryLease, Caller, Error, Freshness, Handle, Looked, Name, Node,
    Result, Status, Want,
};

use crate::core::Core;
use crate::listing::KnownListing;
use crate::names::{Leads, NameEntry, name_key, put_name};
use crate::object::{Before, ObjectState, Opening, Seen};
use crate::options::LookupCache;
use crate::store::{Batch, Table};
use crate::table::{Found, Object};
use crate::trust::Sent;
use crate::walk::Action;

impl Core {
    /// LOOKUP: a remembered name, or one LOOKUP. At an open, one GETATTR confirms the name: of the child,
    /// or of the directory for a negative entry.
    pub async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Looked> {
        let arrived = self.policy.event();
        let directory = self.object(directory);
        self.lease_names(caller, &directory).await;
        if let Some(found) = self.remembered_lookup(caller, &directory, name, arrived).await? {
            self.counters.names.hit();
            if !self.was_confirmed(&found, arrived) {
                self.use_guess(caller, &directory, || Action::Looked(name.clone()));
            }
            return found;
        }
        self.step(caller, &directory, || Action::Looked(name.clone()));
        let listed = self.wait_for_guess(&directory.handle).await
            || self.list_names(caller, &directory).await
            || self.learn_new(caller, &directory).await
            || self.learn_missing(caller, &directory).await;
        if listed && let Some(found) = self.remembered_lookup(caller, &directory, name, arrived).await? {
            self.counters.names.miss();
            return found;
        }
        let mut grant = None;
        if self.policy.lookup_cache != LookupCache::None && !self.policy.is_open(caller) {
            grant = self.memory.lookups().begin((directory.handle, name.clone())).await;
            if grant.is_none()
                && let Some(found) = self.remembered_lookup(caller, &directory, name, arrived).await?
            {
                self.counters.names.hit();
                return found;
            }
        }
        self.counters.names.miss();
        let found = self.ask_lookup(caller, &directory, name).await;
        drop(grant);
        found
    }

    /// LOOKUP of `..`: it is rare, and always goes to the origin.
    pub async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked> {
        let object = self.object(directory);
        let sent = self.policy.sending();
        self.counters.lookup.bump();
        let found = self.below.parent(caller, directory).await;
        match &found {
            Ok(looked) => {
                self.observe(&object, looked.directory.as_ref(), &sent, Opening::No);
                let parent = self.object(&looked.node.handle);
                self.observe(&parent, looked.node.attributes.as_ref(), &sent, Opening::Yes);
            }
            Err(error) => self.note_error(&object, error, &sent),
        }
        found
    }

    /// The answer to a LOOKUP from what is remembered. The outer error comes from a revalidation, the inner
    /// one is `NoEnt`.
    async fn remembered_lookup(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
        arrived: u64,
    ) -> Result<Option<Result<Looked>>> {
        if self.policy.lookup_cache == LookupCache::None || !self.may_look(caller, directory) {
            return Ok(None);
        }
        if let Some(leads) = self.leased_name(directory, name)
            && let Some(found) = self.leased_lookup(caller, directory, name, leads, arrived).await?
        {
            return Ok(Some(found));
        }
        let mut entry = self.steady_entry(directory, name);
        let mut requester = self.requester(caller, entry.as_ref());
        if let Some(NameEntry { leads: Leads::To(child), .. }) = &entry
            && self.is_served_by_listings(caller)
            && self.needs_confirmation(&requester, directory, child)
        {
            // After a restart that is so for every name. One listing shows all of them, and the directory's
            // lease comes with it.
            self.step(caller, directory, || Action::Looked(name.clone()));
            if self.wait_for_guess(&directory.handle).await {
                if let Some(leads) = self.leased_name(directory, name)
                    && let Some(found) = self.leased_lookup(caller, directory, name, leads, arrived).await?
                {
                    return Ok(Some(found));
                }
                entry = self.steady_entry(directory, name);
                requester = self.requester(caller, entry.as_ref());
            }
        }
        let (caller, open) = (&requester, self.policy.is_open(&requester));
        let found = match entry {
            None => return self.absent_from_listing(caller, directory, name, arrived).await,
            Some(entry) if entry.racy && open => return Ok(None),
            Some(NameEntry { leads: Leads::Nowhere, epoch, .. }) => {
                self.confirm_absence(caller, directory, epoch, arrived).await?
            }
            Some(NameEntry { leads: Leads::To(child), epoch, .. }) => {
                self.confirm_child(caller, directory, &child, epoch, arrived).await?
            }
        };
        // A change of the name by another client of ours may have taken effect before this request came,
        // with its reply later.
        let steady = self.steady_entry(directory, name) == entry;
        Ok(found.filter(|_| steady))
    }

    /// As Linux does, a client with state may look a file up by name and then open it by handle. Attribute
    /// timeouts must not lead it to a file that has been replaced, so such a lookup counts as an open. If the
    /// client says that it does not open by handle ([`Freshness::Recent`]), attributes of the last second
    /// are enough, unless the name is racy or the file is young. For directories the timeouts are.
    fn requester(&self, caller: &Caller, entry: Option<&NameEntry>) -> Caller {
        let suffices = |child: &Handle, racy: bool| {
            self.with(&self.object(child), |state| {
                let is_file = state.attributes().is_some_and(|known| !known.is_dir());
                let recent = caller.freshness == Freshness::Recent && !racy;
                !is_file || (recent && state.is_settled(&self.policy))
            })
        };
        match entry {
            Some(NameEntry { leads: Leads::To(child), racy, .. })
                if caller.holder.is_some() && !suffices(child, *racy) =>
            {
                caller.clone().with_freshness(Freshness::Open)
            }
            _ => caller.clone(),
        }
    }

    /// Did an answer from what is remembered need a call all the same? Then a guess has saved nothing.
    fn was_confirmed(&self, found: &Result<Looked>, arrived: u64) -> bool {
        let Ok(Looked { node, .. }) = found else { return false };
        match self.memory.table().find(&node.handle, None) {
            Found::Awake(object) => {
                self.with(&object, |state| state.leased().is_none() && state.is_known_since(arrived))
            }
            Found::Resting(_) | Found::Nothing => false,
        }
    }

    /// The entry in the index for a name, unless a change of ours to the name is in flight.
    pub fn steady_entry(&self, directory: &Arc<Object>, name: &Name) -> Option<NameEntry> {
        let busy = self.with(directory, |state| state.is_busy_name(name));
        self.name_entry(&directory.handle, name).filter(|_| !busy)
    }

    /// If another client has changed the directory since the child was last shown, attribute timeouts of the
    /// child do not prove its name.
    fn is_doubtful(&self, directory: &Arc<Object>, child: &Arc<Object>) -> bool {
        let doubted = self.with(directory, |state| state.names_doubted_or_forgotten());
        self.with(child, |state| state.leased().is_none() && !state.is_known_since(doubted))
    }

    /// Do the attributes of a listing, or the lease that comes with it, save this caller the confirmation of
    /// a name?
    fn is_served_by_listings(&self, caller: &Caller) -> bool {
        let is_stat = caller.holder.is_none() || caller.freshness == Freshness::Recent;
        !self.policy.is_open(caller) && (is_stat || self.link.delegates())
    }

    /// Must a call confirm that a name leads to this child?
    fn needs_confirmation(&self, requester: &Caller, directory: &Arc<Object>, child: &Handle) -> bool {
        let child = self.object(child);
        let unleased = self.with(&child, |state| state.leased().is_none());
        unleased && (self.policy.is_open(requester) || self.is_doubtful(directory, &child))
    }

    async fn confirm_child(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        child: &Handle,
        epoch: u64,
        arrived: u64,
    ) -> Result<Option<Result<Looked>>> {
        let object = self.object(child);
        let holds = || self.with(&object, |state| state.epoch() == epoch && !state.is_suspect());
        if !holds() {
            return Ok(None);
        }
        if self.with(&object, |state| self.is_before_a_lock(state)) {
            // Send a LOOKUP: a server that is a cache itself answers it under stricter rules than a
            // GETATTR.
            return Ok(None);
        }
        let requester = if self.is_doubtful(directory, &object) {
            caller.clone().with_freshness(Freshness::Open)
        } else {
            caller.clone()
        };
        let attributes = match self.fresh(&requester, &object, arrived).await {
            Ok(attributes) => attributes,
            Err(error) if matches!(error.status, Status::Stale | Status::BadHandle) => return Ok(None),
            // The error may have attributes of the child, and the error of a LOOKUP has those of the
            // directory.
            Err(error) => return Err(error.status.into()),
        };
        let node = Node { handle: *child, attributes: Some(attributes) };
        Ok(holds().then_some(Ok(Looked { node, directory: None, directory_lease: None })))
    }

    /// Was the file last shown before a lock was granted? The last holder of the lock may have removed the
    /// name.
    fn is_before_a_lock(&self, child: &ObjectState) -> bool {
        let locked = self.policy.news.latest_lock();
        let applies = locked > 0 && self.policy.negative_max().is_some();
        applies
            && child.leased().is_none()
            && !child.is_known_since(locked)
            && !child.attributes().is_some_and(Attributes::is_dir)
    }

    async fn confirm_absence(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        epoch: u64,
        arrived: u64,
    ) -> Result<Option<Result<Looked>>> {
        let holds = || self.with(directory, |state| state.epoch() == epoch && !state.is_suspect());
        if self.policy.lookup_cache != LookupCache::All || !holds() {
            return Ok(None);
        }
        let open = self.policy.is_open(caller);
        let proven = self.with(directory, |state| {
            if open { state.believed(true).copied() } else { state.proves_absence(&self.policy).copied() }
        });
        let attributes = match proven {
            Some(attributes) => attributes,
            None => self.revalidate(caller, directory, arrived).await?,
        };
        let absent = || Err(Error::from(Status::NoEnt).with(Some(attributes)));
        Ok(holds().then(absent))
    }

    /// A name that the complete listing lacks leads nowhere.
    async fn absent_from_listing(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
        arrived: u64,
    ) -> Result<Option<Result<Looked>>> {
        let open = self.policy.is_open(caller);
        let unread = |listing: &KnownListing| listing.complete.is_none().then_some(listing.id);
        if let Some(id) = self.with(directory, |state| state.names.listing.as_ref().and_then(unread)) {
            self.load_listing(directory, id);
        }
        let absent = self.with(directory, |state| {
            let leased = state.leased().is_some();
            let applies =
                |listing: &&KnownListing| !(open && listing.racy) && (leased || listing.guessed.is_none());
            let listing = state.names.listing.as_ref().filter(applies)?;
            // A change of ours in flight may have taken effect already.
            let absent = listing.lacks(name) && !state.is_busy_name(name);
            absent.then(|| (state.epoch(), listing.id))
        });
        let Some((epoch, id)) = absent else { return Ok(None) };
        let found = self.confirm_absence(caller, directory, epoch, arrived).await?;
        let holds = self
            .with(directory, |state| state.names.listing.as_ref().is_some_and(|listing| listing.id == id));
        Ok(found.filter(|_| holds))
    }

    fn may_look(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        self.look_right(caller, directory) == Some(true)
    }

    /// May the caller look names up, as far as is remembered?
    pub fn look_right(&self, caller: &Caller, directory: &Arc<Object>) -> Option<bool> {
        self.with(directory, |state| self.may(state, &caller.principal, AccessMask::LOOKUP))
    }

    /// Sends a LOOKUP, and remembers the answer.
    pub async fn ask_lookup(&self, caller: &Caller, directory: &Arc<Object>, name: &Name) -> Result<Looked> {
        self.know_limits(caller, &directory.handle).await;
        if !self.wants_directory_lease(directory) {
            return self.run_lookup(caller, directory, name, false).await;
        }
        let (caller, directory, name) = (caller.clone(), directory.clone(), name.clone());
        self.with_delegation(
            move |core| async move { core.run_lookup(&caller, &directory, &name, true).await },
        )
        .await
    }

    async fn run_lookup(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
        delegated: bool,
    ) -> Result<Looked> {
        let before = self.with(directory, |state| Before::of(state));
        // The directory's attributes in the reply confirm negative entries. If a client has opened a file
        // here, they must be from after that open.
        let mut caller = caller.clone();
        if self.with(directory, |state| state.is_to_be_confirmed()) {
            caller.freshness = Freshness::Open;
        }
        let caller = &caller;
        let sent = self.policy.sending();
        self.counters.lookup.bump();
        let want = if delegated { Want::Read } else { Want::None };
        let mut found = self.below.lookup(caller, &directory.handle, name, want).await;
        let lease = Looked::detach(&mut found);
        self.link.on_round_trip(sent.at.elapsed());
        match &found {
            Ok(looked) => {
                let seen = self.observe(directory, looked.directory.as_ref(), &sent, Opening::No);
                let within = self.seen_within(directory, seen, &sent, &before);
                self.remember_success(caller, directory, AccessMask::LOOKUP, &sent, &before);
                let child = self.object(&looked.node.handle);
                let learnt = self.learn_child(&child, looked.node.attributes.as_ref(), &sent, Opening::Yes);
                let entry = self.within(&child, learnt, within);
                self.remember_name(directory, name, entry, before.names_generation);
            }
            Err(error) => self.note_not_found(caller, directory, name, error, (&sent, &before)),
        }
        self.note_delegation(directory, lease, &sent);
        found
    }

    /// Records that a name was not found.
    pub fn note_not_found(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
        error: &Error,
        (sent, before): (&Sent, &Before),
    ) {
        if error.status != Status::NoEnt {
            return self.note_error(directory, error, sent);
        }
        let seen = self.observe(directory, error.attributes.as_deref(), sent, Opening::No);
        // NOENT goes only to a caller that may look names up.
        self.remember_success(caller, directory, AccessMask::LOOKUP, sent, before);
        let entry = self.learn_absence(directory, seen, sent, before);
        self.remember_name(directory, name, entry, before.names_generation);
    }

    /// Records the attributes of a child to which a name was just seen to lead, and returns the entry for
    /// the name. None if they are not the child's known state: the name then belongs to a state that is not
    /// known.
    pub fn learn_child(
        &self,
        child: &Arc<Object>,
        attributes: Option<&Attributes>,
        sent: &Sent,
        opening: Opening,
    ) -> Option<NameEntry> {
        let attributes = attributes?;
        self.with(child, |state| {
            let seen = state.observe(&self.policy, attributes, sent, opening);
            let racy = state.is_racy(&self.policy, sent);
            let leads = Leads::To(child.handle);
            matches!(seen, Seen::Known { .. }).then(|| NameEntry {
                leads,
                epoch: state.epoch(),
                racy,
                within: None,
            })
        })
    }

    fn learn_absence(
        &self,
        directory: &Arc<Object>,
        seen: Option<Seen>,
        sent: &Sent,
        before: &Before,
    ) -> Option<NameEntry> {
        self.with(directory, |state| {
            let belongs = state.is_of(seen, before) && !state.is_suspect();
            let racy = state.is_racy(&self.policy, sent);
            let (leads, epoch) = (Leads::Nowhere, state.epoch());
            state.names.missed = Some(epoch);
            belongs.then_some(NameEntry { leads, epoch, racy, within: None })
        })
    }

    /// Writes the entry of a name to the index, unless we have changed the name meanwhile. Without an
    /// entry, removes the one in the index.
    pub fn remember_name(
        &self,
        directory: &Arc<Object>,
        name: &Name,
        entry: Option<NameEntry>,
        generation: u64,
    ) {
        let mut batch = Batch::default();
        put_name(&mut batch, &directory.handle, name, entry);
        let _names = directory.names.lock();
        if self.with(directory, |state| !state.touched_since(generation, name)) {
            self.disk.index().commit(batch);
            self.see_child(&directory.handle, name, entry.as_ref());
        }
    }

    /// Records a right that a successful call proves. It is proved for the state that the call saw, and not
    /// for a later one.
    pub fn remember_success(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        bit: AccessMask,
        sent: &Sent,
        before: &Before,
    ) {
        self.with(object, |state| {
            let same = state.epoch() == before.epoch || state.is_shown_by(sent);
            let known = state.attributes().is_some()
                && same
                && !state.is_suspect()
                && state.rights.generation() == before.rights_generation;
            if known && self.may(state, &caller.principal, bit) != Some(true) {
                state.rights.remember_success(&caller.principal, bit, sent.wall);
                state.index.changed = true;
            }
        });
    }

    /// The entry in the index for a name.
    pub fn name_entry(&self, directory: &Handle, name: &Name) -> Option<NameEntry> {
        NameEntry::decode(&self.disk.index().get(Table::Names, &name_key(directory, name))?)
    }
}
