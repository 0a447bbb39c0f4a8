//! Truncation and removal, in order with delayed writes.
//!
//! If a file is truncated or removed, its delayed writes are never sent. The origin may refuse, so they are
//! dropped only when it has carried out the operation. Until then the file is held: nothing new is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedMutexGuard;
use vfs::{Handle, Result, Status};

use super::file::Writes;
use crate::core::Core;
use crate::table::Object;

/// A truncation, from before it is sent until its outcome is known. Dropping it means that the origin did
/// not truncate.
pub struct Cut {
    core: Arc<Core>,
    object: Arc<Object>,
    end: u64,
    _turn: OwnedMutexGuard<()>,
}

impl Cut {
    /// The caller is about to truncate the file to `end` bytes. Waits until no call is in flight that would
    /// extend the file behind `end` afterwards, and while the file is suspended. None if nothing of the file
    /// is delayed.
    pub async fn begin(core: &Core, object: &Arc<Object>, end: u64) -> Option<Cut> {
        let core = core.share()?;
        core.with(object, |state| state.delayed.writes.as_ref().map(|_| ()))?;
        let turn = object.cutting.clone().lock_owned().await;
        loop {
            let changed = object.written.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let begun = core.writes(object, |writes| {
                // What becomes of the bytes before the end is not decided yet.
                if writes.suspended().is_some() {
                    return false;
                }
                core.enter_cut(writes, end, None);
                writes.begin_cut(end);
                true
            })?;
            if begun {
                break;
            }
            changed.await;
        }
        let cut = Cut { core, object: object.clone(), end, _turn: turn };
        loop {
            let changed = object.written.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if cut.core.writes(&cut.object, |writes| writes.is_clear_from(end)) != Some(false) {
                return Some(cut);
            }
            changed.await;
        }
    }

    /// Does it concern this file?
    pub fn is_of(&self, handle: &Handle) -> bool {
        self.object.handle == *handle
    }

    /// The origin has truncated the file.
    pub fn done(mut self) {
        self.finish(true);
    }

    fn finish(&mut self, done: bool) {
        let end = std::mem::replace(&mut self.end, u64::MAX);
        if end == u64::MAX {
            return;
        }
        self.core.writes(&self.object, |writes| {
            self.core.enter_cut(writes, end, Some(done));
            writes.end_cut(end, done);
        });
        self.core.go_on(&self.object);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.finish(false);
    }
}

impl Core {
    /// The last name of a file is removed, and its delayed writes will not be sent. A client among several
    /// may still use the handle that it has, and the origin may still have the file.
    fn drop_contents(&self, object: &Arc<Object>) {
        if let Some(delayed) = self.delayed.as_ref().filter(|delayed| delayed.options.shared) {
            self.with(object, |state| {
                state.delayed.dropped =
                    state.delayed.writes.as_ref().is_some_and(|writes| !writes.is_clean());
            });
            delayed.has_dropped.store(true, Ordering::Release);
        }
    }

    /// Fails with STALE if the file was removed and its contents are gone.
    pub fn is_not_dropped(&self, handle: &Handle) -> Result<()> {
        let may = self.delayed.as_ref().is_some_and(|delayed| delayed.has_dropped.load(Ordering::Acquire));
        let object = if may { self.memory.table().peek(handle) } else { None };
        let dropped = object.is_some_and(|object| self.with(&object, |state| state.delayed.dropped));
        if dropped { Err(Status::Stale.into()) } else { Ok(()) }
    }

    /// The origin has truncated a file to `end` bytes. Bytes that reached it earlier no longer extend the
    /// file behind that.
    pub fn was_cut(&self, object: &Arc<Object>, end: u64) {
        self.with(object, |state| {
            state.delayed.landings.iter_mut().for_each(|landing| landing.end = end.min(landing.end));
        });
    }
}

/// Holds a file while one of its names is removed: nothing new of it is sent.
pub struct Hold {
    core: Arc<Core>,
    object: Arc<Object>,
    gone: bool,
}

impl Hold {
    /// The caller is about to remove a name. None if nothing of the file is delayed.
    pub fn begin(core: &Core, object: &Arc<Object>) -> Option<Hold> {
        let core = core.share()?;
        core.writes(object, Writes::hold)?;
        Some(Hold { core, object: object.clone(), gone: false })
    }

    /// The file has been removed.
    pub fn gone(mut self) {
        self.gone = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.gone {
            self.core.drop_contents(&self.object);
        }
        self.core.writes(&self.object, |writes| {
            if self.gone {
                writes.discard();
            }
            writes.release();
        });
        self.core.go_on(&self.object);
    }
}
