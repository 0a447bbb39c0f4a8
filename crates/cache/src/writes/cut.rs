//! Truncation and removal, in order with what is delayed.
//!
//! A delayed write of a file that is truncated or removed first is never sent. It is dropped only when the origin has
//! done it, since it may refuse; until then the file is held, and nothing new is sent.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;
use vfs::Handle;

use super::file::Writes;
use crate::core::Core;
use crate::table::Object;

/// A truncation of a file, from before it is sent until its end is known. Dropped, it was not done.
pub struct Cut {
    core: Arc<Core>,
    object: Arc<Object>,
    end: u64,
    _turn: OwnedMutexGuard<()>,
}

impl Cut {
    /// About to be sent: waits until nothing is on its way that would come behind `end` after it. None if nothing of the
    /// file is delayed.
    pub async fn begin(core: &Core, object: &Arc<Object>, end: u64) -> Option<Cut> {
        let core = core.share()?;
        core.with(object, |state| state.writes.as_ref().map(|_| ()))?;
        let turn = object.cutting.clone().lock_owned().await;
        core.writes(object, |writes| writes.begin_cut(end))?;
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

    /// Is it of this file?
    pub fn is_of(&self, handle: &Handle) -> bool {
        self.object.handle == *handle
    }

    /// The origin has done it.
    pub fn done(mut self) {
        self.finish(true);
    }

    fn finish(&mut self, done: bool) {
        let end = std::mem::replace(&mut self.end, u64::MAX);
        if end == u64::MAX {
            return;
        }
        self.core.writes(&self.object, |writes| writes.end_cut(end, done));
        self.core.go_on(&self.object);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.finish(false);
    }
}

impl Core {
    /// The origin has cut a file: what has reached it before makes it no longer.
    pub fn was_cut(&self, object: &Arc<Object>, end: u64) {
        self.with(object, |state| {
            state.landings.iter_mut().for_each(|(_, there)| *there = end.min(*there));
        });
    }
}

/// Keeps anything new of a file from being sent while it is removed.
pub struct Hold {
    core: Arc<Core>,
    object: Arc<Object>,
    gone: bool,
}

impl Hold {
    /// About to be sent. None if nothing of the file is delayed.
    pub fn begin(core: &Core, object: &Arc<Object>) -> Option<Hold> {
        let core = core.share()?;
        core.writes(object, Writes::hold)?;
        Some(Hold { core, object: object.clone(), gone: false })
    }

    /// The file is gone.
    pub fn gone(mut self) {
        self.gone = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.core.writes(&self.object, |writes| {
            if self.gone {
                writes.discard();
            }
            writes.release();
        });
        self.core.go_on(&self.object);
    }
}
