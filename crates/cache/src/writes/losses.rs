//! Bytes that were lost after a close had reported them as safe. Users learn of it from the log, from
//! `leasehold status`, and from the next operation on the file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, Handle, Name, OpenRequest, Opened, Result, Status, Timestamp};

use super::file::Writes;
use crate::core::Core;
use crate::object::ObjectState;
use crate::table::Object;

/// Most losses that are remembered in full. Beyond it, only their number is kept.
const LOSSES_MAX: usize = 1000;

/// A file with lost bytes that a close had reported as safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The file.
    pub handle: Handle,
    /// Its last known path, from the root of the export; its handle, if the path is not known.
    pub path: String,
    /// The origin's reason.
    pub status: Status,
    /// The number of lost bytes, as far as known.
    pub bytes: u64,
    /// The time of the loss, by this machine's clock.
    pub at: Timestamp,
}

/// The losses of this process.
#[derive(Debug, Default)]
pub struct Losses {
    list: Mutex<VecDeque<Lost>>,
    files: AtomicU64,
    /// Files whose loss no caller has learnt of.
    untold: AtomicU64,
}

impl Losses {
    /// The losses that are remembered, oldest first.
    pub fn list(&self) -> Vec<Lost> {
        self.list.lock().iter().cloned().collect()
    }

    /// How many times a file lost bytes.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Updates the count when a file's loss becomes unreported (`after`) or reported (`before`).
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
    /// The origin has refused bytes of a file for good. Logs one line per file, until the origin takes
    /// bytes of it again.
    pub fn tell_loss(&self, object: &Arc<Object>, status: Status, bytes: u64) {
        let Some(delayed) = &self.delayed else { return };
        let (unlinked, told, kept) = self.with(object, |state: &mut ObjectState| {
            let writes = state.delayed.writes.as_ref();
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

    /// If the file lost bytes after a close, this operation fails with IO. Only one operation fails for
    /// each loss.
    pub fn tell_if_lost(&self, handle: &Handle) -> Result<()> {
        let all_told = self.delayed.as_ref().is_none_or(|delayed| delayed.losses.is_all_told());
        if !all_told && self.writes(&self.glance(handle), Writes::take_lost).flatten().is_some() {
            return Err(Status::Io.into());
        }
        Ok(())
    }

    /// The same for an open. An open that empties the file succeeds, because it does not need the lost
    /// bytes.
    pub async fn tell_opener_if_lost(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        opened: &Opened,
    ) -> Result<()> {
        let told = self.tell_if_lost(&opened.handle);
        let empties = request.create.as_ref().is_some_and(|(_, set)| set.size == Some(0));
        if told.is_err() && !empties {
            // If this close fails, nothing is left to close.
            let _ = self.close(caller, opened.id).await;
            return told;
        }
        Ok(())
    }

    /// The last known path of an object, from the root, as components. `None` if it is not known.
    pub fn path_of(&self, handle: &Handle) -> Option<Vec<Name>> {
        let root = self.known_root()?;
        let mut names = Vec::new();
        let mut at = *handle;
        while at != root && names.len() < crate::names::DEPTH_MAX {
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
