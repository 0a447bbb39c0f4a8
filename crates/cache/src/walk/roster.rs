//! The entries of a directory, in the two orders in which readers take them.

use std::collections::HashMap;

use vfs::{Handle, Name};

/// The order in which a reader takes the entries of directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As READDIR returns them: find(1), grep(1) and tar(1).
    #[default]
    Listed,
    /// By name, as ls(1), the shell and git(1) do. A directory sorts as if its name ended with a slash.
    Sorted,
}

impl Order {
    /// The other order.
    pub fn other(self) -> Order {
        match self {
            Order::Listed => Order::Sorted,
            Order::Sorted => Order::Listed,
        }
    }
}

/// What an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// The bytes that a guess of it would bring: its size, or none if they are cached.
        bytes: u64,
    },
    /// Anything else.
    Other,
}

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// The object that the name leads to.
    pub handle: Handle,
    /// What that object is.
    pub kind: Kind,
}

impl Entry {
    /// Is this a regular file?
    pub fn is_file(&self) -> bool {
        matches!(self.kind, Kind::File { .. })
    }

    /// The part of the name behind its last dot. `None` if there is no dot, or only a leading one.
    pub fn extension(&self) -> Option<&[u8]> {
        extension(&self.name)
    }
}

/// The part of a name behind its last dot. Numbers do not count: they tell files of one kind apart.
pub fn extension(name: &Name) -> Option<&[u8]> {
    let bytes = name.as_bytes();
    let dot = bytes.iter().rposition(|byte| *byte == b'.').filter(|at| *at > 0)?;
    let extension = &bytes[dot + 1..];
    extension.iter().any(|byte| !byte.is_ascii_digit()).then_some(extension)
}

/// The entries of a directory, as a listing has shown them.
#[derive(Debug)]
pub struct Roster {
    entries: Vec<Entry>,
    by_name: HashMap<Name, u32>,
    /// The entries by name.
    sorted: Vec<u32>,
    /// The place of each entry in `sorted`.
    ranks: Vec<u32>,
    complete: bool,
}

impl Roster {
    /// A roster of these entries, in the order of the listing: all of the directory's if it is `complete`.
    pub fn new(entries: Vec<Entry>, complete: bool) -> Roster {
        let key = |at: &u32| {
            let entry = &entries[*at as usize];
            let slash: &[u8] = if entry.kind == Kind::Directory { b"/" } else { b"" };
            [entry.name.as_bytes(), slash].concat()
        };
        let mut sorted: Vec<u32> = (0..entries.len() as u32).collect();
        sorted.sort_by_cached_key(key);
        let mut ranks = vec![0; entries.len()];
        for (rank, at) in sorted.iter().enumerate() {
            ranks[*at as usize] = rank as u32;
        }
        let by_name = entries.iter().enumerate().map(|(at, entry)| (entry.name.clone(), at as u32)).collect();
        Roster { entries, by_name, sorted, ranks, complete }
    }

    /// Are these all entries of the directory?
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The rank of a name in an order.
    pub fn rank(&self, order: Order, name: &Name) -> Option<u32> {
        let at = *self.by_name.get(name)?;
        match order {
            Order::Listed => Some(at),
            Order::Sorted => self.ranks.get(at as usize).copied(),
        }
    }

    /// The entry of a rank.
    pub fn at(&self, order: Order, rank: u32) -> Option<&Entry> {
        let at = match order {
            Order::Listed => rank,
            Order::Sorted => *self.sorted.get(rank as usize)?,
        };
        self.entries.get(at as usize)
    }

    /// The entry of a name. For tests.
    #[cfg(test)]
    pub fn entry(&self, name: &Name) -> Option<&Entry> {
        self.at(Order::Listed, self.rank(Order::Listed, name)?)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A roster of names. A name that ends with a slash is a directory; any other is a file of 100 bytes.
    pub fn roster(names: &[&str]) -> Roster {
        let entry = |text: &&str| {
            let (bare, kind) = match text.strip_suffix('/') {
                Some(bare) => (bare, Kind::Directory),
                None => (*text, Kind::File { bytes: 100 }),
            };
            let name = Name::new(bare.as_bytes()).unwrap();
            Entry { handle: Handle::new(bare.as_bytes()).unwrap(), name, kind }
        };
        Roster::new(names.iter().map(entry).collect(), true)
    }

    #[test]
    fn both_orders_are_found_again() {
        let roster = roster(&["b", "a.x", "a/", "c"]);
        let names = |order: Order| -> Vec<String> {
            (0..4).map(|rank| roster.at(order, rank).unwrap().name.to_string()).collect()
        };
        assert_eq!(names(Order::Listed), ["b", "a.x", "a", "c"]);
        assert_eq!(names(Order::Sorted), ["a.x", "a", "b", "c"], "as git sorts: `a/` behind `a.x`");
        for order in [Order::Listed, Order::Sorted] {
            for rank in 0..4 {
                let entry = roster.at(order, rank).unwrap();
                assert_eq!(roster.rank(order, &entry.name), Some(rank));
            }
        }
        assert!(roster.at(Order::Sorted, 4).is_none());
    }

    #[test]
    fn numbers_are_no_extensions() {
        let of = |text: &str| extension(&Name::new(text.as_bytes()).unwrap()).map(<[u8]>::to_vec);
        assert_eq!(of("a.tar.gz"), Some(b"gz".to_vec()));
        assert_eq!([of(".profile"), of("frame.0017"), of("README")], [None, None, None]);
    }
}
