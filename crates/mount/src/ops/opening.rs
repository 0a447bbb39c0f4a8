//! Opens and removals of names that are under way at the same time.
//!
//! A file that is removed while it is open keeps a name of its own (`silly`). Without one, a version 3 origin would answer each
//! use of the open with ESTALE. Whether it is open must not change between the question and the removal. Therefore:
//!
//! - An open that is under way counts as an open for whoever removes the file, also if it fails afterwards.
//! - An open waits for the end of removals under way. Then it finds what the name leads to.
//! - A file that has lost the name of its own is not opened by its handle any more.
//!
//! Names are entered before a call is sent, so that one of the two always sees the other. An open by a name that no node has
//! yet is made in two steps: the name is given to a node, and the node is opened (`reopen`).
//!
//! All that rests on which node has the name. A LOOKUP that was answered before a removal and is told after it would give the
//! name back to the file that lost it. So a LOOKUP during which a removal of its name has ended is made again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use vfs::Name;

use crate::front::Front;
use crate::inodes::Inode;

/// Names that are being removed or replaced, and looked up. As many as there are requests under way at most.
#[derive(Debug, Default)]
pub struct Removals {
    names: Mutex<Names>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Names {
    /// How many removals are under way.
    removing: HashMap<(u64, Name), usize>,
    looking: HashMap<(u64, Name), Looks>,
    /// Counts the removals that have ended.
    ended: u64,
}

/// LOOKUPs of one name.
#[derive(Debug, Default)]
struct Looks {
    under_way: usize,
    /// The last removal of the name that has ended since the first of them.
    removed: u64,
}

/// A removal of a name under way.
#[derive(Debug)]
pub struct Removal<'a> {
    removals: &'a Removals,
    at: (u64, Name),
    open: Option<Arc<Inode>>,
}

impl Removal<'_> {
    /// The file that loses the name, if it is open and has no name of its own yet.
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

/// A LOOKUP under way.
#[derive(Debug)]
pub struct Looking<'a> {
    removals: &'a Removals,
    at: (u64, Name),
    /// Removals that had ended when it was sent.
    since: u64,
}

impl Looking<'_> {
    /// Has a removal of the name ended since it was sent?
    pub fn is_outdated(&self) -> bool {
        let names = self.removals.names.lock();
        names.looking.get(&self.at).is_some_and(|looks| looks.removed > self.since)
    }

    /// It is about to be sent again.
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

/// An open under way.
#[derive(Debug)]
pub struct Opening {
    front: Weak<Front>,
    inode: Arc<Inode>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let silly = {
            let mut state = self.inode.state.lock();
            state.opening = state.opening.saturating_sub(1);
            state.take_silly()
        };
        // It was removed meanwhile, and is not open after all.
        if let (Some(silly), Some(front)) = (silly, self.front.upgrade()) {
            tokio::spawn(async move { front.remove_silly(&silly).await });
        }
    }
}

impl Front {
    /// A node is about to be opened. From here on it counts as open for whoever removes it.
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

    /// A name is about to be removed, or to be given to another file: `to`, which loses nothing by that.
    pub fn begin_removal(&self, at: (u64, Name), to: Option<&Arc<Inode>>) -> Removal<'_> {
        let mut names = self.removals.names.lock();
        let gone = self.inodes.named(at.0, &at.1).filter(|gone| !to.is_some_and(|to| Arc::ptr_eq(to, gone)));
        // The file may have left passthrough: then it has another node, too.
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
