//! Changes of ours in flight: to an object ([`Change`]), to a name in a directory ([`NameChange`]), and to
//! the bytes of a file ([`OwnWrite`]).
//!
//! They begin before the call is sent and end with its outcome. Meanwhile the cache does not vouch for what
//! they change. If a change is given up half-way, its copies are dropped.

use std::ops::Range;
use std::sync::Arc;

use vfs::{Attributes, Error, Name, Result, Status, Wcc};

use crate::core::Core;
use crate::data::Ticket;
use crate::names::{Leads, NameEntry, put_name};
use crate::object::ObjectState;
use crate::store::Batch;
use crate::table::Object;
use crate::trust::Sent;

/// A change of ours to one object, from before it is sent until its outcome is known.
pub struct Change<'a> {
    core: &'a Core,
    object: Arc<Object>,
    /// When the call was sent.
    pub sent: Sent,
    ended: bool,
}

impl<'a> Change<'a> {
    /// The caller is about to send the change.
    pub fn begin(core: &'a Core, object: &Arc<Object>) -> Change<'a> {
        core.enter_anew(object);
        Change::of_delayed(core, object)
    }

    /// The same, for a change that an entry of the journal could undo.
    pub async fn begin_synced(core: &'a Core, object: &Arc<Object>) -> Change<'a> {
        core.enter_anew(object);
        core.sync_journal().await;
        Change::of_delayed(core, object)
    }

    /// The same, for a delayed write.
    pub fn of_delayed(core: &'a Core, object: &Arc<Object>) -> Change<'a> {
        core.with(object, |state| state.begin_change(&core.policy));
        Change { core, object: object.clone(), sent: core.policy.sending(), ended: false }
    }

    /// The change was carried out; `wcc` has the object's state before and after.
    pub fn done(mut self, wcc: &Wcc) {
        self.ended = true;
        self.core.with(&self.object, |state| state.end_change(&self.core.policy, wcc, &self.sent));
        self.core.enter_change(&self.object);
    }

    /// The call succeeded and changed nothing.
    pub fn unchanged(mut self, attributes: Option<&Attributes>) {
        self.ended = true;
        self.core.with(&self.object, |state| state.end_failed(&self.core.policy, attributes, &self.sent));
    }

    /// The call failed.
    pub fn failed(mut self, error: &Error) {
        self.ended = true;
        let attributes = error.attributes.as_deref();
        self.core.with(&self.object, |state| {
            if changed_nothing(error.status) {
                state.end_failed(&self.core.policy, attributes, &self.sent);
            } else {
                let wcc = Wcc::seen(attributes.copied());
                state.end_change(&self.core.policy, &wcc, &self.sent);
            }
        });
        if matches!(error.status, Status::Stale | Status::BadHandle) {
            self.core.with(&self.object, |state| state.forget(&self.core.policy));
        }
    }

    /// Ends the change with the call's result.
    pub fn ended(self, result: std::result::Result<&Wcc, &Error>) {
        match result {
            Ok(wcc) => self.done(wcc),
            Err(error) => self.failed(error),
        }
    }
}

impl Drop for Change<'_> {
    /// Dropped while in flight: the outcome is unknown.
    fn drop(&mut self) {
        if !self.ended {
            self.core.with(&self.object, |state| state.end_lost(&self.core.policy));
        }
    }
}

/// The failure of a call on two objects, without its attributes: they may belong to either.
pub fn nameless(error: &Error) -> Error {
    error.status.into()
}

/// Does a failure with this status leave everything unchanged for certain?
fn changed_nothing(status: Status) -> bool {
    !matches!(
        status,
        Status::Io
            | Status::NoSpc
            | Status::Dquot
            | Status::FBig
            | Status::Delay
            | Status::ServerFault
            | Status::Nxio
    )
}

/// A change that is about to be sent will change this object too, as the change of a name changes its file.
/// So the index must not vouch for it any more.
pub fn will_change(core: &Core, object: Option<&Arc<Object>>) {
    if let Some(object) = object {
        core.with(object, ObjectState::unvouch);
    }
}

/// A change of ours to one name in a directory.
pub struct NameChange<'a> {
    core: &'a Core,
    directory: Arc<Object>,
    name: Name,
    /// The object that the name led to, if known.
    child: Option<Arc<Object>>,
    /// The directory's epoch before the change.
    epoch: u64,
    /// A lease on the directory vouched for the name before the change.
    certain: bool,
    ticket: u64,
    ended: bool,
}

impl<'a> NameChange<'a> {
    /// The caller is about to send the change.
    pub fn begin(core: &'a Core, directory: &Arc<Object>, name: &Name) -> NameChange<'a> {
        let certain = core.leased_name(directory, name).is_some();
        let (ticket, epoch) = core.with(directory, |state| (state.begin_name(name), state.epoch()));
        let child = match core.name_entry(&directory.handle, name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => Some(core.object(&child)),
            _ => None,
        };
        will_change(core, child.as_ref());
        NameChange {
            core,
            directory: directory.clone(),
            name: name.clone(),
            child,
            epoch,
            certain,
            ticket,
            ended: false,
        }
    }

    /// Sets the child that the caller has found out otherwise.
    #[must_use]
    pub fn of(mut self, child: Option<Arc<Object>>) -> NameChange<'a> {
        if child.is_some() {
            will_change(self.core, child.as_ref());
            self.child = child;
        }
        self.moved();
        self
    }

    /// The object that the name led to, if known by now: an open may have told it meanwhile.
    pub fn led_to(&self) -> Option<Arc<Object>> {
        let now = || match self.core.name_entry(&self.directory.handle, &self.name) {
            Some(NameEntry { leads: Leads::To(child), .. }) => Some(self.core.object(&child)),
            _ => None,
        };
        self.child.clone().or_else(now)
    }

    /// Has a lease on the directory vouched for the name since before the change?
    pub fn is_certain(&self) -> bool {
        self.certain && self.core.with(&self.directory, |state| state.names_epoch()) == Some(self.epoch)
    }

    /// The name is gone. The index remembers that, unless another client has changed the directory too.
    pub fn gone(self) {
        let entry = NameEntry { leads: Leads::Nowhere, epoch: self.epoch, racy: false, within: None };
        self.end(Some(entry));
    }

    /// The change has ended, and the index gets this entry for the name.
    pub fn end(mut self, entry: Option<NameEntry>) {
        self.ended = true;
        self.set(entry, true);
    }

    /// The change has ended. The entry is only a hint, even under a lease.
    pub fn hint(mut self, entry: NameEntry) {
        self.ended = true;
        self.set(Some(entry), false);
    }

    /// The change also changes the file that the name led to. If that is not known, it may be the file of
    /// any other name in the directory.
    pub fn moved(&self) {
        if self.led_to().is_none() {
            self.core.with(&self.directory, ObjectState::touch_all_names);
        }
    }

    /// The call failed. The name usually is what it was.
    pub fn failed(mut self, error: &Error) {
        self.ended = true;
        if self.is_refuted_by(error.status) {
            // Another client has made or removed the name.
            self.core.policy.news.heard(self.core.policy.event());
            self.set(None, true);
        } else if changed_nothing(error.status) {
            self.core.with(&self.directory, |state| state.end_name(self.ticket));
        } else {
            self.moved();
            self.set(None, true);
        }
    }

    /// Does the failure contradict what is remembered of the name?
    pub fn is_refuted_by(&self, status: Status) -> bool {
        let leads = self.core.name_entry(&self.directory.handle, &self.name).map(|entry| entry.leads);
        let lacks = || self.core.with(&self.directory, |state| state.listing_lacks(&self.name));
        match status {
            Status::Exist => leads == Some(Leads::Nowhere) || (leads.is_none() && lacks()),
            Status::NoEnt | Status::Stale => matches!(leads, Some(Leads::To(_))),
            _ => false,
        }
    }

    fn put(&self, entry: Option<NameEntry>) {
        let mut batch = Batch::default();
        put_name(&mut batch, &self.directory.handle, &self.name, entry);
        self.core.disk.index().commit(batch);
    }

    fn set(&self, entry: Option<NameEntry>, certain: bool) {
        let _names = self.directory.names.lock();
        let entry = self.core.with(&self.directory, |state| {
            // Under a lease no other client has changed the name since.
            let within = state.names_epoch().filter(|epoch| certain && *epoch == self.epoch);
            entry.map(|entry| NameEntry { within, ..entry }).filter(|_| state.is_alone(self.ticket))
        });
        // Write the index first: the name stays busy until the index knows.
        self.put(entry);
        let told = entry.is_some();
        let entry = self.core.with(&self.directory, |state| {
            let alone = state.end_name(self.ticket);
            let entry = entry.filter(|_| alone);
            state.edit_listing(&self.name, entry.as_ref().filter(|_| certain));
            entry
        });
        if told && entry.is_none() {
            // Another change of the name has begun meanwhile.
            self.put(None);
        }
        self.core.see_child(&self.directory.handle, &self.name, entry.as_ref());
    }
}

impl Drop for NameChange<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.moved();
            self.set(None, true);
        }
    }
}

/// A write of ours, from before it is sent until its bytes are stored or will not be.
pub struct OwnWrite {
    core: Arc<Core>,
    object: Arc<Object>,
    ticket: Ticket,
}

impl OwnWrite {
    /// The write is about to be sent. Fails while the cache is being torn down.
    pub fn begin(core: &Core, object: &Arc<Object>, range: Range<u64>) -> Result<OwnWrite> {
        let core = core.share().ok_or(Status::ServerFault)?;
        let ticket = core.with(object, |state| {
            state.index.changed |= state.data.valid().intersects(&range);
            state.data.begin_write(range)
        });
        Ok(OwnWrite { core, object: object.clone(), ticket })
    }

    /// The cache.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The file.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// The write's number in the data of the file.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }
}

impl Drop for OwnWrite {
    fn drop(&mut self) {
        self.core.with(&self.object, |state| state.data.end_write(self.ticket));
    }
}
