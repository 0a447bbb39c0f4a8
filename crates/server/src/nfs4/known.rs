//! Facts about an export that every GETATTR needs and that rarely change. The server asks once and caches
//! the answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;
use vfs::{Caller, FsLimits, Handle};

use crate::exports::{Export, ExportId};

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

/// The facts about all exports.
#[derive(Debug, Default)]
pub(crate) struct Knowledge(RwLock<HashMap<ExportId, Arc<Known>>>);

impl Knowledge {
    /// The facts about this export. Asks its file system if they are missing or too old.
    pub(crate) async fn of(&self, caller: &Caller, export: &Export) -> vfs::Result<Arc<Known>> {
        let known = self.0.read().get(&export.id).cloned();
        match known {
            Some(known) if known.asked.elapsed() < KEPT => Ok(known),
            _ => self.ask(caller, export).await,
        }
    }

    /// The export is no longer served.
    pub(crate) fn forget(&self, export: ExportId) {
        self.0.write().remove(&export);
    }

    async fn ask(&self, caller: &Caller, export: &Export) -> vfs::Result<Arc<Known>> {
        let asked = Instant::now();
        let root = export.fs().root(caller).await?.handle;
        let limits = export.fs().limits(caller, &root).await?;
        let known = Arc::new(Known { root, limits, asked });
        self.0.write().insert(export.id, known.clone());
        Ok(known)
    }
}
