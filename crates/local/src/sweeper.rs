//! A thread that closes idle descriptors, once a second.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::tree::Tree;

/// One tick of the descriptor cache.
const TICK: Duration = Duration::from_secs(1);
/// Ticks after which an unused file is closed.
const IDLE_MAX: u32 = 60;
/// Ticks after which a descriptor for writing is closed, so that a new program can be run.
const IDLE_WRITING_MAX: u32 = 2;
/// Ticks between two syncs of the handle table.
const SYNC_EVERY: u32 = 5;

/// The thread, which ends when this is dropped.
pub(crate) struct Sweeper {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    pub(crate) fn start(tree: &Arc<Tree>) -> std::io::Result<Sweeper> {
        let (stop, stopped) = mpsc::channel();
        let tree = Arc::downgrade(tree);
        let thread =
            std::thread::Builder::new().name("local-sweeper".into()).spawn(move || sweep(&tree, &stopped))?;
        Ok(Sweeper { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sweep(tree: &Weak<Tree>, stopped: &mpsc::Receiver<()>) {
    let mut ticks = 0_u32;
    while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let Some(tree) = tree.upgrade() else { return };
        ticks = ticks.wrapping_add(1);
        tree.descriptors.tick(IDLE_MAX, IDLE_WRITING_MAX);
        tree.mounts.release_unused();
        if ticks.is_multiple_of(SYNC_EVERY) {
            tree.sync_table();
        }
    }
}
