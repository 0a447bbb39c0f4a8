//! Attributes that wait until the data written before them is durable, and the SETATTR that sets them.
//!
//! One SETATTR of a file is in flight at a time. While it is, no WRITE may move the times that it sets.

use vfs::Status;

use super::{Progress, Writes};
use crate::writes::flush::Level;
use crate::writes::pending::Pending;

impl Writes {
    /// Registers attributes that are set once all earlier writes are durable.
    pub fn set_pending(&mut self, pending: Pending) {
        self.events += 1;
        self.version.step();
        let before = self.pending.take();
        self.pending = Some(Pending { first: self.events, ..pending.after(before) });
    }

    /// The attributes that waited are set, as far as an earlier process has entered.
    pub fn drop_pending(&mut self) {
        self.pending = None;
    }

    /// The attributes that wait to be set.
    pub fn pending(&self) -> Option<&Pending> {
        self.pending.as_ref()
    }

    /// The caller is about to send the SETATTR. Returns the attributes to set. None if nothing waits, if a
    /// task is responsible already, if a truncation is in flight, or if an earlier write is not durable.
    pub fn begin_pending(&mut self) -> Option<Pending> {
        let pending = self.pending.clone().filter(|_| !self.setting && self.cut.is_none())?;
        if self.progress(pending.first, Level::Durable) != Progress::Done {
            return None;
        }
        self.setting = true;
        self.stamping = true;
        Some(pending)
    }

    /// The origin answered DELAY: the attributes are not set. Until the SETATTR is sent again, WRITEs may
    /// go.
    pub fn rest_pending(&mut self) {
        self.stamping = false;
        self.ripe |= !self.dirty.is_empty();
    }

    /// The task is about to send the SETATTR again. Returns what waits now. None as for `begin_pending`.
    pub fn resume_pending(&mut self) -> Option<Pending> {
        self.setting = false;
        self.begin_pending()
    }

    /// The reply to the SETATTR has come.
    pub fn end_pending(&mut self, set: &Pending, result: Result<(), Status>) {
        self.put_off_pending();
        if let Err(status) = result
            && set.asked
        {
            self.error.get_or_insert(status);
        }
        // Others may have been registered meanwhile. They stay.
        self.pending.take_if(|pending| pending.first == set.first);
    }

    /// The SETATTR failed that also carried another request's attributes. The pending ones stay, to be sent
    /// alone.
    pub fn put_off_pending(&mut self) {
        self.setting = false;
        self.rest_pending();
    }

    /// Does anything wait to be set, or is a SETATTR in flight?
    pub fn sets(&self) -> bool {
        self.stamping || self.pending.is_some()
    }

    /// The data has changed since the mtime was requested: the origin decides the new one.
    pub(super) fn forget_mtime(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.mtime = None;
        }
        self.pending.take_if(|pending| pending.is_empty());
    }
}
