//! Exports that come and go while the server runs, and file systems that come later than their export.
//!
//! An export that goes takes the state of its clients with it: they get `NFS4ERR_STALE`, as after
//! `exportfs -u`. A later export may have the same id. So no call of the old one may be left by then, and
//! [`Front::withdraw`] waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use vfs::{Caller, FileSystem};

use super::Front;
use crate::exports::{Export, ExportId, ExportsError};
use crate::recalls;

/// How long calls to an export that goes may take to end.
const CALLS_END: Duration = Duration::from_secs(5);
/// How often to look whether they have ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The longest end of an export: that of its calls, twice, and a shutdown.
const WITHDRAW_MAX: Duration = Duration::from_secs(30);
/// How often to look whether grace is over, for an export that has come meanwhile.
const GRACE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Calls to an export that was withdrawn have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("calls to it have not ended; restart to export it again")]
pub struct CallsGoOn;

impl Front {
    /// From now on, this export is served, too. The names of its clients must have been looked up, and its
    /// connections judged again, by the caller.
    ///
    /// # Errors
    /// If it cannot be beside the others.
    pub async fn add(&self, export: Export) -> Result<(), ExportsError> {
        let export = Arc::new(export);
        self.shared.exports.add(export.clone())?;
        if !export.is_awaited() {
            self.begin_with(&export).await;
        }
        Ok(())
    }

    /// The file system of an export is there, for which clients have waited.
    pub async fn supply(&self, export: ExportId, fs: Arc<dyn FileSystem>) {
        let awaited = self.shared.exports.by_id(export).filter(|export| export.is_awaited());
        let Some(export) = awaited else { return };
        // Nobody takes new state before that of others is dropped.
        if !self.shared.state.in_lock_grace() {
            fs.end_reclaim().await;
        }
        if export.supply(fs) {
            self.begin_with(&export).await;
        }
    }

    /// As [`Front::begin`], for one export that comes later.
    async fn begin_with(&self, export: &Arc<Export>) {
        if self.shared.state.in_lock_grace() {
            self.end_reclaim_later(export);
        } else {
            export.fs().end_reclaim().await;
        }
        // Without clients that hold state, the first one starts this task.
        if self.shared.state.has_started() {
            recalls::start_for(&self.nqnfs, &self.nlm, export);
        }
    }

    /// The end of grace may have passed this export when its file system was not there yet.
    fn end_reclaim_later(&self, export: &Arc<Export>) {
        let (shared, export) = (Arc::downgrade(&self.shared), Arc::downgrade(export));
        tokio::spawn(async move {
            loop {
                sleep(GRACE_LOOK_EVERY).await;
                let (Some(shared), Some(export)) = (shared.upgrade(), export.upgrade()) else { return };
                if !shared.state.in_lock_grace() {
                    return export.fs().end_reclaim().await;
                }
            }
        });
    }

    /// Ends an export. All that clients hold of it is given back, and then its file system is shut down.
    ///
    /// # Errors
    /// If that takes too long, as with an origin that does not answer. The export is gone all the same, the
    /// work goes on, and an export with the same id must not come.
    pub async fn withdraw(self: &Arc<Front>, export: ExportId) -> Result<(), CallsGoOn> {
        let Some(export) = self.shared.exports.remove(export) else { return Ok(()) };
        let front = self.clone();
        let ending = tokio::spawn(async move {
            front.release_export(&export).await;
            // Calls in progress have the export, and may enter state or write.
            let drained = front.drain(&export, CALLS_END).await;
            front.release_export(&export).await;
            export.fs().shutdown().await;
            // A shutdown ends calls that wait for an origin.
            let drained = drained || front.drain(&export, CALLS_END).await;
            front.release_export(&export).await;
            drained
        });
        match timeout(WITHDRAW_MAX, ending).await {
            Ok(Ok(true)) => Ok(()),
            _ => Err(CallsGoOn),
        }
    }

    /// Waits until no call has the export any more. True if that is so.
    async fn drain(&self, export: &Arc<Export>, limit: Duration) -> bool {
        let limit = Instant::now() + limit;
        while Arc::strong_count(export) > 1 {
            if Instant::now() > limit {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        true
    }

    /// Gives back all that clients hold of an export that is not in the table any more.
    async fn release_export(&self, export: &Export) {
        self.shared.release_export(export).await;
        self.nlm.release_export(export).await;
        let leases = self.nqnfs.nqnfs.leases.lock().withdraw(export.id);
        for (holder, lease) in leases {
            let caller = Caller { holder: Some(holder), ..Caller::machine() };
            if let Err(error) = export.fs().returned(&caller, lease).await {
                tracing::debug!(status = %error.status, "a lease was gone before it was given back");
            }
        }
    }
}
