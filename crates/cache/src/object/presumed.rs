//! A directory after creations of ours of which the replies tell nothing of it.
//!
//! NQNFS answers CREATE and MKDIR with what was made, and not with where. Under a lease nobody else changes the directory, so
//! that mode and owner are what they were, and when it was changed last the new object's own time stamp tells. That is
//! **presumed**, since a kernel asks for a directory's mode after each creation in it, before it walks through it again.
//!
//! The origin's own stamp may be a tick later, and its size is what it was told last: for that reason it is presumed for
//! `acdirmin` from the first such creation at the most, and then asked for, and never after a change of another kind.
//! No time that is shown goes back by that.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Wcc};

use super::ObjectState;
use crate::policy::Policy;

/// What is presumed, and of which changes.
#[derive(Debug, Default)]
pub(super) struct Presumed {
    /// Changes of ours since the known state whose replies said nothing of this object.
    untold: u32,
    /// Those of them of which what they made tells enough.
    explained: u32,
    shown: Option<(Attributes, Instant)>,
}

impl Presumed {
    /// A change of ours has ended, and nothing was said of this object.
    pub(super) fn untold(&mut self) {
        self.untold = self.untold.saturating_add(1);
    }

    /// The origin has shown it. What was asked before the last of the changes explains none of them.
    pub(super) fn shown(&mut self, trusted: bool) {
        *self = Presumed { untold: u32::from(!trusted), ..Presumed::default() };
    }
}

impl ObjectState {
    /// The index says nothing any more.
    pub fn lose_index(&mut self) {
        (self.vouched, self.unvouched) = (false, false);
        self.changed = true;
    }

    /// A name was made in it, by a change that has just ended and that told this of the directory.
    pub fn presume(&mut self, policy: &Policy, told: &Wcc, made: Option<&Attributes>) {
        let (None, Some(made)) = (told.after, made) else { return };
        let known = self.known.as_ref().map(|known| known.attributes).filter(Attributes::is_dir);
        let Some(known) = known else { return };
        let (acdirmin, _) = policy.timeouts(true);
        let presumed = &mut self.presumed;
        presumed.explained = presumed.explained.saturating_add(1);
        let (before, until) = presumed.shown.unwrap_or((known, Instant::now() + acdirmin));
        // Not all file systems count directories as links; those that do begin with two.
        let links = u32::from(made.is_dir() && before.nlink > 1);
        let shown = Attributes {
            nlink: before.nlink.saturating_add(links),
            mtime: before.mtime.max(made.ctime),
            ctime: before.ctime.max(made.ctime),
            change: before.change.wrapping_add(1),
            ..before
        };
        presumed.shown = Some((shown, until));
    }

    /// What it looks like now, if every change since it was known is of that kind, and until when that is said.
    pub(super) fn presumed(&self) -> Option<(&Attributes, Instant)> {
        let Presumed { untold, explained, shown } = &self.presumed;
        let (attributes, until) = shown.as_ref()?;
        let all = untold == explained && !self.history.is_under_way() && !self.history.is_suspect();
        let left = until.saturating_duration_since(Instant::now()) > Duration::ZERO;
        (all && left && self.is_ours_alone()).then_some((attributes, *until))
    }
}
