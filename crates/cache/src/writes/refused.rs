//! WRITEs and COMMITs that the origin refuses although an fsync of their bytes was answered from the journal.
//!
//! The program relies on these bytes, and the journal has the only copy. So they are not dropped as others
//! are: everything that waits of the file is put aside, as after a revocation ([`super::revoked`]). WRITEs on
//! their way end first, so that none arrives after newer bytes. The next caller gets an error.
//!
//! Not covered: a refusal while a truncation is in flight.

use std::sync::Arc;

use vfs::Status;

use super::file::{Suspended, Writes};
use crate::core::Core;
use crate::options::Fsync;
use crate::table::Object;

/// A call that the origin has refused.
#[derive(Clone, Copy, Debug)]
pub enum Refused {
    /// The WRITE with this ticket.
    Write(u64),
    /// The COMMIT with this number. The origin may have its bytes in memory, or nowhere.
    Commit(u64),
}

impl Core {
    /// The origin has refused a call. True if its bytes are put aside.
    pub fn put_refused_aside(&self, object: &Arc<Object>, refused: Refused, status: Status) -> bool {
        if !self.delayed.as_ref().is_some_and(|delayed| delayed.options.fsync == Fsync::Journal) {
            return false;
        }
        let put_off = self.writes_of(
            object,
            |state| state.unlinked,
            |writes, unlinked| {
                let relied = writes.kept_on().is_some() && writes.journaled.is_some();
                // Those of an earlier process are kept by their own rule.
                if unlinked || !relied || writes.restored.is_some() {
                    return None;
                }
                suspend(writes, refused)
            },
        );
        let Some(begun) = put_off.flatten() else { return false };
        if let Some(core) = self.share().filter(|_| begun) {
            let (object, why) = (object.clone(), vfs::Error::from(status).to_string());
            tokio::spawn(async move {
                core.no_write_in_flight(&object).await;
                core.set_suspended_aside(&object, &why).await;
                core.go_on(&object);
            });
        }
        true
    }
}

/// The bytes of the refused call wait again, and nothing is sent. None if that cannot be. True if the file
/// was not suspended before.
fn suspend(writes: &mut Writes, refused: Refused) -> Option<bool> {
    match refused {
        Refused::Write(ticket) => {
            let begun = writes.suspend(Suspended::Refused);
            writes.suspended()?;
            writes.put_off(ticket);
            Some(begun)
        }
        Refused::Commit(number) => writes.put_off_commit(number).then(|| writes.suspend(Suspended::Refused)),
    }
}
