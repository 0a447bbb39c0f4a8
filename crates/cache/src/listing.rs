//! Whole directories: gathered from READDIR answers, kept while nobody changes the directory.
//!
//! Cookies and verifier are the origin's, so that a client that began with a cached listing goes on at the origin when
//! the cache has lost it. A listing is kept once it has been gathered from cookie zero to the end without a gap and
//! without a change of the directory in between.

use std::collections::HashMap;
use std::sync::Arc;

use vfs::{Handle, Listing, Name, Verifier};

/// Directories with more entries than this are not kept.
pub const ENTRIES_MAX: usize = 200_000;

/// One name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// Its inode number.
    pub fileid: u64,
    /// The origin's cookie: reading goes on behind this entry.
    pub cookie: u64,
    /// What it leads to, if that was asked and told.
    pub handle: Option<Handle>,
}

/// A whole directory.
#[derive(Debug)]
pub struct CompleteListing {
    /// The origin's.
    pub verifier: Verifier,
    /// Handles were asked for.
    pub plus: bool,
    /// All names, in the origin's order.
    pub entries: Vec<Listed>,
    by_cookie: HashMap<u64, usize>,
    by_name: HashMap<Name, usize>,
}

impl CompleteListing {
    /// One of these entries.
    pub fn new(verifier: Verifier, plus: bool, entries: Vec<Listed>) -> CompleteListing {
        let by_cookie = entries.iter().enumerate().map(|(at, entry)| (entry.cookie, at)).collect();
        let by_name = entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at)).collect();
        CompleteListing { verifier, plus, entries, by_cookie, by_name }
    }

    /// The entries behind a cookie, as many as fit into about `bytes` encoded, and whether the directory ends there.
    /// `None` if the cookie is none of this listing.
    pub fn part(&self, cookie: u64, bytes: u32, plus: bool) -> Option<(&[Listed], bool)> {
        let start = if cookie == 0 { 0 } else { self.by_cookie.get(&cookie)? + 1 };
        let rest = self.entries.get(start..)?;
        let mut capacity = bytes as usize;
        let mut count = 0;
        for entry in rest {
            let size = encoded_bytes(entry, plus);
            if size > capacity && count > 0 {
                break;
            }
            capacity = capacity.saturating_sub(size);
            count += 1;
        }
        Some((&rest[..count], count == rest.len()))
    }

    /// Is the name there?
    pub fn contains(&self, name: &Name) -> bool {
        self.by_name.contains_key(name)
    }
}

/// What an entry takes in a READDIR or READDIRPLUS reply of v3: its fixed words, and the padded strings.
fn encoded_bytes(entry: &Listed, plus: bool) -> usize {
    let name = entry.name.as_bytes().len().next_multiple_of(4);
    let handle = entry.handle.map_or(0, |handle| handle.as_bytes().len().next_multiple_of(4));
    if plus { 24 + name + 4 + 84 + 8 + handle } else { 24 + name }
}

/// What has become of a name since a listing was read, by our own hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It was made.
    There,
    /// It was removed.
    Gone,
    /// It was one or the other.
    Unknown,
}

/// Names that may have changed since; with more the listing is given up.
const EDITS_MAX: usize = 4096;

/// A listing that is valid, in memory or only in the index.
#[derive(Clone, Debug)]
pub struct KnownListing {
    /// Its number in the index.
    pub id: u64,
    /// Part of it was read before the directory's state was settled: good until the next open.
    pub racy: bool,
    /// The listing, if it has been read.
    pub complete: Option<Arc<CompleteListing>>,
    /// What we changed since, under a lease. Then it still says which names there are not, and is not read out any more.
    pub edits: HashMap<Name, Edit>,
}

impl KnownListing {
    /// One that was just read, or is in the index.
    pub fn new(id: u64, racy: bool, complete: Option<Arc<CompleteListing>>) -> KnownListing {
        KnownListing { id, racy, complete, edits: HashMap::new() }
    }

    /// Does the name lead nowhere, as far as this tells?
    pub fn lacks(&self, name: &Name) -> bool {
        match self.edits.get(name) {
            Some(edit) => *edit == Edit::Gone,
            None => self.complete.as_ref().is_some_and(|complete| !complete.contains(name)),
        }
    }

    /// A name was changed. False if there are too many of them.
    pub fn edit(&mut self, name: &Name, edit: Edit) -> bool {
        self.edits.insert(name.clone(), edit);
        self.edits.len() <= EDITS_MAX
    }
}

/// The beginning of a directory.
#[derive(Debug)]
pub struct Gathering {
    verifier: Verifier,
    plus: bool,
    entries: Vec<Listed>,
    /// Where the next part has to begin.
    next: u64,
    /// Some of it was read before the state was settled.
    pub racy: bool,
}

impl Gathering {
    /// The first part.
    pub fn begin(part: &Listing, plus: bool, racy: bool) -> Gathering {
        let mut gathering = Gathering { verifier: part.verifier, plus, entries: Vec::new(), next: 0, racy };
        gathering.take(part);
        gathering
    }

    /// Another part, read at `cookie`. False if it does not join on.
    pub fn add(&mut self, cookie: u64, part: &Listing, plus: bool, racy: bool) -> bool {
        let joins = cookie == self.next && part.verifier == self.verifier && plus == self.plus;
        if joins {
            self.racy |= racy;
            self.take(part);
        }
        joins
    }

    /// Too much to keep?
    pub fn is_too_large(&self) -> bool {
        self.entries.len() > ENTRIES_MAX
    }

    /// The end was reached.
    pub fn complete(self) -> CompleteListing {
        CompleteListing::new(self.verifier, self.plus, self.entries)
    }

    fn take(&mut self, part: &Listing) {
        for entry in &part.entries {
            self.next = entry.cookie;
            let handle = entry.node.map(|node| node.handle);
            let (fileid, cookie) = (entry.fileid, entry.cookie);
            self.entries.push(Listed { name: entry.name.clone(), fileid, cookie, handle });
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
        assert_eq!(complete.entries.len(), 5);
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

    #[test]
    fn parts_are_cut_to_size_and_go_on_at_any_cookie() {
        let complete = Gathering::begin(&part(3..103, 1, true), false, false).complete();
        let (mut cookie, mut count) = (0, 0);
        loop {
            let (entries, eof) = complete.part(cookie, 100, false).unwrap();
            assert!(!entries.is_empty() && entries.len() <= 4);
            count += entries.len();
            cookie = entries.last().unwrap().cookie;
            if eof {
                break;
            }
        }
        assert_eq!(count, 100);
        assert_eq!(complete.part(50, 1, false).unwrap().0[0].cookie, 51, "one at least");
        assert!(complete.part(102, 100, false).unwrap().0.is_empty());
        assert!(complete.part(4711, 100, false).is_none());
    }
}
