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
//! name has ended during a LOOKUP, the LOOKUP is repeated. A listing may be kept for long before its entries
//! go to the kernel. An entry whose name was removed since it was fetched goes there without a node.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use vfs::Name;

use crate::front::Front;
use crate::inodes::Inode;

/// Limit of names that are remembered as removed for the listings of one directory.
const REMOVED_MAX: usize = 1 << 14;

/// Names that are being removed, replaced, looked up or listed. There are never more than requests in
/// flight, and `REMOVED_MAX` for each directory with a listing in progress.
#[derive(Debug, Default)]
pub struct Removals {
    names: Arc<Mutex<Names>>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Names {
    /// Removals in flight for each name.
    removing: HashMap<(u64, Name), usize>,
    looking: HashMap<(u64, Name), Looks>,
    listing: HashMap<u64, Listings>,
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

impl Removals {
    /// Entries of a directory are about to be asked for.
    pub fn begin_listing(&self, directory: u64) -> Fetched {
        let mut names = self.names.lock();
        let since = names.ended;
        names.listing.entry(directory).or_default().under_way += 1;
        Fetched { names: self.names.clone(), directory, since }
    }
}

/// The listings of one directory in progress.
#[derive(Debug, Default)]
struct Listings {
    under_way: usize,
    /// The value of `Names::ended` at the last removal of each name.
    removed: HashMap<Name, u64>,
    /// No removal up to this one is in `removed`.
    forgotten: u64,
}

impl Listings {
    fn note(&mut self, name: &Name, ended: u64) {
        if self.removed.len() >= REMOVED_MAX {
            self.removed.clear();
            self.forgotten = ended;
            return;
        }
        self.removed.insert(name.clone(), ended);
    }
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
        if let Some(listings) = names.listing.get_mut(&self.at.0) {
            listings.note(&self.at.1, ended);
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

/// Entries of a directory that were fetched and are not all in the kernel yet.
#[derive(Debug)]
pub struct Fetched {
    names: Arc<Mutex<Names>>,
    directory: u64,
    /// The value of `Names::ended` when the entries were asked for.
    since: u64,
}

impl Fetched {
    /// Has a removal of this name ended since its entry was asked for?
    pub fn is_outdated(&self, name: &Name) -> bool {
        let names = self.names.lock();
        let Some(listings) = names.listing.get(&self.directory) else { return true };
        let removed = listings.removed.get(name).copied().unwrap_or_default();
        removed.max(listings.forgotten) > self.since
    }

    /// The next entries are about to be asked for. The kernel has all of the earlier ones.
    pub fn restart(&mut self) {
        let mut names = self.names.lock();
        self.since = names.ended;
        let Some(listings) = names.listing.get_mut(&self.directory).filter(|one| one.under_way == 1) else {
            return;
        };
        listings.removed.clear();
        listings.forgotten = self.since;
    }

    /// The listing goes back to entries that were asked for earlier.
    pub fn go_back(&mut self) {
        self.since = 0;
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        let mut names = self.names.lock();
        if let Entry::Occupied(mut listings) = names.listing.entry(self.directory) {
            listings.get_mut().under_way -= 1;
            if listings.get().under_way == 0 {
                listings.remove();
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
        let silly = self.inode.opens.end();
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
        self.begin_open_at(inode, None).await
    }

    /// The same for a node that a LOOKUP has found. Also waits for removals of that name that have taken it
    /// from the node already; then the LOOKUP is outdated.
    pub async fn begin_open_found(&self, inode: &Arc<Inode>, looking: &Looking<'_>) -> Opening {
        self.begin_open_at(inode, Some(&looking.at)).await
    }

    /// The same without a wait, for an origin that keeps a removed file for its opens.
    pub fn count_open(&self, inode: &Arc<Inode>) -> Opening {
        inode.opens.begin();
        Opening { front: self.this.clone(), inode: inode.clone() }
    }

    async fn begin_open_at(&self, inode: &Arc<Inode>, at: Option<&(u64, Name)>) -> Opening {
        loop {
            let ended = self.removals.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let names = self.removals.names.lock();
                let state = inode.state.lock();
                let removing = &names.removing;
                if removing.is_empty() || !state.names.iter().chain(at).any(|at| removing.contains_key(at)) {
                    return self.count_open(inode);
                }
            }
            ended.await;
        }
    }

    /// A name is about to be removed, or to be replaced by `to`, which loses nothing.
    pub fn begin_removal(&self, at: (u64, Name), to: Option<&Arc<Inode>>) -> Removal<'_> {
        let mut names = self.removals.names.lock();
        let gone = self.inodes.named(at.0, &at.1).filter(|gone| !to.is_some_and(|to| Arc::ptr_eq(to, gone)));
        let open = gone.filter(|gone| gone.opens.need_silly());
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: u64 = 5;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn remove(removals: &Removals, text: &str) {
        drop(Removal { removals, at: (DIRECTORY, name(text)), open: None });
    }

    #[test]
    fn an_entry_is_outdated_if_its_name_was_removed_since_it_was_fetched() {
        let removals = Removals::default();
        remove(&removals, "before");
        let mut listing = removals.begin_listing(DIRECTORY);
        let beside = removals.begin_listing(DIRECTORY + 1);
        remove(&removals, "a");
        assert!(listing.is_outdated(&name("a")) && !listing.is_outdated(&name("b")));
        assert!(!listing.is_outdated(&name("before")) && !beside.is_outdated(&name("a")));
        listing.restart();
        assert!(!listing.is_outdated(&name("a")), "it was fetched again");
        remove(&removals, "b");
        assert!(listing.is_outdated(&name("b")));
        listing.go_back();
        assert!(
            listing.is_outdated(&name("a")) && listing.is_outdated(&name("c")),
            "that is not known any more"
        );
        drop((listing, beside));
        assert!(removals.names.lock().listing.is_empty());
    }

    #[test]
    fn two_listings_do_not_forget_for_each_other_and_no_more_is_kept_than_may_be() {
        let removals = Removals::default();
        let first = removals.begin_listing(DIRECTORY);
        remove(&removals, "a");
        let mut second = removals.begin_listing(DIRECTORY);
        second.restart();
        assert!(first.is_outdated(&name("a")) && !second.is_outdated(&name("a")));
        (0..REMOVED_MAX).for_each(|n| remove(&removals, &n.to_string()));
        assert!(second.is_outdated(&name("b")), "which names were removed is not known any more");
        second.restart();
        assert!(!second.is_outdated(&name("b")) && first.is_outdated(&name("b")));
        assert!(removals.names.lock().listing[&DIRECTORY].removed.len() <= REMOVED_MAX);
    }
}
