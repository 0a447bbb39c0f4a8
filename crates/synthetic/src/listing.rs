//! READDIR: the computed names of a directory, then the added ones.

use std::ops::Bound;

use vfs::{Entry, Listing, Name, ReadDir, Status};

use crate::shape::computed_name;
use crate::tree::{Id, Names, Tree};

/// Approximate size of an encoded entry without its name, in READDIR and READDIRPLUS.
const ENTRY_BYTES: u32 = 24;
const ENTRY_PLUS_BYTES: u32 = 200;
/// Limit of the entries of one reply, in bytes.
const LISTING_BYTES_MAX: u32 = 1 << 20;

impl Tree {
    /// Part of a directory. The cookie of a computed name is its
    /// index from [`Entry::FIRST_COOKIE`] on. A verifier of zeros is that of a version 2 client, which has
    /// none.
    pub(crate) fn list(&self, directory: Id, part: ReadDir) -> Result<Listing, Status> {
        let (names, attributes) = (self.names(directory)?, self.attributes(directory)?);
        let known = part.verifier == self.verifier() || part.verifier == [0; 8];
        if part.cookie >= Entry::FIRST_COOKIE && !known {
            return Err(Status::BadCookie);
        }
        let mut reply = Reply { tree: self, part, bytes: 0, entries: Vec::new() };
        let eof = reply.computed(directory, names)? && reply.added(names)?;
        let (entries, directory) = (reply.entries, Some(attributes));
        Ok(Listing { entries, verifier: self.verifier(), eof, directory, directory_lease: None })
    }
}

/// The entries of a reply, up to its size.
struct Reply<'t> {
    tree: &'t Tree,
    part: ReadDir,
    bytes: u32,
    entries: Vec<Entry>,
}

impl Reply<'_> {
    /// Takes the computed names behind the cookie. False if the reply is full.
    fn computed(&mut self, directory: Id, names: Option<&Names>) -> Result<bool, Status> {
        let shape = self.tree.shape;
        let first = self.part.cookie.saturating_add(1).saturating_sub(Entry::FIRST_COOKIE);
        let mut removed = names.map(|names| names.removed.range(first..)).into_iter().flatten().peekable();
        for index in first..shape.names_in(directory) {
            if removed.next_if_eq(&&index).is_some() {
                continue;
            }
            let (name, id) = (computed_name(directory, index)?, shape.child(directory, index));
            if !self.take(name, Entry::FIRST_COOKIE + index, id)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes the added names behind the cookie. False if the reply is full.
    fn added(&mut self, names: Option<&Names>) -> Result<bool, Status> {
        let Some(names) = names else { return Ok(true) };
        for (cookie, name) in names.by_cookie.range((Bound::Excluded(self.part.cookie), Bound::Unbounded)) {
            let Some((_, id)) = names.by_name.get(name) else { continue };
            if !self.take(name.clone(), *cookie, *id)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, name: Name, cookie: u64, id: Id) -> Result<bool, Status> {
        let each = if self.part.plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        self.bytes += each + name.as_bytes().len() as u32;
        if self.bytes > self.part.bytes.min(LISTING_BYTES_MAX) && !self.entries.is_empty() {
            return Ok(false);
        }
        let node = if self.part.plus { Some(self.tree.node(id)?) } else { None };
        self.entries.push(Entry { name, fileid: id, cookie, node, file_type: None });
        Ok(true)
    }
}
