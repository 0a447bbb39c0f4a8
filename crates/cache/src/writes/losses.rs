//! What was lost after a close had said that all is safe: told in the log, in `leasehold status`, and by the next operation
//! on the file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, Handle, Name, OpenRequest, Opened, Result, Status, Timestamp};

use super::file::Writes;
use crate::core::Core;
use crate::object::ObjectState;
use crate::table::Object;

/// Losses that are remembered; of more, only their number.
const LOSSES_MAX: usize = 1000;

/// A file of which bytes were lost that a close had said to be safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub handle: Handle,
    /// Where it was last seen, from the root of the export; its handle, if that is not known.
    pub path: String,
    /// Why.
    pub status: Status,
    /// How many bytes, as far as that is known.
    pub bytes: u64,
    /// When, by this machine's clock.
    pub at: Timestamp,
}

/// The losses of this process.
#[derive(Debug, Default)]
pub struct Losses {
    list: Mutex<VecDeque<Lost>>,
    files: AtomicU64,
    /// Files of which nobody has been told.
    untold: AtomicU64,
}

impl Losses {
    /// Those that are remembered, oldest first.
    pub fn list(&self) -> Vec<Lost> {
        self.list.lock().iter().cloned().collect()
    }

    /// Files of which something was lost, each time that it was.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// One file's loss is untold, or told.
    pub fn count_untold(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => self.untold.fetch_add(1, Ordering::AcqRel),
            (true, false) => self.untold.fetch_sub(1, Ordering::AcqRel),
            _ => 0,
        };
    }

    fn is_all_told(&self) -> bool {
        self.untold.load(Ordering::Acquire) == 0
    }

    fn add(&self, lost: Lost) {
        self.files.fetch_add(1, Ordering::Relaxed);
        let mut list = self.list.lock();
        list.retain(|other| other.handle != lost.handle);
        if list.len() >= LOSSES_MAX {
            list.pop_front();
        }
        list.push_back(lost);
    }

    fn add_bytes(&self, handle: &Handle, bytes: u64) {
        let mut list = self.list.lock();
        if let Some(lost) = list.iter_mut().rev().find(|lost| lost.handle == *handle) {
            lost.bytes += bytes;
        }
    }
}

impl Core {
    /// The origin has refused bytes of a file for good. One line for each file, until it takes something of it again.
    pub fn tell_loss(&self, object: &Arc<Object>, status: Status, bytes: u64) {
        let Some(delayed) = &self.delayed else { return };
        let (unlinked, told, kept) = self.with(object, |state: &mut ObjectState| {
            let writes = state.writes.as_ref();
            let told = writes.is_some_and(|writes| writes.is_strict());
            (state.unlinked, told, writes.and_then(|writes| writes.kept_on()).is_some())
        });
        if unlinked && status == Status::Stale {
            self.writes(object, Writes::discard);
            return;
        }
        if told {
            delayed.losses.add_bytes(&object.handle, bytes);
            return;
        }
        let path = self.path_text(&object.handle);
        let origin = &self.options.origin;
        if kept {
            tracing::error!(
                "{path} of {origin}: {status}; what was written is lost although its close succeeded; the next use of the \
                 file fails; write it again"
            );
            let at = self.policy.wall();
            delayed.losses.add(Lost { handle: object.handle, path, status, bytes, at });
        } else {
            tracing::warn!(
                "{path} of {origin}: {status}; what was written is lost; fsync or close tells the writer"
            );
        }
    }

    /// If something of the file was lost after a close, this operation fails for it, and no other.
    pub fn tell_if_lost(&self, handle: &Handle) -> Result<()> {
        let all_told = self.delayed.as_ref().is_none_or(|delayed| delayed.losses.is_all_told());
        if !all_told && self.writes(&self.glance(handle), Writes::take_lost).flatten().is_some() {
            return Err(Status::Io.into());
        }
        Ok(())
    }

    /// The same, of an open. One that empties the file does not need what was lost.
    pub async fn tell_opener_if_lost(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        opened: &Opened,
    ) -> Result<()> {
        let told = self.tell_if_lost(&opened.handle);
        let empties = request.create.as_ref().is_some_and(|(_, set)| set.size == Some(0));
        if told.is_err() && !empties {
            // What cannot be closed is known of no more.
            let _ = self.close(caller, opened.id).await;
            return told;
        }
        Ok(())
    }

    /// Where an object was last seen, from the root: its components. `None` if that is not known.
    pub fn path_of(&self, handle: &Handle) -> Option<Vec<Name>> {
        let root = self.known_root()?;
        let mut names = Vec::new();
        let mut at = *handle;
        while at != root && names.len() < crate::cleaner::DEPTH_MAX {
            let place = self.with(&self.glance(&at), |state| state.place.clone())?;
            names.push(place.name);
            at = place.directory;
        }
        names.reverse();
        (at == root).then_some(names)
    }

    fn path_text(&self, handle: &Handle) -> String {
        let Some(names) = self.path_of(handle) else { return format!("the file {handle}") };
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name.as_bytes())).collect();
        format!("/{}", names.join("/"))
    }
}
