//! Doubted names: the kernel caches them, but another client may have changed them.
//!
//! The holder of a lock file must see what another client replaced or removed before it got the lock. The
//! reply to the creation (also to a MKDIR, LINK, RENAME or REMOVE) tells the layer below whether another
//! client has changed the directory (`LocalView::names_doubted`). If so, the kernel must drop its cached
//! names of this directory. To drop a name, the kernel takes the directory's lock, and the creator holds
//! that lock until the reply. So this happens in two steps:
//!
//! 1. Before the reply, the attributes of the directory are invalidated, which takes no lock. A thread that
//!    may block sends the notifications for the names. The kernel processes them as soon as it has the
//!    reply to the creation.
//! 2. Linux checks the mode of a directory before it looks for a name in it. Without valid attributes it
//!    sends a GETATTR. This GETATTR is answered when the kernel has dropped the names. Until then each
//!    reply about the directory is valid only once.
//!
//! A process that is about to create a file may send this GETATTR while it holds the directory's lock. This
//! happens if another creation came between its path walk and its lock. Then the kernel cannot drop the
//! names while the GETATTR waits. So a GETATTR waits for [`PATIENCE`] only, unless a request in flight
//! explains the lock. But a thread whose own change raised the doubt walks the path before it locks, so it
//! waits until the kernel has dropped the names.
//!
//! Without `default_permissions` (no `allow_other`) the kernel does not check modes, and the second step
//! does not happen.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::front::Front;
use crate::inodes::Inode;
use crate::wire::reply::Outcome;
use crate::wire::request::Header;

/// How long a GETATTR waits if it may itself prevent the kernel from dropping the names.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long any other GETATTR waits: an operation that holds the directory's lock may wait for the origin.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Limit of remembered threads that raised a doubt.
const RAISERS_MAX: usize = 64;

/// The doubted names of one directory.
#[derive(Debug, Default)]
pub struct Doubt {
    /// The value of `LocalView::names_doubted` when the kernel was last told to drop names.
    known: u64,
    /// Number of rounds of notifications in flight.
    telling: u32,
    /// The threads whose changes raised the doubt.
    raisers: Vec<u32>,
    /// Requests in flight for which the kernel holds the directory's lock.
    changing: u32,
}

impl Doubt {
    /// No doubt.
    pub const NONE: Doubt = Doubt { known: 0, telling: 0, raisers: Vec::new(), changing: 0 };

    /// Does the kernel still cache doubted names?
    pub fn is_raised(&self) -> bool {
        self.telling > 0
    }
}

/// A round of notifications in flight.
struct Telling(Arc<Inode>);

impl Telling {
    fn begin(directory: Arc<Inode>, thread: u32) -> Telling {
        {
            let doubt = &mut directory.state.lock().directory.doubt;
            doubt.telling += 1;
            if doubt.raisers.len() < RAISERS_MAX {
                doubt.raisers.push(thread);
            }
        }
        Telling(directory)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        {
            let doubt = &mut self.0.state.lock().directory.doubt;
            doubt.telling -= 1;
            if doubt.telling == 0 {
                doubt.raisers.clear();
            }
        }
        self.0.waits().settled.notify_waiters();
    }
}

/// A request for which the kernel holds a directory's lock.
struct Changing(Arc<Inode>);

impl Changing {
    fn begin(directory: Arc<Inode>) -> Changing {
        directory.state.lock().directory.doubt.changing += 1;
        Changing(directory)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.state.lock().directory.doubt.changing -= 1;
    }
}

impl Front {
    /// Runs a request that changes names in one or two directories. If its reply shows that another client
    /// has changed such a directory, the kernel drops its cached names there before its next lookup.
    pub async fn changing(
        self: &Arc<Front>,
        header: &Header,
        other: Option<u64>,
        work: impl Future<Output = Outcome>,
    ) -> Outcome {
        let nodes = std::iter::once(header.node).chain(other.filter(|other| *other != header.node));
        let changing: Vec<Changing> =
            nodes.filter_map(|node| self.inodes.get(node)).map(Changing::begin).collect();
        let outcome = work.await;
        if outcome.is_ok() {
            changing.iter().for_each(|Changing(directory)| self.doubt_names(header, directory));
        }
        outcome
    }

    /// A counter that grows with each detected change of names in a directory by another client.
    pub fn doubted(&self, directory: &Inode) -> u64 {
        self.fs.names_doubted(&directory.handle())
    }

    fn doubt_names(&self, header: &Header, directory: &Arc<Inode>) {
        let doubted = self.doubted(directory);
        {
            let mut state = directory.state.lock();
            if doubted <= state.directory.doubt.known {
                return;
            }
            state.directory.doubt.known = doubted;
        }
        let names = self.inodes.doubt_names(directory.number);
        if names.is_empty() {
            return;
        }
        let telling = Telling::begin(directory.clone(), header.pid);
        self.notifier.attributes(directory.number);
        let told = self.notifier.names_in(directory.number, names);
        tokio::spawn(async move {
            told.await;
            drop(telling);
        });
    }

    /// Waits until the kernel has dropped the doubted names of a directory, with a bound.
    pub async fn settle_names(&self, header: &Header, directory: &Inode) {
        let end = Instant::now() + PATIENCE_MAX;
        let raiser = directory.state.lock().directory.doubt.raisers.contains(&header.pid);
        loop {
            let settled = directory.waits().settled.notified();
            if !directory.state.lock().directory.doubt.is_raised() {
                return;
            }
            let late = tokio::time::timeout(PATIENCE, settled).await.is_err();
            let explained = raiser || directory.state.lock().directory.doubt.changing > 0;
            if late && (!explained || Instant::now() >= end) {
                return;
            }
        }
    }
}
