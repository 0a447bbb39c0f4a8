//! Facts about an export that every GETATTR needs and that rarely change. The server asks once and caches
//! the answer.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;
use vfs::{Caller, FileSystem, FsLimits, Handle};

/// An origin may be upgraded while the server runs.
const KEPT: Duration = Duration::from_secs(300);

/// The facts about an export.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its root handle.
    pub(crate) root: Handle,
    /// The limits and features of its file system.
    pub(crate) limits: FsLimits,
    asked: Instant,
}

/// The facts about an export, once they were asked for.
#[derive(Debug, Default)]
pub(super) struct Knowledge(RwLock<Option<Arc<Known>>>);

impl Knowledge {
    /// The facts about the export with this file system. Asks it if they are missing or too old.
    pub(super) async fn of(&self, caller: &Caller, fs: &Arc<dyn FileSystem>) -> vfs::Result<Arc<Known>> {
        let known = self.0.read().clone();
        match known {
            Some(known) if known.asked.elapsed() < KEPT => Ok(known),
            _ => self.ask(caller, fs).await,
        }
    }

    async fn ask(&self, caller: &Caller, fs: &Arc<dyn FileSystem>) -> vfs::Result<Arc<Known>> {
        let asked = Instant::now();
        let root = fs.root(caller).await?.handle;
        let limits = fs.limits(caller, &root).await?;
        let known = Arc::new(Known { root, limits, asked });
        *self.0.write() = Some(known.clone());
        Ok(known)
    }
}
