//! The opens of the layer above, by id. The shares of each are in the state of its file (`opens`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::OpenId;

use crate::table::Object;

/// The file of each open of the layer above.
#[derive(Debug)]
pub struct OpenTable {
    files: Mutex<HashMap<OpenId, Arc<Object>>>,
    next: AtomicU64,
}

impl Default for OpenTable {
    fn default() -> OpenTable {
        OpenTable { files: Mutex::default(), next: AtomicU64::new(1) }
    }
}

impl OpenTable {
    /// A new id.
    pub fn next_id(&self) -> OpenId {
        OpenId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Enters an open.
    pub fn insert(&self, id: OpenId, file: Arc<Object>) {
        self.files.lock().insert(id, file);
    }

    /// Removes an open.
    pub fn remove(&self, id: OpenId) {
        self.files.lock().remove(&id);
    }

    /// The file of an open.
    pub fn get(&self, id: OpenId) -> Option<Arc<Object>> {
        self.files.lock().get(&id).cloned()
    }
}
