//! Names that another client may have changed, and the kernel believes.
//!
//! The holder of a lock file must see what another client replaced or removed before it got the lock. The reply to the
//! creation (a MKDIR, LINK, RENAME, REMOVE as well) tells the layer below whether another client was there
//! (`FileSystem::names_doubted`). If so, what the kernel believes of names in this directory goes. The kernel takes the
//! directory's lock to give up a name, and the creator holds that lock until we answer. So this happens in two steps:
//!
//! 1. Before the answer, the attributes of the directory are invalidated, which takes no lock. The notifications for its names
//!    are sent from a thread that may wait. The kernel hears them as soon as the creation has been answered.
//! 2. Linux checks the mode of a directory before it looks for a name in it, and without attributes it asks for them. This
//!    GETATTR is answered when the kernel has heard. Until then each answer about the directory is good for one time only.
//!
//! A process may ask for the attributes while it holds the directory's lock: it is about to create, and another creation came
//! between its path walk and the lock. The kernel hears nothing as long as that GETATTR waits. So a GETATTR waits for
//! [`PATIENCE`] only, unless a request is under way that explains the lock. But a thread whose own change raised the doubt
//! walks before it locks: it waits until the kernel has heard.
//!
//! Without `default_permissions` (no `allow_other`) the kernel checks no modes, and the second step does not happen.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::front::Front;
use crate::inodes::Inode;
use crate::wire::reply::Outcome;
use crate::wire::request::Header;

/// How long a GETATTR waits that may itself keep the kernel from hearing.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long any other waits: an operation that holds the directory's lock may wait for the origin.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Threads that are remembered to have raised a doubt.
const RAISERS_MAX: usize = 64;

/// What is doubted of the names in a directory.
#[derive(Debug, Default)]
pub struct Doubt {
    /// What `FileSystem::names_doubted` said when the kernel was last told to give up names.
    known: u64,
    /// How often the kernel is being told.
    telling: u32,
    /// The threads whose changes were the reason.
    raisers: Vec<u32>,
    /// Requests under way for which the kernel keeps the directory locked.
    changing: u32,
}

impl Doubt {
    /// Does the kernel believe names that are doubted?
    pub fn is_raised(&self) -> bool {
        self.telling > 0
    }

    fn raise(&mut self, thread: u32) {
        self.telling += 1;
        if self.raisers.len() < RAISERS_MAX {
            self.raisers.push(thread);
        }
    }

    fn end(&mut self) {
        self.telling -= 1;
        if self.telling == 0 {
            self.raisers.clear();
        }
    }
}

/// A request for which the kernel keeps a directory locked.
struct Changing(Arc<Inode>);

impl Changing {
    fn begin(directory: Arc<Inode>) -> Changing {
        directory.state.lock().doubt.changing += 1;
        Changing(directory)
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.state.lock().doubt.changing -= 1;
    }
}

impl Front {
    /// Does a request that changes names in one directory or two. If it shows that another client was there, the kernel gives
    /// up what it believes of names in them before it looks for the next one.
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

    /// A number that grows with each change of names in a directory by another client that is seen.
    pub fn doubted(&self, directory: &Inode) -> u64 {
        self.fs.names_doubted(&directory.handle)
    }

    fn doubt_names(&self, header: &Header, directory: &Arc<Inode>) {
        let doubted = self.doubted(directory);
        {
            let mut state = directory.state.lock();
            if doubted <= state.doubt.known {
                return;
            }
            state.doubt.known = doubted;
        }
        let names = self.inodes.doubt_names(directory.number);
        if names.is_empty() {
            return;
        }
        directory.state.lock().doubt.raise(header.pid);
        self.notifier.attributes(directory.number);
        let told = self.notifier.names_in(directory.number, names);
        let directory = directory.clone();
        tokio::spawn(async move {
            told.await;
            directory.state.lock().doubt.end();
            directory.settled.notify_waiters();
        });
    }

    /// Waits until the kernel has given up the names in a directory that are doubted, if there are any.
    pub async fn settle_names(&self, header: &Header, directory: &Inode) {
        let end = Instant::now() + PATIENCE_MAX;
        let raiser = directory.state.lock().doubt.raisers.contains(&header.pid);
        loop {
            let settled = directory.settled.notified();
            if !directory.state.lock().doubt.is_raised() {
                return;
            }
            let late = tokio::time::timeout(PATIENCE, settled).await.is_err();
            let explained = raiser || directory.state.lock().doubt.changing > 0;
            if late && (!explained || Instant::now() >= end) {
                return;
            }
        }
    }
}
