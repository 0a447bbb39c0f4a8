//! Does a reader open files one after the other, and which?

use vfs::Name;

use super::roster::{Entry, Order, Roster, extension};

/// Files between two opened ones that are examined.
const SKIPPED_MAX: u32 = 512;
/// After so many opens that do not fit, the reader is at random.
const STRAYS_MAX: u32 = 2;

/// The files that a reader has opened.
#[derive(Debug, Default)]
pub struct Sequence {
    /// The extension of the last one.
    extension: Option<Box<[u8]>>,
    /// Only files with this extension are read.
    only: Option<Box<[u8]>>,
    /// Opens in a row that fitted.
    run: u32,
    /// Opens in a row that did not.
    strays: u32,
    reads: bool,
}

impl Sequence {
    /// Does the reader open files one after the other?
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Has it just turned out to?
    pub fn has_begun(&self) -> bool {
        self.reads && self.run == 2
    }

    /// A guess was used.
    pub fn follows(&mut self) {
        self.run = self.run.saturating_add(1).max(3);
        self.strays = 0;
    }

    /// A file is opened, in a directory where `last` was opened before. If it is the next one in some order,
    /// returns that order. `order` is the one assumed so far.
    pub fn open(&mut self, roster: &Roster, order: Order, last: Option<&Name>, name: &Name) -> Option<Order> {
        let ending = extension(name);
        let fit = [order, order.other()]
            .into_iter()
            .find_map(|order| Some((order, fits(roster, order, last, name, self.extension.as_deref())?)));
        self.extension = ending.map(Box::from);
        let first = self.run == 0 && self.strays == 0;
        let Some((order, alike)) = fit.filter(|_| !first) else {
            if !first && fit.is_none() {
                self.strays += 1;
                self.reads &= self.strays < STRAYS_MAX;
            }
            self.run = 1;
            return None;
        };
        self.run = self.run.saturating_add(1);
        self.strays = 0;
        self.reads |= self.run >= 2;
        let same = self.only.as_deref() == ending;
        self.only = if alike == Alike::Extension || (same && ending.is_some()) {
            self.extension.clone()
        } else {
            None
        };
        Some(order)
    }

    /// Is this one of the files that the reader will open?
    pub fn takes(&self, entry: &Entry) -> bool {
        self.only.as_deref().is_none_or(|only| entry.extension() == Some(only))
    }
}

/// Which files were passed over between two opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alike {
    /// None.
    All,
    /// Those with another extension.
    Extension,
}

/// Is `name` the next file behind `last` in this order, or the first one?
fn fits(
    roster: &Roster,
    order: Order,
    last: Option<&Name>,
    name: &Name,
    before: Option<&[u8]>,
) -> Option<Alike> {
    let to = roster.rank(order, name)?;
    let from = match last {
        Some(last) => roster.rank(order, last)? + 1,
        None => 0,
    };
    if to < from || to - from > SKIPPED_MAX {
        return None;
    }
    let files = || (from..to).filter_map(|rank| roster.at(order, rank)).filter(|entry| entry.is_file());
    if files().next().is_none() {
        return Some(Alike::All);
    }
    let ending = extension(name).filter(|ending| before == Some(ending))?;
    files().all(|entry| entry.extension() != Some(ending)).then_some(Alike::Extension)
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::roster;
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    /// Opens the files one after the other in one directory. Returns the orders that fitted.
    fn opened(sequence: &mut Sequence, roster: &Roster, names: &[&str]) -> Vec<Option<Order>> {
        let mut last = None;
        let mut orders = Vec::new();
        for text in names {
            let opened = name(text);
            orders.push(sequence.open(roster, Order::Listed, last.as_ref(), &opened));
            last = Some(opened);
        }
        orders
    }

    #[test]
    fn two_files_in_a_row_are_a_sequence_in_either_order() {
        let roster = roster(&["d", "a", "sub/", "c", "b"]);
        let mut listed = Sequence::default();
        assert_eq!(opened(&mut listed, &roster, &["d", "a"]), [None, Some(Order::Listed)]);
        assert!(listed.reads());
        let mut sorted = Sequence::default();
        assert_eq!(
            opened(&mut sorted, &roster, &["a", "b", "c"]),
            [None, Some(Order::Sorted), Some(Order::Sorted)]
        );
        assert!(sorted.reads());
    }

    #[test]
    fn random_opens_are_none() {
        let names: Vec<String> = (0..100).map(|n| format!("f{n:02}")).collect();
        let roster = roster(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut sequence = Sequence::default();
        opened(&mut sequence, &roster, &["f10", "f50", "f20", "f70", "f05"]);
        assert!(!sequence.reads());
        opened(&mut sequence, &roster, &["f60", "f61", "f62"]);
        assert!(sequence.reads());
        opened(&mut sequence, &roster, &["f10", "f90", "f30"]);
        assert!(!sequence.reads(), "it goes on at random");
    }

    #[test]
    fn files_of_one_extension_are_a_sequence_too() {
        let roster = roster(&["a.h", "a.c", "b.c", "b.h", "c.o", "c.h", "d.c"]);
        let mut sequence = Sequence::default();
        opened(&mut sequence, &roster, &["a.h", "b.h"]);
        assert!(sequence.reads());
        assert!(sequence.takes(roster.entry(&name("c.h")).unwrap()));
        assert!(!sequence.takes(roster.entry(&name("d.c")).unwrap()));
        opened(&mut sequence, &roster, &["a.c", "b.c"]);
        assert!(sequence.takes(roster.entry(&name("d.c")).unwrap()), "it changes with the reader");
    }
}
