//! Directories under a lease: names are answered without a call, those that are absent too.
//!
//! A lease on a directory vouches for its names and its attributes, not for what the names lead to: the attributes of a
//! child are as fresh as its own lease or the attribute timeouts have them. It is asked for along with the ACCESS that a
//! directory's first use costs anyway, and along with a LOOKUP, OPEN or READDIR in it, less and less often where it does not
//! last ([`ObjectState::delegation_backoff`](crate::object::State::wish)): not every client sends ACCESS. Who may look a name up is the origin's to
//! say, of each credential, as ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Delegated, DirectoryLease, Error, Handle, Lease, LeaseKind,
    Looked, Name, Node, OpenRequest, ReadDir, Result, Status, Verifier, Want,
};

use super::names::Before;
use crate::core::Core;
use crate::lease::{Early, GrantInFlight};
use crate::names::{Leads, NameEntry};
use crate::object::{ObjectState, Opening, Seen};
use crate::options::LookupCache;
use crate::table::Object;
use crate::trust::Sent;

/// Of a directory that has just been made, more is not worth a look.
const NEW_BYTES: u32 = 8 << 10;
/// How long a refusal keeps us from asking for a lease on a directory with each LOOKUP in it.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// All names of a directory are asked for if they fit into about so many bytes.
const LISTED_BYTES: u32 = 32 << 10;
/// Directories that call themselves larger have more names than that, on most file systems.
const LISTED_SIZE_MAX: u32 = 64 << 10;

impl Core {
    /// What a name leads to, if a lease on its directory vouches for what is remembered of it.
    pub fn leased_name(&self, directory: &Arc<Object>, name: &Name) -> Option<Leads> {
        let generation = self.with(directory, |state| state.names_epoch().map(|_| state.names_generation))?;
        let entry = self.name_entry(&directory.handle, name);
        self.with(directory, |state| {
            // No change of it by us has ended since the index was asked, or is under way.
            let steady = !state.touched_since(generation, name) && !state.is_busy_name(name);
            let epoch = state.names_epoch().filter(|_| steady)?;
            match entry.filter(|entry| entry.holds_within(epoch)) {
                Some(entry) => Some(entry.leads),
                None => state.lacks(name).then_some(Leads::Nowhere),
            }
        })
    }

    /// A LOOKUP by what a lease vouches for. None if it does not any more.
    pub(super) async fn leased_lookup(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
        leads: Leads,
        arrived: u64,
    ) -> Result<Option<Result<Looked>>> {
        let attributes = self.with(directory, |state| state.leased().copied());
        let Leads::To(handle) = leads else {
            let absent = || Err(Error::from(Status::NoEnt).with(attributes));
            return Ok((self.policy.lookup_cache == LookupCache::All).then(absent));
        };
        let child = match self.fresh(caller, &self.object(&handle), arrived).await {
            Ok(attributes) => attributes,
            Err(error) if matches!(error.status, Status::Stale | Status::BadHandle) => return Ok(None),
            Err(error) => return Err(error.status.into()),
        };
        let still = self.leased_name(directory, name) == Some(leads);
        let node = Node { handle, attributes: Some(child) };
        Ok(still.then_some(Ok(Looked { node, directory: attributes, directory_lease: None })))
    }

    /// An open of a name that a lease knows to be absent, for one who may know that.
    pub async fn leased_absence(&self, caller: &Caller, request: &OpenRequest) -> Option<Error> {
        let name = request.name.as_ref().filter(|_| request.create.is_none())?;
        let directory = self.object(&request.handle);
        let absent = |core: &Core| core.leased_name(&directory, name) == Some(Leads::Nowhere);
        if self.policy.lookup_cache != LookupCache::All || !absent(self) {
            return None;
        }
        if self.look_right(caller, &directory).is_none() {
            // Asked once; the answer is remembered.
            let _ = self.ask_access(caller, &directory).await;
        }
        let may = self.look_right(caller, &directory) == Some(true);
        let attributes = self.with(&directory, |state| state.leased().copied());
        (may && absent(self)).then(|| Error::from(Status::NoEnt).with(attributes))
    }

    /// Does a name lead anywhere, as far as is remembered? A hint.
    pub fn is_remembered(&self, directory: &Handle, name: &Name) -> bool {
        if let Some(entry) = self.name_entry(directory, name) {
            return entry.leads != Leads::Nowhere;
        }
        let directory = self.object(directory);
        self.with(&directory, |state| {
            let listing = state.listing.as_ref();
            listing
                .and_then(|listing| listing.complete.as_ref())
                .is_some_and(|complete| complete.contains(name))
        })
    }

    /// The epoch of a directory in which a name was seen, if every later change of the directory would show.
    pub fn seen_within(
        &self,
        directory: &Arc<Object>,
        seen: Option<Seen>,
        sent: &Sent,
        before: &Before,
    ) -> Option<u64> {
        self.with(directory, |state| {
            let known = state.attributes().is_some() && !state.is_suspect();
            let belongs = known && seen.map_or(state.epoch() == before.epoch, |seen| seen == Seen::Known);
            (belongs && !state.is_racy(&self.policy, sent)).then(|| state.epoch())
        })
    }

    /// An entry with the epoch of its directory. Where that is known, the state of the child does not matter.
    pub fn within(
        &self,
        child: &Arc<Object>,
        entry: Option<NameEntry>,
        within: Option<u64>,
    ) -> Option<NameEntry> {
        let unknown = || {
            // Of no state of the child.
            let (leads, epoch) = (Leads::To(child.handle), self.policy.epoch());
            NameEntry { leads, epoch, racy: true, within }
        };
        match entry {
            Some(entry) => Some(NameEntry { within, ..entry }),
            None => within.map(|_| unknown()),
        }
    }

    /// Is a lease on this directory worth asking for?
    pub fn wants_directory(&self, object: &Arc<Object>) -> bool {
        self.has_state() == Some(true)
            && self.with(object, |state| {
                state.lease.is_none() && state.attributes().is_some_and(Attributes::is_dir)
            })
    }

    /// A name is about to be looked up in a directory: where leases are all that there is, one on the directory is asked for
    /// first, since every name in it that is looked up after this one costs nothing then.
    pub async fn lease_names(&self, caller: &Caller, directory: &Arc<Object>) {
        self.know_limits(caller, &directory.handle).await;
        let refused = |state: &ObjectState| state.undelegated.is_some_and(|at| at.elapsed() < REFUSED_FOR);
        if self.leases_alone() && self.wants_directory(directory) && !self.with(directory, |it| refused(it)) {
            // What is wrong with it, the LOOKUP says.
            let _ = self.ask_delegated(caller, directory).await;
        }
    }

    /// Asks for all names in a directory under such a lease, where they fit into one answer, because one is looked for that is
    /// not known. False if that was done before, or is of no use. Later changes by others would end the lease.
    pub async fn list_names(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let wanted = self.leases_alone()
            && self.with(directory, |state| {
                let epoch = state.names_epoch().filter(|_| !state.is_busy() && state.listing.is_none());
                let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
                let wanted = epoch.filter(|_| may).filter(|epoch| state.listed != Some(*epoch));
                state.listed = wanted.or(state.listed);
                wanted.is_some()
            });
        let part = ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: LISTED_BYTES,
            plus: true,
            want_directory_lease: false,
        };
        wanted && self.ask_readdir(caller, directory, part).await.is_ok()
    }

    /// A directory that was made here is about to be filled from here. When a second name is sought in it, a look at all names,
    /// and a lease on it if there is none yet, cost two calls, and names to come none. True if all are known now that were not
    /// before. An origin of which it is not known whether it gives leases is tried once.
    pub(super) async fn learn_new(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let due = self.has_state() == Some(true)
            && !self.leases_alone()
            && self.with(directory, |state| {
                let is_dir = state.attributes().is_some_and(Attributes::is_dir);
                let again = is_dir && std::mem::replace(&mut state.sought, true);
                again && std::mem::replace(&mut state.fresh, false)
            });
        if !due {
            return false;
        }
        let is_leased = || self.with(directory, |state| state.leased().is_some());
        let gives =
            || self.delegates.load(Ordering::Relaxed) || !self.tried_delegation.swap(true, Ordering::Relaxed);
        let (before, sent) = (self.with(directory, |state| Before::of(state)), self.policy.sending());
        let mut granted = AccessMask::empty();
        if !is_leased() {
            if !self.wants_directory(directory) || !gives() {
                return false;
            }
            let Ok(accessed) = self.ask_delegated(caller, directory).await else { return false };
            granted = accessed.granted;
        }
        let all = ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: NEW_BYTES,
            plus: false,
            want_directory_lease: false,
        };
        if !is_leased() || self.ask_readdir(caller, directory, all).await.is_err() {
            return false;
        }
        if granted.contains(AccessMask::LOOKUP) {
            // To the READDIR, which counts as an open, the answer may have been too young; the lease came with it.
            self.remember_success(caller, directory, AccessMask::LOOKUP, &sent, &before);
        }
        true
    }

    /// A name is sought under a lease on its directory, in which one was sought in vain before. Whoever makes files there, or
    /// looks for one along a path, will seek more: a look at all names costs the one call that this name would, and those
    /// to come none. It is tried once in a state of the directory, and of those alone that fit into one answer, so far as
    /// that can be told. True if all names may be known now.
    pub(super) async fn learn_missing(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let due = self.has_state() == Some(true)
            && !self.leases_alone()
            && self.with(directory, |state| {
                let small = state.attributes().is_some_and(|known| known.size <= u64::from(LISTED_SIZE_MAX));
                let may = self.may(state, &caller.principal, AccessMask::READ) != Some(false);
                let unlisted = state.listing.as_ref().is_none_or(|listing| listing.racy);
                let epoch = state.names_epoch().filter(|_| !state.is_busy() && unlisted);
                let due = epoch.filter(|epoch| state.missed == Some(*epoch) && state.listed != Some(*epoch));
                let due = due.filter(|_| small && may);
                state.listed = due.or(state.listed);
                due.is_some()
            });
        let all = ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: LISTED_BYTES,
            plus: true,
            want_directory_lease: false,
        };
        due && self.ask_readdir(caller, directory, all).await.is_ok()
    }

    /// Names in this directory are about to be asked for. Should a lease on it come along?
    pub fn wants_directory_lease(&self, object: &Arc<Object>) -> bool {
        !self.leases_alone()
            && self.wants_directory(object)
            && self.with(object, |state| state.delegation_backoff.question(Instant::now()))
    }

    /// Does what may bring a lease on a directory along to its end, whoever gives up waiting: none must be left that
    /// nobody knows of.
    pub async fn with_delegation<T, W, F>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Core>) -> F + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let core = self.share().ok_or(Status::ServerFault)?;
        vfs::run_to_completion(async move {
            let grant = core.leases.begin_grant();
            let result = work(core.clone()).await;
            core.landed(&grant);
            result
        })
        .await
    }

    /// What may have brought a lease was answered, and what it brought is known.
    pub fn landed(&self, grant: &GrantInFlight) {
        for lost in self.leases.end_grant(grant) {
            self.return_unknown(lost);
        }
        if self.leases.len() > self.options.leases_max {
            self.trim_leases(self.options.leases_max);
        }
    }

    /// Takes note of a lease on a directory, and of its attributes under it. What was told along with them is noted
    /// before: whether it still holds, the time stamps tell.
    pub fn note_delegation(&self, object: &Arc<Object>, told: Option<DirectoryLease>, sent: &Sent) {
        let Some(DirectoryLease { lease, attributes }) = told else { return };
        let early = self.with(object, |state| self.learn_delegation(state, object, &attributes, lease, sent));
        if let Some(Early::Recall(recall)) = early {
            self.start_recall(object, recall);
        }
    }

    fn learn_delegation(
        &self,
        state: &mut ObjectState,
        object: &Arc<Object>,
        attributes: &Attributes,
        lease: Lease,
        sent: &Sent,
    ) -> Option<Early> {
        let seen = state.observe(&self.policy, attributes, sent, Opening::Yes);
        if lease.kind == LeaseKind::Timeout {
            return None;
        }
        self.delegates.store(true, Ordering::Relaxed);
        state.settle_names(&self.policy, sent);
        self.learn_lease(state, object, Some(lease), (seen, sent))
    }

    /// A directory was made, and this lease on it came along: then its maker has all rights, and it is empty, as nothing has
    /// been made in it from here.
    pub(super) fn note_new_directory(&self, caller: &Caller, made: &Node, lease: Option<Lease>, sent: &Sent) {
        let object = self.object(&made.handle);
        // Whoever has found it meanwhile may have changed it from here.
        let untouched = self.with(&object, |state| {
            state.fresh = true;
            state.names_generation == 0 && state.rights_generation == 0
        });
        self.note_delegation(&object, DirectoryLease::pair(lease, made.attributes), sent);
        let leased = self.with(&object, |state| {
            let leased = untouched && state.leased().is_some();
            if leased {
                state.rights.remember_answer(&caller.principal, AccessMask::all(), false, sent.wall);
                state.changed = true;
            }
            leased
        });
        if leased {
            self.note_empty(&object);
        }
    }

    /// ACCESS of a directory, with a lease on it if there is one to be had.
    pub async fn ask_delegated(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        let (caller, object) = (caller.clone(), object.clone());
        self.with_delegation(move |core| async move { core.run_delegated(&caller, &object).await }).await
    }

    async fn run_delegated(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.access_calls.bump();
        let result = self.below.delegate(caller, &object.handle, AccessMask::all()).await;
        self.pace.lock().on_round_trip(sent.at.elapsed());
        match result {
            Ok(Delegated { accessed, lease }) => {
                self.with(object, |state| state.undelegated = lease.is_none().then(Instant::now));
                self.note_delegation(object, DirectoryLease::pair(lease, accessed.attributes), &sent);
                self.note_access(caller, object, &accessed, (&sent, &before));
                Ok(accessed)
            }
            Err(error) => {
                self.note_error(object, &error, &sent);
                Err(error)
            }
        }
    }

    /// For the layer above: a lease of its own under the one that is held here, which is asked for if need be.
    pub async fn delegate(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Delegated> {
        let object = self.object(handle);
        let ask = self.delegates.load(Ordering::Relaxed) && self.wants_directory(&object);
        let mut accessed = if ask {
            self.know_limits(caller, handle).await;
            self.ask_delegated(caller, &object).await?
        } else {
            self.access(caller, handle, asked).await?
        };
        accessed.granted &= asked;
        let lease = self.with(&object, |state| {
            let leased = state.leased().copied().filter(Attributes::is_dir)?;
            let lease = self.hand_up(state, Want::Read)?;
            accessed.attributes = Some(leased);
            Some(lease)
        });
        Ok(Delegated { accessed, lease })
    }
}
