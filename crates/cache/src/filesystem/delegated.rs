//! Directories under a lease: names are answered without a call, absent names too.
//!
//! A lease on a directory vouches for its names and its attributes, not for the files that the names lead
//! to. The attributes of a child are as fresh as its own lease or the attribute timeouts make them. The
//! origin still decides, for each credential, who may look names up.
//!
//! The cache asks for the lease with the ACCESS that a directory's first use costs anyway. Not every client
//! sends ACCESS, so it also asks with a LOOKUP, OPEN or READDIR in the directory. It asks less and less
//! often if the lease does not last
//! ([`DirectoryNames::backoff`](crate::object::DirectoryNames::backoff)).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Delegated, DirectoryLease, Error, Handle, Lease, LeaseKind,
    Looked, Name, Node, OpenRequest, ReadDir, Result, Status, Verifier, Want,
};

use crate::core::Core;
use crate::filesystem::attributes::Known;
use crate::lease::Early;
use crate::link::REFUSES;
use crate::names::{Leads, NameEntry};
use crate::object::{Before, ObjectState, Opening, Seen};
use crate::options::LookupCache;
use crate::store::{Batch, Table};
use crate::table::Object;
use crate::trust::Sent;

/// The longest listing, in bytes, that is worth a READDIR for a new directory.
const NEW_BYTES: u32 = 8 << 10;
/// How long a refusal stops the requests for a lease with each LOOKUP in the directory.
const REFUSED_FOR: Duration = Duration::from_secs(30);
/// All names of a directory are requested if they fit into about this many bytes.
const LISTED_BYTES: u32 = 32 << 10;
/// On most file systems, a directory of a larger size has more names than that.
const LISTED_SIZE_MAX: u32 = 64 << 10;

impl Core {
    /// Where a name leads, if a lease on its directory vouches for the remembered entry.
    pub fn leased_name(&self, directory: &Arc<Object>, name: &Name) -> Option<Leads> {
        let generation = self.with(directory, |state| state.names_epoch().map(|_| state.names.generation))?;
        let entry = self.name_entry(&directory.handle, name);
        self.with(directory, |state| {
            // No change of ours to the name may be in flight, or have ended since the index was read.
            let steady = !state.touched_since(generation, name) && !state.is_busy_name(name);
            let epoch = state.names_epoch().filter(|_| steady)?;
            match entry.filter(|entry| entry.holds_within(epoch)) {
                Some(entry) => Some(entry.leads),
                None => state.lacks(name).then_some(Leads::Nowhere),
            }
        })
    }

    /// A LOOKUP answered under a lease. None if the lease no longer vouches for the name.
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
        let object = match self.known_or_awake(caller, &handle) {
            Known::AtRest(known) => {
                let node = Node { handle, attributes: Some(known) };
                return Ok(Some(Ok(Looked { node, directory: attributes, directory_lease: None })));
            }
            Known::Awake(object) => object,
        };
        let child = match self.fresh(caller, &object, arrived).await {
            Ok(attributes) => attributes,
            Err(error) if matches!(error.status, Status::Stale | Status::BadHandle) => return Ok(None),
            Err(error) => return Err(error.status.into()),
        };
        let still = self.leased_name(directory, name) == Some(leads);
        let node = Node { handle, attributes: Some(child) };
        Ok(still.then_some(Ok(Looked { node, directory: attributes, directory_lease: None })))
    }

    /// The error for an open of a name that is absent by a lease, if the caller may look names up.
    pub async fn leased_absence(&self, caller: &Caller, request: &OpenRequest) -> Option<Error> {
        let name = request.name.as_ref().filter(|_| request.create.is_none())?;
        let directory = self.object(&request.handle);
        let absent = |core: &Core| core.leased_name(&directory, name) == Some(Leads::Nowhere);
        if self.policy.lookup_cache != LookupCache::All || !absent(self) {
            return None;
        }
        if self.look_right(caller, &directory).is_none() {
            // Ask once; the answer is remembered.
            let _ = self.ask_access(caller, &directory).await;
        }
        let may = self.look_right(caller, &directory) == Some(true);
        let attributes = self.with(&directory, |state| state.leased().copied());
        (may && absent(self)).then(|| Error::from(Status::NoEnt).with(attributes))
    }

    /// Does a name lead anywhere, as far as is remembered? Only a hint.
    pub fn is_remembered(&self, directory: &Handle, name: &Name) -> bool {
        if let Some(entry) = self.name_entry(directory, name) {
            return entry.leads != Leads::Nowhere;
        }
        let directory = self.object(directory);
        self.with(&directory, |state| {
            let listing = state.names.listing.as_ref();
            listing
                .and_then(|listing| listing.complete.as_ref())
                .is_some_and(|complete| complete.contains(name))
        })
    }

    /// The epoch of the directory in which a name was seen, if every later change of the directory would
    /// show.
    pub fn seen_within(
        &self,
        directory: &Arc<Object>,
        seen: Option<Seen>,
        sent: &Sent,
        before: &Before,
    ) -> Option<u64> {
        self.with(directory, |state| {
            let belongs = state.is_of(seen, before) && !state.is_suspect();
            (belongs && !state.is_racy(&self.policy, sent)).then(|| state.epoch())
        })
    }

    /// Adds the directory's epoch to an entry. If that is known, the state of the child does not matter.
    pub fn within(
        &self,
        child: &Arc<Object>,
        entry: Option<NameEntry>,
        within: Option<u64>,
    ) -> Option<NameEntry> {
        let unknown = || {
            // An epoch that no state of the child has.
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
                state.held.lease.is_none() && state.attributes().is_some_and(Attributes::is_dir)
            })
    }

    /// A name is about to be looked up. Over an origin with leases alone, asks for a lease on the directory
    /// first: later lookups in it then cost nothing.
    pub async fn lease_names(&self, caller: &Caller, directory: &Arc<Object>) {
        self.know_limits(caller, &directory.handle).await;
        if self.leases_alone() && self.wants_directory(directory) && !self.was_refused(directory) {
            // If this fails, the LOOKUP reports why.
            let _ = self.ask_delegated(caller, directory).await;
        }
    }

    /// Was a lease on this directory refused a short time ago?
    pub(super) fn was_refused(&self, directory: &Arc<Object>) -> bool {
        self.with(directory, |state| state.names.undelegated.is_some_and(|at| at.elapsed() < REFUSED_FOR))
    }

    /// Should a call that is needed anyway request a lease on this directory, too? After a restart, rights
    /// are known, so no ACCESS finds out whether the origin grants any.
    pub fn may_bring_lease(&self, directory: &Arc<Object>) -> bool {
        let may_grant = || self.link.may_bring_delegation() && !self.was_refused(directory);
        self.wants_directory(directory) && (self.link.delegates() || may_grant())
    }

    /// A name is looked up that is not known. Under a lease on the directory, asks for all names in it, if
    /// they fit into one reply. Later changes by other clients would end the lease. False if this was done
    /// before, or is of no use.
    pub async fn list_names(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let wanted = self.leases_alone()
            && self.with(directory, |state| {
                let epoch = state.names_epoch().filter(|_| !state.is_busy() && state.names.listing.is_none());
                let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
                let wanted = epoch.filter(|_| may).filter(|epoch| state.names.listed != Some(*epoch));
                state.names.listed = wanted.or(state.names.listed);
                wanted.is_some()
            });
        let part = ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: LISTED_BYTES,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        wanted && self.ask_readdir(caller, directory, part).await.is_ok()
    }

    /// A directory that was made here is usually filled from here. At the second lookup in it, asks for all
    /// names, and for a lease if there is none yet. That costs two calls, and later names cost none. True
    /// if all names are known now. If it is not known whether the origin grants leases, this is tried once.
    pub(super) async fn learn_new(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let due = self.has_state() == Some(true)
            && !self.leases_alone()
            && self.with(directory, |state| {
                let is_dir = state.attributes().is_some_and(Attributes::is_dir);
                let again = is_dir && std::mem::replace(&mut state.names.sought, true);
                again && std::mem::replace(&mut state.fresh, false)
            });
        if !due {
            return false;
        }
        let is_leased = || self.with(directory, |state| state.leased().is_some());
        let gives = || self.link.may_delegate();
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
            names_suffice: false,
        };
        if !is_leased() || self.ask_readdir(caller, directory, all).await.is_err() {
            return false;
        }
        if granted.contains(AccessMask::LOOKUP) {
            // The READDIR counts as an open, and may have dropped this right as racy. It came with the
            // lease, so it is good.
            self.remember_success(caller, directory, AccessMask::LOOKUP, &sent, &before);
        }
        true
    }

    /// A name is looked up under a lease on the directory, in which an earlier lookup found nothing. A
    /// client that makes files there, or searches a path, will look up more. Asking for all names costs one
    /// call, as this LOOKUP would, and later ones cost none. It is tried once for each state of the
    /// directory, and only if the names seem to fit into one reply. True if all names may be known now.
    pub(super) async fn learn_missing(&self, caller: &Caller, directory: &Arc<Object>) -> bool {
        let due = self.has_state() == Some(true)
            && !self.leases_alone()
            && self.with(directory, |state| {
                let small = state.attributes().is_some_and(|known| known.size <= u64::from(LISTED_SIZE_MAX));
                let may = self.may(state, &caller.principal, AccessMask::READ) != Some(false);
                let unlisted = state.names.listing.as_ref().is_none_or(|listing| listing.racy);
                let epoch = state.names_epoch().filter(|_| !state.is_busy() && unlisted);
                let due = epoch
                    .filter(|epoch| state.names.missed == Some(*epoch) && state.names.listed != Some(*epoch));
                let due = due.filter(|_| small && may);
                state.names.listed = due.or(state.names.listed);
                due.is_some()
            });
        let all = ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: LISTED_BYTES,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        due && self.ask_readdir(caller, directory, all).await.is_ok()
    }

    /// A call about names in this directory is about to be sent. Should it ask for a lease on the
    /// directory?
    pub fn wants_directory_lease(&self, object: &Arc<Object>) -> bool {
        !self.leases_alone()
            && self.wants_directory(object)
            && self.with(object, |state| state.names.backoff.question(Instant::now()))
    }

    /// Runs a call that may bring a lease on a directory to completion, even if the requester gives up.
    /// Otherwise the cache could hold a lease that it does not know.
    pub async fn with_delegation<T, W, F>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Core>) -> F + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let core = self.share().ok_or(Status::ServerFault)?;
        vfs::run_to_completion(async move {
            let _grant = core.begin_grant();
            work(core.clone()).await
        })
        .await
    }

    /// Records a lease on a directory, with its attributes under the lease. The caller has recorded the
    /// rest of the reply before: the timestamps tell whether that still holds.
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
        let (kept, early) = self.take_lease(state, object, Some(lease));
        let seen = state.observe(&self.policy, attributes, sent, Opening::Yes);
        if lease.kind == LeaseKind::Timeout {
            return None;
        }
        self.link.learn_delegates();
        state.settle_names(&self.policy, sent);
        if let Some(lease) = &kept {
            self.grant_lease(state, lease, (seen, sent));
        }
        early
    }

    /// A directory was made. If the reply brought a lease on it, its maker has all rights. It is empty, if
    /// nothing has been made in it from here.
    pub(super) fn note_new_directory(&self, caller: &Caller, made: &Node, lease: Option<Lease>, sent: &Sent) {
        let object = self.object(&made.handle);
        // Another client of ours may have found the directory and changed it meanwhile.
        let untouched = self.with(&object, |state| {
            state.fresh = true;
            state.names.generation == 0 && state.rights.generation() == 0
        });
        if let Some(attributes) = &made.attributes {
            // It is no news of another client.
            self.with(&object, |state| state.observe(&self.policy, attributes, sent, Opening::Made));
        }
        let given = lease.map(|lease| lease.id);
        self.note_delegation(&object, DirectoryLease::pair(lease, made.attributes), sent);
        self.note_empty(&object, |state| {
            // A lease that came otherwise does not vouch for that.
            let held = state.held.lease.as_ref().map(|held| held.id);
            let leased = untouched && given.is_some() && held == given && state.leased().is_some();
            let still = leased && state.names.generation == 0 && state.rights.generation() == 0;
            if still {
                state.rights.remember_answer(&caller.principal, AccessMask::all(), false, sent.wall);
                state.index.changed = true;
            }
            still
        });
    }

    /// ACCESS to a directory, which also asks for a lease on it.
    pub async fn ask_delegated(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        let (caller, object) = (caller.clone(), object.clone());
        self.with_delegation(move |core| async move { core.run_delegated(&caller, &object).await }).await
    }

    async fn run_delegated(&self, caller: &Caller, object: &Arc<Object>) -> Result<Accessed> {
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.access_calls.bump();
        let result = self.below.delegate(caller, &object.handle, AccessMask::all()).await;
        self.link.on_round_trip(sent.at.elapsed());
        match result {
            Ok(Delegated { accessed, lease }) => {
                self.learn_whether_leases_are_given(lease.as_ref());
                self.with(object, |state| state.names.undelegated = lease.is_none().then(Instant::now));
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

    /// The origin was asked for a lease on a directory. If it refuses all, the next process knows that, and
    /// makes no guesses for their sake. An ACCESS that is needed anyway asks again.
    fn learn_whether_leases_are_given(&self, lease: Option<&Lease>) {
        let gives = lease.is_some_and(|lease| lease.kind != LeaseKind::Timeout);
        if gives {
            self.link.learn_delegates();
        }
        let record = |refuses: bool| {
            let (key, mut batch) = (REFUSES.to_vec(), Batch::default());
            if refuses {
                batch.put(Table::Meta, key, Vec::new());
            } else {
                batch.remove(Table::Meta, key);
            }
            self.disk.index().commit(batch);
        };
        if gives && self.link.forget_refusals() {
            record(false);
        } else if lease.is_none() && self.link.learn_refusal() {
            record(true);
            if self.link.delegates() {
                // It was granted meanwhile.
                record(false);
            }
        }
    }

    /// Grants the layer above a lease under the one that is held here. If there is none, and the origin is
    /// known to grant leases on directories, asks for one.
    pub async fn delegate(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Delegated> {
        let object = self.object(handle);
        let ask = self.link.delegates() && self.wants_directory(&object);
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
