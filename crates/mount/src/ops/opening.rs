//! Opens and removals of the same name that are in flight at the same time.
//!
//! A file that is removed while it is open gets a silly name (`silly`). Without that name, an NFSv3 origin
//! would answer each use of the open with ESTALE. The file's open count must not change between the check
//! and the removal. Therefore:
//!
//! - An open in flight counts as an open for a removal, even if the open fails later.
//! - An open waits until removals in flight have ended. Then it uses what the name leads to.
//! - A file that has lost its silly name is no longer opened by its handle.
//!
//! Each side registers before it sends its call, so that one of the two always sees the other. An open by a
//! name without a node takes two steps: the name gets a node, then the node is opened (`reopen`).
//!
//! All this depends on which node has the name. A LOOKUP that the origin answered before a removal, but
//! whose reply is processed after it, would give the name back to the removed file. So if a removal of the
//! name has ended during a LOOKUP, the LOOKUP is repeated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use vfs::Name;

use crate::front::Front;
use crate::inodes::Inode;

/// Names that are being removed, replaced or looked up. There are never more than requests in flight.
#[derive(Debug, Default)]
pub struct Removals {
    names: Mutex<Names>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Names {
    /// Removals in flight for each name.
    removing: HashMap<(u64, Name), usize>,
    looking: HashMap<(u64, Name), Looks>,
    /// Number of removals that have ended.
    ended: u64,
}

/// The LOOKUPs of one name in flight.
#[derive(Debug, Default)]
struct Looks {
    under_way: usize,
    /// The value of `Names::ended` at the last removal of this name.
    removed: u64,
}

/// A removal of a name in flight.
#[derive(Debug)]
pub struct Removal<'a> {
    removals: &'a Removals,
    at: (u64, Name),
    open: Option<Arc<Inode>>,
}

impl Removal<'_> {
    /// The file that loses the name, if it is open and has no silly name yet.
    pub fn open(&self) -> Option<&Arc<Inode>> {
        self.open.as_ref()
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut names = self.removals.names.lock();
        names.ended += 1;
        let ended = names.ended;
        if let Some(looks) = names.looking.get_mut(&self.at) {
            looks.removed = ended;
        }
        if let Entry::Occupied(mut removing) = names.removing.entry(self.at.clone()) {
            *removing.get_mut() -= 1;
            if *removing.get() == 0 {
                removing.remove();
            }
        }
        drop(names);
        self.removals.ended.notify_waiters();
    }
}

/// A LOOKUP in flight.
#[derive(Debug)]
pub struct Looking<'a> {
    removals: &'a Removals,
    at: (u64, Name),
    /// The value of `Names::ended` when it was sent.
    since: u64,
}

impl Looking<'_> {
    /// Has a removal of the name ended since the LOOKUP was sent?
    pub fn is_outdated(&self) -> bool {
        let names = self.removals.names.lock();
        names.looking.get(&self.at).is_some_and(|looks| looks.removed > self.since)
    }

    /// The LOOKUP is about to be sent again.
    pub fn restart(&mut self) {
        self.since = self.removals.names.lock().ended;
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        let mut names = self.removals.names.lock();
        if let Entry::Occupied(mut looks) = names.looking.entry(self.at.clone()) {
            looks.get_mut().under_way -= 1;
            if looks.get().under_way == 0 {
                looks.remove();
            }
        }
    }
}

/// An open in flight.
#[derive(Debug)]
pub struct Opening {
    front: Weak<Front>,
    inode: Arc<Inode>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let silly = {
            let mut state = self.inode.state.lock();
            debug_assert!(state.opening > 0, "an open in flight ends that was not counted");
            state.opening = state.opening.saturating_sub(1);
            state.take_silly()
        };
        // The file was removed during the open, and the open failed.
        if let (Some(silly), Some(front)) = (silly, self.front.upgrade()) {
            tokio::spawn(async move { front.remove_silly(&silly).await });
        }
    }
}

impl Front {
    /// A node is about to be opened. From now on it counts as open for a removal. Waits for removals of its
    /// names in flight.
    pub async fn begin_open(&self, inode: &Arc<Inode>) -> Opening {
        loop {
            let ended = self.removals.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let names = self.removals.names.lock();
                let mut state = inode.state.lock();
                let removing = &names.removing;
                if removing.is_empty() || !state.names.iter().any(|at| removing.contains_key(at)) {
                    state.opening += 1;
                    return Opening { front: self.this.clone(), inode: inode.clone() };
                }
            }
            ended.await;
        }
    }

    /// A name is about to be removed, or to be replaced by `to`, which loses nothing.
    pub fn begin_removal(&self, at: (u64, Name), to: Option<&Arc<Inode>>) -> Removal<'_> {
        let mut names = self.removals.names.lock();
        let gone = self.inodes.named(at.0, &at.1).filter(|gone| !to.is_some_and(|to| Arc::ptr_eq(to, gone)));
        // If the file has left passthrough, it has another node, too.
        let current = gone.as_ref().and_then(|gone| self.inodes.find(&gone.handle));
        let open = gone.into_iter().chain(current).find(|gone| {
            let state = gone.state.lock();
            state.is_open() && state.silly.is_none()
        });
        *names.removing.entry(at.clone()).or_default() += 1;
        Removal { removals: &self.removals, at, open }
    }

    /// A name is about to be looked up.
    pub fn begin_look(&self, at: (u64, Name)) -> Looking<'_> {
        let mut names = self.removals.names.lock();
        let since = names.ended;
        names.looking.entry(at.clone()).or_default().under_way += 1;
        Looking { removals: &self.removals, at, since }
    }
}
