//! Opens for reading that the origin does not know of, and when it is told.
//!
//! Under a lease, an open for reading that denies nothing costs no call and no state at the origin (RFC 8881,
//! section 10.4). So a cache with a lease on each of a million files needs a million records, and not as
//! many opens at the origin. The lease keeps away what the open would keep away: a conflicting OPEN, and the
//! removal of the file. Conflicts between local opens are the arbiter's, above this cache.
//!
//! Two things end that, and before each of them the origin is told by an OPEN.
//!
//! The **lease ends** here: it was recalled, or the cache returns it. If the origin has ended it, the OPEN
//! follows, as for any open that was lost.
//!
//! An **operation of ours** may remove a name of the file, or a right to it. The origin recalls no lease from
//! the client that sends such an operation.
//!
//! The OPEN names the file by its handle, and not the delegation (CLAIM_FH). It asks for less than a read
//! delegation keeps away, so no server delays it for that delegation's recall. A server that does all the
//! same costs a bounded wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Shares, Status, Want};

use crate::core::Core;
use crate::held_lease::HeldLease;
use crate::object::ObjectState;
use crate::table::Object;

/// OPENs that are sent to tell of the opens of one file: for further users, and after crossings.
const TRIES_MAX: usize = 8;
/// The longest wait for the OPEN before a lease is returned.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the end of a narrowing is looked for.
const PAUSE: Duration = Duration::from_millis(5);

/// May an open with these shares be made now without the origin?
pub fn may_be_untold(state: &ObjectState, shares: Shares) -> bool {
    state.leased().is_some() && is_kept_for(state, shares, |_| true)
}

/// Has a lease kept others away since before this process, so that a client may reclaim an open with these
/// shares?
pub fn may_be_reclaimed(state: &ObjectState, shares: Shares) -> bool {
    is_kept_for(state, shares, |lease| lease.adopted)
}

/// Does such a lease keep away what an open with these shares would keep away?
fn is_kept_for(state: &ObjectState, shares: Shares, such: impl Fn(&HeldLease) -> bool) -> bool {
    let keeps = |lease: &HeldLease| lease.is_free() && lease.until().is_none() && such(lease);
    !state.unlinked && state.held.opens.may_be_untold(shares) && state.held.lease.as_ref().is_some_and(keeps)
}

/// While this exists, every open of the file is told to the origin.
pub struct Telling<'a> {
    core: &'a Core,
    object: Arc<Object>,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.core.with(&self.object, |state| state.held.opens.end_telling());
    }
}

impl Core {
    /// An operation of ours is about to be sent that may remove a name of this file, or a right to it. Tells
    /// the origin of all opens first. The caller drops the result when the operation has ended.
    pub async fn tell_opens_of(&self, object: Option<&Arc<Object>>) -> Option<Telling<'_>> {
        let object = object?;
        self.with(object, |state| state.held.opens.begin_telling());
        let telling = Telling { core: self, object: object.clone() };
        self.tell_opens(object).await;
        Some(telling)
    }

    /// The same before a lease is returned. No open is untold from then on, because the lease counts as
    /// recalled. Waits until the deadline at most, and not for long.
    pub async fn tell_opens_before(&self, object: &Arc<Object>, deadline: Instant) {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        if tokio::time::timeout_at(deadline, self.tell_opens(object)).await.is_err() {
            tracing::warn!(
                "{} did not answer OPEN of {} before the lease had to be returned; it is open there later",
                self.options.origin,
                object.handle
            );
        }
    }

    /// Sends an OPEN for the opens that the origin does not know of, if there are any. Does not take the
    /// file's turn: another OPEN in flight may wait at the origin for the lease. If the origin refuses one
    /// user, the OPEN of another one tells of the others.
    pub async fn tell_opens(&self, object: &Arc<Object>) {
        for _ in 0..TRIES_MAX {
            let Some((shares, user)) = self.with(object, |state| state.held.opens.untold()) else { return };
            let caller = Caller { principal: user, ..Caller::machine() };
            let request = Core::open_handle_below(object.handle, shares, Want::None);
            match self.ask_open(&caller, request, None).await {
                Ok(granted) if granted.usage.is_some() => {}
                // It crossed a narrowing of ours, which may have taken its share away again.
                Ok(_) => self.wait_for_narrowing(object).await,
                Err(error) if is_refusal(error.status) => {
                    tracing::warn!("an open of {} is lost: the origin refuses it: {error}", object.handle);
                    self.with(object, |state| state.held.opens.lose_untold(&caller.principal));
                }
                // The next settling of the file tries again.
                Err(error) => return tracing::debug!("OPEN of {}: {error}", object.handle),
            }
        }
    }

    async fn wait_for_narrowing(&self, object: &Arc<Object>) {
        let deadline = Instant::now() + PATIENCE;
        while self.with(object, |state| state.held.opens.is_narrowing()) && Instant::now() < deadline {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Does the origin refuse the open for good?
fn is_refusal(status: Status) -> bool {
    use Status as S;
    matches!(status, S::Access | S::Perm | S::Stale | S::BadHandle | S::NoEnt | S::ShareDenied)
}
