//! Operations that change files and names: SETATTR, CREATE and its like, REMOVE, RENAME, LINK.
//!
//! All of them go to the origin first. The reply tells the state of the objects before and after. With it
//! the cache decides whether to edit or to drop its copies. If a change is given up half-way, the cache
//! drops them.

use std::future::Future;
use std::sync::Arc;

use vfs::{Attributes, Caller, Created, Handle, Name, Renamed, Result, SetAttributes, Timestamp, Want, Wcc};

use crate::changes::{Change, NameChange, OwnWrite, nameless, will_change};
use crate::core::Core;
use crate::names::{Leads, NameEntry};
use crate::object::{ObjectState, Opening, Seen};
use crate::table::Object;
use crate::trust::Sent;
use crate::writes::{Cut, Level, Pending};

/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u32 = 0o6000;

/// A SETATTR in flight that also sets pending attributes. However it ends, those that still wait may then
/// be sent alone.
struct Setting<'a> {
    core: &'a Core,
    object: &'a Arc<Object>,
    /// The pending attributes that have been set.
    set: Option<&'a Pending>,
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.core.writes(self.object, |writes| match self.set {
            Some(pending) => {
                writes.end_pending(pending, Ok(()));
                self.core.enter_attributes_end(writes);
            }
            None => writes.put_off_pending(),
        });
        self.core.go_on(self.object);
    }
}

impl Core {
    /// SETATTR.
    pub async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let object = self.object(handle);
        if guard.is_none()
            && let Some(wcc) = self.delay_setattr(caller, &object, set)
        {
            return Ok(wcc);
        }
        if guard.is_none()
            && Pending::joins(set)
            && let Some((pending, both)) = self.join_pending(caller, &object, set).await
        {
            return self.setattr_joined(caller, &object, &pending, &both).await;
        }
        let cut = self.before_setattr(&object, set, guard.is_some()).await;
        let result = self.setattr_below(caller, &object, set, guard).await;
        if result.is_ok() {
            cut.into_iter().for_each(Cut::done);
        }
        result
    }

    /// SETATTR that also sets the pending attributes.
    async fn setattr_joined(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        pending: &Pending,
        both: &SetAttributes,
    ) -> Result<Wcc> {
        let mut setting = Setting { core: self, object, set: None };
        let result = self.setattr_below(caller, object, both, None).await;
        setting.set = result.is_ok().then_some(pending);
        result
    }

    /// SETATTR at the origin.
    pub async fn setattr_below(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc> {
        let rights = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
        let _cut = set.size.map(|size| OwnWrite::begin(self, object, size..u64::MAX)).transpose()?;
        let _telling = self.tell_opens_of(rights.then_some(object)).await;
        if rights {
            self.with(object, |state| state.touch_rights(&self.policy));
        }
        let change = Change::begin_synced(self, object).await;
        self.counters.setattr.bump();
        let result = self.below.setattr(caller, &object.handle, set, guard).await;
        change.ended(result.as_ref());
        if rights {
            self.with(object, |state| state.touch_rights(&self.policy));
        }
        if let (Ok(_), Some(size)) = (&result, set.size) {
            self.was_cut(object, size);
            // Another client may find the file empty and write it already. The size in the reply shows
            // whether one has.
            self.with(object, |state| {
                state.fresh |= size == 0 && state.held.opens.is_local() && state.is_empty();
            });
        }
        result
    }

    /// Brings delayed writes in order with a SETATTR. Sends them, so that they do not undo what it sets. If
    /// it truncates the file, puts the bytes behind the new end aside.
    async fn before_setattr(&self, object: &Arc<Object>, set: &SetAttributes, guarded: bool) -> Option<Cut> {
        if self.is_all_clean() {
            return None;
        }
        let sizes_only = SetAttributes { size: set.size, ..SetAttributes::default() };
        let times = set.atime.is_some() || set.mtime.is_some();
        if guarded || *set != sizes_only {
            // Pending attributes are older, so they go first.
            let waits = |state: &mut ObjectState| state.delayed.writes.as_ref().is_some_and(|w| w.sets());
            // A WRITE that is sent again after a crash must not clear set-ID bits, or come from a stranger.
            let owner =
                set.uid.is_some() || set.gid.is_some() || set.mode.is_some_and(|mode| mode & SET_ID != 0);
            let stable = times || owner || self.with(object, waits);
            let level = if stable { Level::Stable } else { Level::Sent };
            self.flush_writes(object, level).await;
        }
        Cut::begin(self, object, set.size?).await
    }

    /// CREATE, MKDIR, SYMLINK, MKNOD: every call that makes a new name.
    pub async fn make(
        &self,
        directory: &Handle,
        name: &Name,
        make: impl Future<Output = Result<Created>>,
    ) -> Result<Created> {
        let directory = self.object(directory);
        let naming = NameChange::begin(self, &directory, name);
        let change = Change::begin(self, &directory);
        let sent = change.sent;
        self.counters.create.bump();
        let result = make.await;
        change.ended(result.as_ref().map(|created| &created.directory));
        match &result {
            Ok(created) => {
                let child = self.object(&created.node.handle);
                naming.end(self.own_entry(&child, created.node.attributes.as_ref(), &sent, Opening::Made));
            }
            Err(error) => naming.failed(error),
        }
        result
    }

    /// MKDIR. If the origin grants leases on directories, the reply brings one on the new directory, because
    /// its maker is about to fill it.
    pub async fn make_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        self.know_limits(caller, directory).await;
        if self.leases_alone() || self.link.delegates() {
            let (caller, directory, name, set) = (caller.clone(), *directory, name.clone(), *set);
            return self
                .with_delegation(move |core| async move {
                    core.make_leased(&caller, &directory, &name, &set).await
                })
                .await;
        }
        let made = self.below.mkdir(caller, directory, name, set, Want::None);
        let made = self.make(directory, name, made).await?;
        self.with(&self.object(&made.node.handle), |state| state.fresh = true);
        Ok(made)
    }

    async fn make_leased(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created> {
        let make = async {
            let sent = self.policy.sending();
            let created = self.below.mkdir(caller, directory, name, set, Want::Read).await?;
            self.note_new_directory(caller, &created.node, created.lease, &sent);
            Ok(Created { lease: None, ..created })
        };
        let created = self.make(directory, name, make).await?;
        let (told, made) = (&created.directory, created.node.attributes.as_ref());
        self.with(&self.object(directory), |state| state.presume(&self.policy, told, made));
        Ok(created)
    }

    /// RMDIR. Returns a lease on the directory first: afterwards its handle is no longer valid.
    pub async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc> {
        let victim = match self.steady_entry(&self.object(directory), name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => Some(self.object(&child)),
            Some(NameEntry { leads: Leads::Nowhere, .. }) => None,
            // This sends a LOOKUP, but only if some lease may be held.
            None => self.victim(caller, directory, name).await,
        };
        let victim = victim.filter(|victim| self.is_leased_directory(victim));
        if let Some(victim) = &victim {
            self.return_lease(victim).await;
        }
        self.remove(directory, name, victim, self.below.rmdir(caller, directory, name)).await
    }

    fn is_leased_directory(&self, object: &Arc<Object>) -> bool {
        let is_dir = |state: &ObjectState| state.attributes().is_some_and(Attributes::is_dir);
        self.with(object, |state| state.held.lease.is_some() && is_dir(state))
    }

    /// REMOVE and RMDIR.
    pub async fn remove(
        &self,
        directory: &Handle,
        name: &Name,
        victim: Option<Arc<Object>>,
        remove: impl Future<Output = Result<Wcc>>,
    ) -> Result<Wcc> {
        // Entries that are over must not look like a conflict with the removal.
        self.sync_journal().await;
        let directory = self.object(directory);
        let naming = NameChange::begin(self, &directory, name).of(victim.clone());
        let _telling = self.tell_opens_of(victim.as_ref()).await;
        let change = Change::begin(self, &directory);
        self.counters.remove.bump();
        let result = remove.await;
        change.ended(result.as_ref());
        match &result {
            Ok(_) => {
                self.unlinked(naming.led_to().as_ref());
                naming.moved();
                naming.gone();
            }
            Err(error) => naming.failed(error),
        }
        result
    }

    /// RENAME.
    pub async fn rename(
        &self,
        caller: &Caller,
        (from, from_name): (&Handle, &Name),
        (to, to_name): (&Handle, &Name),
    ) -> Result<Renamed> {
        let (source, target) = (self.object(from), self.object(to));
        let (moved, replaced) =
            (self.victim(caller, from, from_name).await, self.victim(caller, to, to_name).await);
        if let Some(replaced) = replaced.as_ref().filter(|replaced| self.is_leased_directory(replaced)) {
            self.return_lease(replaced).await;
        }
        if replaced.is_some() {
            self.sync_journal().await;
        }
        let leaving = NameChange::begin(self, &source, from_name).of(moved.clone());
        let coming = NameChange::begin(self, &target, to_name).of(replaced.clone());
        // Another client may remove the new name at once, for what it led to before.
        let _telling =
            (self.tell_opens_of(moved.as_ref()).await, self.tell_opens_of(replaced.as_ref()).await);
        let change = Change::begin(self, &target);
        // Within one directory there is one change, reported twice.
        let change_source = (from != to).then(|| Change::begin(self, &source));
        self.counters.rename.bump();
        let result = self.below.rename(caller, from, from_name, to, to_name).await;
        let failure = result.as_ref().map_err(nameless);
        change.ended(failure.as_ref().map(|renamed| &renamed.to));
        if let Some(change) = change_source {
            change.ended(failure.as_ref().map(|renamed| &renamed.from));
        }
        match &result {
            Ok(_) => self.renamed(leaving, coming),
            Err(error) => {
                leaving.failed(error);
                coming.failed(error);
            }
        }
        result
    }

    fn renamed(&self, leaving: NameChange, coming: NameChange) {
        let (moved, replaced) = (leaving.led_to(), coming.led_to());
        leaving.moved();
        coming.moved();
        let same = moved.as_ref().zip(replaced.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let over = moved.as_ref().map(|moved| {
            self.with(moved, |state| {
                let over = state.epoch();
                state.lose_names(&self.policy);
                (over, state.epoch())
            })
        });
        if !same {
            self.unlinked(replaced.as_ref());
        }
        let leads_to = |moved: &Arc<Object>, epoch| NameEntry {
            leads: Leads::To(moved.handle),
            epoch,
            racy: true,
            within: None,
        };
        // A rename between two names of one file does nothing and leaves both. Only leases on both
        // directories prove that the remembered names do not belong to one file.
        match moved.zip(over) {
            Some((moved, (_, epoch))) if !same && leaving.is_certain() && coming.is_certain() => {
                leaving.gone();
                coming.end(Some(leads_to(&moved, epoch)));
            }
            // Otherwise the new name is a hint. Its epoch is over, so the next lookup asks the origin.
            // Until then a removal or another rename of the name knows from it which file it changes.
            Some((moved, (over, _))) => {
                leaving.end(None);
                coming.hint(leads_to(&moved, over));
            }
            None => {
                leaving.end(None);
                coming.end(None);
            }
        }
    }

    /// A name of this object is gone. It may have been the last one.
    fn unlinked(&self, child: Option<&Arc<Object>>) {
        let Some(child) = child else { return };
        let gone = self.with(child, |state| {
            let last = |attributes: &Attributes| attributes.is_dir() || attributes.nlink <= 1;
            let gone = state.attributes().is_none_or(last);
            if gone {
                state.forget(&self.policy);
            } else {
                state.lose_names(&self.policy);
            }
            gone
        });
        if gone {
            self.lost_its_name(child);
        }
    }

    /// The object whose name we are about to change. If that is not known, and some lease may be held,
    /// sends a LOOKUP. A change of our own causes no recall, so nothing else would tell us that the file
    /// has changed.
    pub async fn victim(&self, caller: &Caller, directory: &Handle, name: &Name) -> Option<Arc<Object>> {
        if !self.origin.leases().may_be_held() {
            return None;
        }
        let directory = self.object(directory);
        if let Some(NameEntry { leads: Leads::To(child), epoch, .. }) = self.steady_entry(&directory, name) {
            let child = self.object(&child);
            if self.with(&child, |state| state.epoch() == epoch && !state.is_suspect()) {
                return Some(child);
            }
        }
        let found = self.lookup(caller, &directory.handle, name).await.ok()?;
        Some(self.object(&found.node.handle))
    }

    /// LINK.
    pub async fn link(
        &self,
        caller: &Caller,
        file: &Handle,
        directory: &Handle,
        name: &Name,
    ) -> Result<Created> {
        let (object, directory) = (self.object(file), self.object(directory));
        let naming = NameChange::begin(self, &directory, name);
        will_change(self, Some(&object));
        let change = Change::begin(self, &directory);
        let sent = change.sent;
        self.counters.create.bump();
        let result = self.below.link(caller, file, &directory.handle, name).await;
        change.ended(result.as_ref().map_err(nameless).as_ref().map(|created| &created.directory));
        match &result {
            Ok(created) => {
                self.with(&object, |state| state.lose_names(&self.policy));
                naming.end(self.own_entry(&object, created.node.attributes.as_ref(), &sent, Opening::No));
            }
            Err(error) => naming.failed(error),
        }
        result
    }

    /// The entry for a name that we made, which led to the child at that moment. Timestamp granularity does
    /// not matter here: the promise covers changes by other clients that are further apart than it.
    fn own_entry(
        &self,
        child: &Arc<Object>,
        attributes: Option<&Attributes>,
        sent: &Sent,
        opening: Opening,
    ) -> Option<NameEntry> {
        match self.observe(child, attributes, sent, opening)? {
            Seen::Known { epoch } => {
                Some(NameEntry { leads: Leads::To(child.handle), epoch, racy: false, within: None })
            }
            Seen::Late | Seen::Unclear => None,
        }
    }
}
