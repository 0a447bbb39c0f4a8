//! Passthrough: reads that the kernel serves itself from the cache file.
//!
//! An open for reading only, of a file that is complete and valid in the cache, gets the descriptor of the
//! cache file. Its reads never reach this process. The kernel sets these rules:
//! - All opens of a node use the page cache, or all use one and the same backing file.
//! - An open cannot lose or replace its backing file.
//! - Passthrough needs CAP_SYS_ADMIN, and a connection on which INIT agreed on it.
//!
//! So the mount decides at the open. An open for writing, or of a changed file, cannot share the backing
//! file of the node's other opens. Then the mount retires the node: the kernel looks the file up again and
//! opens a new node. The opens of the old node keep their backing file, and `refill` rewrites it when the
//! remote file has changed.
//!
//! A recently locked file gets no passthrough: each grant of a lock would have to check the backing file.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use vfs::{Attributes, Caller, OpenId, Share};

pub use self::refill::Passed;
use crate::front::Front;
use crate::inodes::Inode;
use crate::ops::lock::was_locked;

pub mod refill;

/// How an open reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the page cache and this process.
    Ordinary,
    /// From the backing file with this id.
    Passed(u32),
    /// Not through this node: the kernel must look the file up again.
    Again,
}

impl Front {
    /// Chooses how an open reads, and counts the open in the node.
    pub async fn way(
        &self,
        caller: &Caller,
        inode: &Arc<Inode>,
        access: Share,
        now: &Attributes,
        open: Option<OpenId>,
    ) -> Way {
        let candidate = self.passthrough.load(Ordering::Relaxed) && access == Share::READ && now.size > 0;
        let wanted = candidate && {
            let state = inode.state.lock();
            state.opened.ordinary == 0 && state.opened.backing.is_none() && !was_locked(&state)
        };
        let complete = match open.filter(|_| wanted) {
            Some(open) => self.fs.complete_file(caller, open).await,
            None => None,
        };
        let complete = complete.filter(|complete| complete.attributes.wcc() == now.wcc());
        let fresh = complete.and_then(|complete| self.register(complete));
        let mut state = inode.state.lock();
        let way = match (&state.opened.backing, fresh) {
            (Some(passed), _) if candidate && passed.is_of(now.wcc()) => Way::Passed(passed.backing.id),
            (Some(_), _) => Way::Again,
            (None, Some(fresh)) if state.opened.ordinary == 0 => {
                let id = fresh.backing.id;
                state.opened.backing = Some(self.watch(inode, fresh));
                Way::Passed(id)
            }
            (None, _) => Way::Ordinary,
        };
        if way != Way::Again {
            state.opened(access, way != Way::Ordinary);
            inode.opens.begin();
        }
        way
    }

    fn register(&self, complete: vfs::CompleteFile) -> Option<Passed> {
        match self.device.open_backing(complete.file.as_fd()) {
            Ok(backing) => Some(Passed::new(backing, complete)),
            Err(errno) => {
                // An unsupported file system or a missing right will not be better next time; a lack of
                // resources may.
                if !matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM) {
                    self.passthrough.store(false, Ordering::Relaxed);
                    tracing::info!("the kernel does not read cache files by itself: {errno}");
                }
                None
            }
        }
    }
}
