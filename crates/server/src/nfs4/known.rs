//! What every GETATTR needs to know of an export and that does not change under it: asked once, kept for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;
use vfs::{Caller, FsLimits, Handle};

use crate::exports::{Export, ExportId};

/// An origin may be upgraded while we run.
const KEPT: Duration = Duration::from_secs(300);

/// What is known of an export.
#[derive(Debug)]
pub(crate) struct Known {
    /// Its root.
    pub(crate) root: Handle,
    /// What its file system can do.
    pub(crate) limits: FsLimits,
    asked: Instant,
}

/// What is known of all exports.
#[derive(Debug, Default)]
pub(crate) struct Knowledge(RwLock<HashMap<ExportId, Arc<Known>>>);

impl Knowledge {
    /// What is known of this export, asked for if need be.
    pub(crate) async fn of(&self, caller: &Caller, export: &Export) -> vfs::Result<Arc<Known>> {
        let known = self.0.read().get(&export.id).cloned();
        match known {
            Some(known) if known.asked.elapsed() < KEPT => Ok(known),
            _ => self.ask(caller, export).await,
        }
    }

    async fn ask(&self, caller: &Caller, export: &Export) -> vfs::Result<Arc<Known>> {
        let asked = Instant::now();
        let root = export.fs.root(caller).await?.handle;
        let limits = export.fs.limits(caller, &root).await?;
        let known = Arc::new(Known { root, limits, asked });
        self.0.write().insert(export.id, known.clone());
        Ok(known)
    }
}
