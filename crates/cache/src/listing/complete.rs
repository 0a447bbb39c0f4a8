//! The complete listing of a directory, packed: some 30 bytes an entry besides its name and handle.
//!
//! Entries lie one behind the other in the origin's order. Two tables of positions find an entry by its
//! cookie and by its name. The index keeps the same bytes, in pieces of whole entries.

use vfs::{Handle, Name, Verifier};

use super::Listed;

/// The length of a handle that stands for none.
const NO_HANDLE: u8 = u8::MAX;
/// Bytes of an entry besides its name and its handle: two lengths, the inode number and the cookie.
const FIXED_BYTES: usize = 1 + 8 + 8 + 1;

/// Entries, one behind the other.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    bytes: Vec<u8>,
    /// Where each entry begins.
    starts: Vec<u32>,
}

impl Packed {
    /// Adds an entry. False if there is no capacity for it: 4 GiB.
    pub fn push(&mut self, name: &Name, fileid: u64, cookie: u64, handle: Option<&Handle>) -> bool {
        let Ok(start) = u32::try_from(self.bytes.len()) else { return false };
        self.starts.push(start);
        self.bytes.push(name.as_bytes().len() as u8);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(&fileid.to_le_bytes());
        self.bytes.extend_from_slice(&cookie.to_le_bytes());
        self.bytes.push(handle.map_or(NO_HANDLE, |handle| handle.as_bytes().len() as u8));
        self.bytes.extend_from_slice(handle.map_or(&[], |handle| handle.as_bytes()));
        true
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The memory that the entries take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + size_of::<u32>() * self.starts.len()
    }

    /// Adds the entries of a piece. `None` if the piece is no sequence of valid entries.
    pub fn add_piece(&mut self, piece: &[u8]) -> Option<()> {
        let mut rest = piece;
        while !rest.is_empty() {
            let start = u32::try_from(self.bytes.len() + piece.len() - rest.len()).ok()?;
            let entry = Entry::read(rest)?;
            Name::new(entry.name).ok()?;
            rest = rest.get(entry.bytes()..)?;
            self.starts.push(start);
        }
        self.bytes.extend_from_slice(piece);
        Some(())
    }

    fn entry(&self, at: usize) -> Option<Entry<'_>> {
        self.starting_at(*self.starts.get(at)?)
    }

    fn starting_at(&self, start: u32) -> Option<Entry<'_>> {
        Entry::read(self.bytes.get(start as usize..)?)
    }
}

/// An entry in its bytes.
#[derive(Clone, Copy)]
struct Entry<'a> {
    name: &'a [u8],
    fileid: u64,
    cookie: u64,
    handle: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    fn read(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let (length, rest) = bytes.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*length))?;
        let (fileid, rest) = rest.split_first_chunk()?;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first()?;
        let handle = match *length {
            NO_HANDLE => None,
            length => Some(rest.get(..usize::from(length))?),
        };
        if handle.is_some_and(|handle| handle.len() > Handle::MAX) {
            return None;
        }
        let (fileid, cookie) = (u64::from_le_bytes(*fileid), u64::from_le_bytes(*cookie));
        Some(Entry { name, fileid, cookie, handle })
    }

    fn bytes(&self) -> usize {
        FIXED_BYTES + self.name.len() + self.handle.map_or(0, <[u8]>::len)
    }

    fn listed(&self) -> Option<Listed> {
        let name = Name::new(self.name).ok()?;
        let handle = self.handle.and_then(Handle::new);
        Some(Listed { name, fileid: self.fileid, cookie: self.cookie, handle })
    }

    /// The size of the entry in a READDIR or READDIRPLUS reply of NFSv3: its fixed words, and the padded
    /// strings.
    fn encoded_bytes(&self, plus: bool) -> usize {
        let name = self.name.len().next_multiple_of(4);
        let handle = self.handle.map_or(0, |handle| handle.len().next_multiple_of(4));
        if plus { 24 + name + 4 + 84 + 8 + handle } else { 24 + name }
    }
}

/// The complete listing of a directory.
#[derive(Debug)]
pub struct CompleteListing {
    /// The origin's verifier.
    pub verifier: Verifier,
    /// Handles were requested (READDIRPLUS).
    pub plus: bool,
    /// All names, in the origin's order.
    entries: Packed,
    /// The entries in the order of their cookies. Empty if that is their own order.
    by_cookie: Box<[u32]>,
    /// The entries in the order of their names.
    by_name: Box<[u32]>,
}

impl CompleteListing {
    /// A listing of these entries.
    pub fn new(verifier: Verifier, plus: bool, mut entries: Packed) -> CompleteListing {
        entries.bytes.shrink_to_fit();
        entries.starts.shrink_to_fit();
        let numbers = || (0..entries.len() as u32).collect::<Box<[u32]>>();
        let cookie = |at: &u32| entries.entry(*at as usize).map(|entry| entry.cookie);
        let mut by_cookie = numbers();
        if by_cookie.is_sorted_by_key(cookie) {
            by_cookie = Box::default();
        } else {
            by_cookie.sort_by_cached_key(cookie);
        }
        let mut by_name = numbers();
        let name = |at: &u32| entries.entry(*at as usize).map(|entry| entry.name);
        by_name.sort_unstable_by(|a, b| name(a).cmp(&name(b)));
        CompleteListing { verifier, plus, entries, by_cookie, by_name }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The memory that the listing takes, in bytes.
    pub fn bytes(&self) -> usize {
        let positions = self.by_cookie.len() + self.by_name.len();
        size_of::<CompleteListing>() + self.entries.bytes() + size_of::<u32>() * positions
    }

    /// All entries, in the origin's order.
    pub fn entries(&self) -> impl Iterator<Item = Listed> + '_ {
        self.range(0, self.len())
    }

    /// The handles of the first entries that have one.
    pub fn handles(&self) -> impl Iterator<Item = Handle> + '_ {
        (0..self.len()).filter_map(|at| self.entries.entry(at)?.handle).filter_map(Handle::new)
    }

    /// The entries behind a cookie, as many as fit into about `bytes` encoded, and whether the directory ends
    /// there. `None` if the cookie does not belong to this listing.
    pub fn part(
        &self,
        cookie: u64,
        bytes: u32,
        plus: bool,
    ) -> Option<(impl Iterator<Item = Listed> + '_, bool)> {
        let start = if cookie == 0 { 0 } else { self.position_of(cookie)? + 1 };
        let mut capacity = bytes as usize;
        let mut end = start;
        while let Some(entry) = self.entries.entry(end) {
            let size = entry.encoded_bytes(plus);
            if size > capacity && end > start {
                break;
            }
            capacity = capacity.saturating_sub(size);
            end += 1;
        }
        Some((self.range(start, end), end >= self.len()))
    }

    /// Is the name in the listing?
    pub fn contains(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// The entry of a name.
    pub fn find(&self, name: &Name) -> Option<Listed> {
        let entry = |at: u32| self.entries.entry(at as usize);
        let there = |at: &u32| entry(*at).map(|entry| entry.name).cmp(&Some(name.as_bytes()));
        let at = self.by_name.binary_search_by(there).ok()?;
        entry(*self.by_name.get(at)?)?.listed()
    }

    /// The entries as pieces for the index: at most so many in each.
    pub fn pieces(&self, entries_max: usize) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        let starts = &self.entries.starts;
        starts.chunks(entries_max).enumerate().map(move |(number, piece)| {
            let end = starts.get(number * entries_max + piece.len());
            let end = end.map_or(self.entries.bytes.len(), |end| *end as usize);
            let start = piece.first().map_or(end, |start| *start as usize);
            self.entries.bytes.get(start..end).unwrap_or_default()
        })
    }

    fn range(&self, start: usize, end: usize) -> impl Iterator<Item = Listed> + '_ {
        (start..end).filter_map(|at| self.entries.entry(at)?.listed())
    }

    /// The position of the last entry with this cookie: a faulty origin may give one cookie to several.
    fn position_of(&self, cookie: u64) -> Option<usize> {
        if self.by_cookie.is_empty() {
            let cookie_at = |start: &u32| self.entries.starting_at(*start).map(|entry| entry.cookie);
            let behind = self.entries.starts.partition_point(|start| cookie_at(start) <= Some(cookie));
            let at = behind.checked_sub(1)?;
            return (self.entries.entry(at)?.cookie == cookie).then_some(at);
        }
        let cookie_of = |at: &u32| self.entries.entry(*at as usize).map(|entry| entry.cookie);
        let behind = self.by_cookie.partition_point(|at| cookie_of(at) <= Some(cookie));
        let at = *self.by_cookie.get(behind.checked_sub(1)?)? as usize;
        (self.entries.entry(at)?.cookie == cookie).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(number: u64) -> Name {
        Name::new(format!("n{number}").as_bytes()).unwrap()
    }

    fn listing(cookies: impl IntoIterator<Item = u64>) -> CompleteListing {
        let mut packed = Packed::default();
        for cookie in cookies {
            let handle = Handle::new(&cookie.to_be_bytes()).filter(|_| cookie.is_multiple_of(2));
            assert!(packed.push(&name(cookie), cookie + 1000, cookie, handle.as_ref()));
        }
        CompleteListing::new([1; 8], true, packed)
    }

    fn part(complete: &CompleteListing, cookie: u64, bytes: u32) -> Option<(Vec<u64>, bool)> {
        let (entries, eof) = complete.part(cookie, bytes, false)?;
        Some((entries.map(|listed| listed.cookie).collect(), eof))
    }

    #[test]
    fn parts_are_cut_to_size_and_go_on_at_any_cookie() {
        let complete = listing(3..103);
        let (mut cookie, mut count) = (0, 0);
        loop {
            let (entries, eof) = part(&complete, cookie, 100).unwrap();
            assert!(!entries.is_empty() && entries.len() <= 4);
            count += entries.len();
            cookie = *entries.last().unwrap();
            if eof {
                break;
            }
        }
        assert_eq!(count, 100);
        assert_eq!(part(&complete, 50, 1).unwrap().0, [51], "one at least");
        assert_eq!(part(&complete, 102, 100).unwrap(), (vec![], true));
        assert!(part(&complete, 4711, 100).is_none());
    }
    proptest! {
        /// Cookies in any order: each entry is found by name and by cookie, and the pieces have them all.
        #[test]
        fn every_entry_is_found(cookies in proptest::collection::hash_set(3..5000_u64, 0..80), size in 1..9_usize) {
            let cookies: Vec<u64> = cookies.into_iter().collect();
            let complete = listing(cookies.iter().copied());
            for (at, cookie) in cookies.iter().enumerate() {
                let listed = complete.find(&name(*cookie)).unwrap();
                prop_assert_eq!((listed.cookie, listed.fileid), (*cookie, *cookie + 1000));
                prop_assert_eq!(listed.handle.is_some(), cookie.is_multiple_of(2));
                let (rest, eof) = part(&complete, *cookie, u32::MAX).unwrap();
                prop_assert_eq!((rest.as_slice(), eof), (&cookies[at + 1..], true));
            }
            prop_assert!(!complete.contains(&name(9999)));
            let mut back = Packed::default();
            for piece in complete.pieces(size) {
                back.add_piece(piece).unwrap();
            }
            let back = CompleteListing::new([1; 8], true, back);
            prop_assert_eq!(back.entries().collect::<Vec<_>>(), complete.entries().collect::<Vec<_>>());
        }

        /// No bytes panic, and what is taken can be read.
        #[test]
        fn any_piece_is_entries_or_none(piece in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut packed = Packed::default();
            if packed.add_piece(&piece).is_some() {
                let count = packed.len();
                prop_assert_eq!(CompleteListing::new([0; 8], true, packed).entries().count(), count);
            }
        }
    }
}
