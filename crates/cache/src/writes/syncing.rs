//! When the journal is synced ([`crate::journal`]), and which fsyncs it answers.
//!
//! With `fsync=journal`, an fsync of a file under a write lease is answered when its entries are on the
//! local disk. That is the case in which a close would send nothing either. All other fsyncs are answered by
//! the origin. While this machine is down, or cut off, other clients may wait for the bytes as for any
//! lease; if the origin revokes the lease, they do not see them.
//!
//! So that entries that come back are never older than what the origin has, every WRITE is sent after its
//! entry is on the disk. Changes of other kinds come after all marks that entries are over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, LeaseKind, Result};

use super::Delayed;
use crate::core::Core;
use crate::object::ObjectState;
use crate::table::Object;

/// Marks are on the disk so long after the last delayed write of a file is durable at the origin.
const MARKS_WITHIN: Duration = Duration::from_secs(1);
/// A sync of the local disk that takes longer counts as failed: writes must reach the origin.
const SYNC_MAX: Duration = Duration::from_secs(15);

impl Core {
    /// Waits until everything entered so far is on the disk, if the rules of the journal ask for that. One
    /// sync serves all that wait. False if it is not on the disk, because the disk or the journal failed.
    pub async fn sync_journal(&self) -> bool {
        let Some(delayed) = &self.delayed else { return true };
        let journal = &delayed.journal;
        let Some(upto) = journal.unsynced() else { return !journal.has_failed() };
        let _one = delayed.syncing.lock().await;
        if let Some(core) = self.share().filter(|_| !journal.is_synced(upto) && !journal.has_failed()) {
            let sync = tokio::task::spawn_blocking(move || {
                // An error is logged, and ends the answers to fsync.
                core.delayed.iter().for_each(|delayed| drop(delayed.journal.sync(upto)));
            });
            if tokio::time::timeout(SYNC_MAX, sync).await.is_err() {
                journal.fail("the disk takes too long to sync");
            }
        }
        journal.is_synced(upto) && !journal.has_failed()
    }

    /// The same, until the deadline at the latest.
    pub async fn sync_journal_before(&self, deadline: Instant) {
        let _ = tokio::time::timeout_at(deadline, self.sync_journal()).await;
    }

    /// Syncs the marks of entries that are over, soon.
    pub fn sync_journal_soon(&self, delayed: &Delayed) {
        if delayed.journal.unsynced().is_none() || delayed.begin_sync_soon() {
            return;
        }
        let Some(core) = self.share() else { return };
        let core = Arc::downgrade(&core);
        tokio::spawn(async move {
            tokio::time::sleep(MARKS_WITHIN).await;
            let Some(core) = core.upgrade() else { return };
            core.delayed.iter().for_each(Delayed::end_sync_soon);
            core.sync_journal().await;
        });
    }

    /// Answers an fsync from the journal. None if the origin must answer it.
    pub async fn fsync_here(&self, caller: &Caller, object: &Arc<Object>) -> Option<Result<()>> {
        let journal = &self.delayed.as_ref()?.journal;
        let may = journal.answers_fsync() && self.may_keep(caller, object).await && self.enter_kept(object);
        if !may || !self.with(object, |state| is_entered(state)) || !self.sync_journal().await {
            return None;
        }
        self.counters.local_fsyncs.bump();
        Some(self.tell_error(object))
    }
}

/// Is the file under a free write lease, with all delayed writes in the journal?
fn is_entered(state: &ObjectState) -> bool {
    let lease = state.held.lease.as_ref();
    lease.is_some_and(|lease| lease.kind == LeaseKind::Write && lease.is_free())
        && state.delayed.writes.as_ref().is_none_or(|writes| writes.is_entered())
}
