//! A cache, as other crates hold it: the core and its background tasks. The operations are in the modules
//! above, each as methods of [`Cache`].

use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::core::Core;

/// A cache over another file system.
pub struct Cache {
    pub(crate) core: Arc<Core>,
    /// The background tasks.
    pub(crate) tasks: Vec<AbortHandle>,
    /// The layer below is the null file system: see [`Cache::open_offline`].
    pub(crate) offline: bool,
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
