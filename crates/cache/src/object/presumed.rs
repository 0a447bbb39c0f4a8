//! The attributes of a directory after creations whose replies say nothing of the directory.
//!
//! NQNFS answers CREATE and MKDIR with the attributes of the new object, and not with those of its directory.
//! Under a lease, no other client changes the directory. Its mode and owner are therefore unchanged, and the
//! timestamp of the new object tells when the directory changed last. The cache **presumes** these
//! attributes, because a kernel asks for a directory's mode after each creation in it, before it walks
//! through the directory again.
//!
//! The origin's own timestamp may be one tick later, and the presumed size is the last one reported. The
//! cache therefore presumes attributes for at most `acdirmin` from the first such creation, and then requests
//! them. After a change of another kind it presumes nothing. No time that was shown ever goes back because of
//! this.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Wcc};

use super::ObjectState;
use crate::policy::Policy;

/// The presumed attributes, and the number of changes that they account for.
#[derive(Debug, Default)]
pub(super) struct Presumed {
    /// Our changes since the known state whose replies said nothing of this directory.
    untold: u32,
    /// Those of them for which the attributes of the new object tell enough.
    explained: u32,
    shown: Option<(Attributes, Instant)>,
}

impl Presumed {
    /// A change of ours has ended, and its reply said nothing of this directory.
    pub(super) fn untold(&mut self) {
        self.untold = self.untold.saturating_add(1);
    }

    /// The origin has shown the attributes. If they are not `trusted`, they were requested before the last of
    /// the changes and explain none of them.
    pub(super) fn shown(&mut self, trusted: bool) {
        *self = Presumed { untold: u32::from(!trusted), ..Presumed::default() };
    }
}

impl ObjectState {
    /// The index is empty again: it records no lease, and the object must be written to it.
    pub fn lose_index(&mut self) {
        (self.index.vouched, self.index.unvouched) = (false, false);
        self.index.changed = true;
    }

    /// A change of ours that has just ended made a name in this directory. The reply brought `told` for the
    /// directory and `made` for the new object.
    pub fn presume(&mut self, policy: &Policy, told: &Wcc, made: Option<&Attributes>) {
        let (None, Some(made)) = (told.after, made) else { return };
        let known = self.known.as_ref().map(|known| known.attributes).filter(Attributes::is_dir);
        let Some(known) = known else { return };
        let (acdirmin, _) = policy.timeouts(true);
        let presumed = &mut self.presumed;
        presumed.explained = presumed.explained.saturating_add(1);
        let (before, until) = presumed.shown.unwrap_or((known, Instant::now() + acdirmin));
        // Not every file system counts subdirectories as links; those that do start at two.
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

    /// The presumed attributes and until when they hold, if every change since the known state is of this
    /// kind.
    pub(super) fn presumed(&self) -> Option<(&Attributes, Instant)> {
        let Presumed { untold, explained, shown } = &self.presumed;
        let (attributes, until) = shown.as_ref()?;
        let all = untold == explained && !self.own.history.is_under_way() && !self.own.history.is_suspect();
        let left = until.saturating_duration_since(Instant::now()) > Duration::ZERO;
        (all && left && self.is_ours_alone()).then_some((attributes, *until))
    }
}
