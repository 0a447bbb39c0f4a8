//! Complete directories: gathered from READDIR replies, and kept while no other client changes the directory.
//!
//! Cookies and the verifier are the origin's. A client that began with a cached listing can therefore
//! continue at the origin when the cache has lost the listing. A listing is kept once it has been gathered
//! from cookie zero to the end. It must have no gap, and the directory must not have changed in between.

mod complete;

use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Handle, Listing, Name, Verifier};

pub use self::complete::{CompleteListing, Packed};

/// The largest listing that is kept, in bytes: about 250,000 entries.
pub const KEPT_BYTES_MAX: usize = 16 << 20;
/// The bytes of an entry with attributes in a READDIR reply, approximately.
pub const ENTRY_BYTES: u64 = 200;
/// The most bytes that the cache asks for in one READDIR of its own. A larger directory takes several.
pub const LISTING_BYTES_MAX: u32 = 256 << 10;

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// Its inode number.
    pub fileid: u64,
    /// The origin's cookie: READDIR continues behind this entry.
    pub cookie: u64,
    /// The object that the name leads to, if it was requested and reported.
    pub handle: Option<Handle>,
}

/// The effect of our own changes on a name since a listing was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It was made.
    There,
    /// It was removed.
    Gone,
    /// It may have been made or removed.
    Unknown,
}

/// The largest number of names that may have changed since. Beyond it, the listing is dropped.
const EDITS_MAX: usize = 4096;

/// A valid listing, in memory or only in the index.
#[derive(Clone, Debug)]
pub struct KnownListing {
    /// Its number in the index.
    pub id: u64,
    /// Part of it was read in a racy state: it is valid only until the next open.
    pub racy: bool,
    /// It is a guess that came at this event, and no reader has been given it yet: it proves that a name is
    /// absent only under a lease. A reader may rely on a name that was made before it asked.
    pub guessed: Option<u64>,
    /// The listing, if it has been read.
    pub complete: Option<Arc<CompleteListing>>,
    /// Our changes since, under a lease. With them, the listing still tells which names do not exist, but it
    /// no longer answers READDIR.
    pub edits: HashMap<Name, Edit>,
}

impl KnownListing {
    /// A listing that was just read, or that is in the index.
    pub fn new(id: u64, racy: bool, complete: Option<Arc<CompleteListing>>) -> KnownListing {
        KnownListing { id, racy, guessed: None, complete, edits: HashMap::new() }
    }

    /// Is the name known not to exist, by this listing?
    pub fn lacks(&self, name: &Name) -> bool {
        match self.edits.get(name) {
            Some(edit) => *edit == Edit::Gone,
            None => self.complete.as_ref().is_some_and(|complete| !complete.contains(name)),
        }
    }

    /// Records a change of a name. False if there are too many changes.
    pub fn edit(&mut self, name: &Name, edit: Edit) -> bool {
        self.edits.insert(name.clone(), edit);
        self.edits.len() <= EDITS_MAX
    }
}

/// The beginning of a listing.
#[derive(Debug)]
pub struct Gathering {
    verifier: Verifier,
    plus: bool,
    entries: Packed,
    /// There is no capacity for all entries.
    overflow: bool,
    /// The cookie at which the next part must begin.
    next: u64,
    /// Part of it was read in a racy state.
    pub racy: bool,
}

impl Gathering {
    /// Begins with the first part.
    pub fn begin(part: &Listing, plus: bool, racy: bool) -> Gathering {
        let (entries, overflow) = (Packed::default(), false);
        let mut gathering = Gathering { verifier: part.verifier, plus, entries, overflow, next: 0, racy };
        gathering.take(part);
        gathering
    }

    /// Adds another part, read at `cookie`. False if the part does not continue the listing.
    pub fn add(&mut self, cookie: u64, part: &Listing, plus: bool, racy: bool) -> bool {
        let joins = cookie == self.next && part.verifier == self.verifier && plus == self.plus;
        if joins {
            self.racy |= racy;
            self.take(part);
        }
        joins
    }

    /// Is the listing too large to keep?
    pub fn is_too_large(&self) -> bool {
        self.overflow || self.entries.bytes() > KEPT_BYTES_MAX
    }

    /// The complete listing, after the last part was added.
    pub fn complete(self) -> CompleteListing {
        CompleteListing::new(self.verifier, self.plus, self.entries)
    }

    fn take(&mut self, part: &Listing) {
        for entry in &part.entries {
            self.next = entry.cookie;
            let handle = entry.node.map(|node| node.handle);
            self.overflow |= !self.entries.push(&entry.name, entry.fileid, entry.cookie, handle.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Entry;

    fn part(cookies: std::ops::Range<u64>, verifier: u8, eof: bool) -> Listing {
        let entry = |cookie: u64| Entry {
            name: Name::new(format!("n{cookie}").as_bytes()).unwrap(),
            fileid: cookie,
            cookie,
            node: None,
            file_type: None,
        };
        Listing {
            entries: cookies.map(entry).collect(),
            verifier: [verifier; 8],
            eof,
            directory: None,
            directory_lease: None,
        }
    }

    #[test]
    fn parts_join_without_gaps_only() {
        let mut gathering = Gathering::begin(&part(3..6, 1, false), false, false);
        assert!(!gathering.add(6, &part(7..8, 1, true), false, false), "a gap");
        assert!(!gathering.add(5, &part(6..8, 2, true), false, false), "another verifier");
        assert!(!gathering.add(5, &part(6..8, 1, true), true, false), "READDIR and READDIRPLUS");
        assert!(gathering.add(5, &part(6..8, 1, true), false, true));
        assert!(gathering.racy);
        let complete = gathering.complete();
        assert_eq!(complete.len(), 5);
        assert!(
            complete.contains(&Name::new(b"n7").unwrap()) && !complete.contains(&Name::new(b"n8").unwrap())
        );
    }

    #[test]
    fn edits_say_which_names_there_are_not() {
        let complete = Gathering::begin(&part(3..6, 1, true), false, false).complete();
        let mut known = KnownListing::new(1, false, Some(Arc::new(complete)));
        let name = |name: &str| Name::new(name.as_bytes()).unwrap();
        assert!(!known.lacks(&name("n3")) && known.lacks(&name("n9")));
        assert!(known.edit(&name("n3"), Edit::Gone) && known.edit(&name("n9"), Edit::There));
        assert!(known.edit(&name("n4"), Edit::Unknown));
        assert!(known.lacks(&name("n3")) && !known.lacks(&name("n9")) && !known.lacks(&name("n4")));
        assert!((0..EDITS_MAX as u64).any(|n| !known.edit(&name(&format!("m{n}")), Edit::There)), "bounded");
    }
}
