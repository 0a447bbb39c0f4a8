//! The table of exports. Exports come and go while the server runs, and readers never wait for that.
//!
//! An export has a slot, and no export with another id ever gets the same slot. So a set of
//! exports ([`Admitting`]) that somebody keeps never names another export than it did.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rpc::TransportSecurity;
use vfs::{Clock, SystemClock};

use super::hosts::{self, HostDatabase};
use super::pseudo::Pseudo;
use super::{Export, ExportId};

/// The exports that a process can have had: the size of a set is limited by it.
pub const SLOTS_MAX: usize = 4096;

/// The exports that admit a peer: one bit for each slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitting(Vec<u64>);

impl Admitting {
    /// For a table of at most 64 exports.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(bits: u64) -> Admitting {
        Admitting(vec![bits])
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Does the set contain every export of the other set?
    pub fn covers(&self, other: &Admitting) -> bool {
        other.0.iter().enumerate().all(|(at, word)| word & !self.0.get(at).copied().unwrap_or(0) == 0)
    }
}

/// All exports of a server.
#[derive(Debug)]
pub struct Exports {
    now: ArcSwap<Table>,
    /// The directories above them.
    tree: ArcSwap<Pseudo>,
    /// One change at a time.
    changing: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    /// The next export with a new id gets this slot.
    next_slot: usize,
    /// The slots of ids that were here. One that comes back gets its slot again.
    slots: HashMap<ExportId, usize>,
}

#[derive(Clone, Debug)]
struct Entry {
    slot: usize,
    export: Arc<Export>,
}

/// Why an export cannot be in the table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportsError {
    /// A path that clients could not name.
    #[error("export path `{0}` must be absolute, for instance /srv")]
    Relative(String),
    /// The same path twice.
    #[error("`{0}` is exported twice: give one of the two another path")]
    Twice(String),
    /// Two exports with the same id in handles.
    #[error("`{0}` and `{1}` get the same export id by chance: change one of the paths")]
    SameId(String, String),
    /// No slot is left.
    #[error("`{0}` is one export too many: a process can have had {SLOTS_MAX}; restart it")]
    TooMany(String),
}

impl Table {
    fn exports(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.entries.iter().map(|entry| &entry.export)
    }

    fn add(&mut self, export: Arc<Export>) -> Result<(), ExportsError> {
        if !export.path.starts_with('/') {
            return Err(ExportsError::Relative(export.path.clone()));
        }
        for Entry { export: other, .. } in &self.entries {
            if other.path == export.path {
                return Err(ExportsError::Twice(export.path.clone()));
            }
            if other.id == export.id {
                return Err(ExportsError::SameId(other.path.clone(), export.path.clone()));
            }
        }
        let slot = match self.slots.get(&export.id) {
            Some(slot) => *slot,
            None if self.next_slot == SLOTS_MAX => {
                return Err(ExportsError::TooMany(export.path.clone()));
            }
            None => {
                self.slots.insert(export.id, self.next_slot);
                self.next_slot += 1;
                self.next_slot - 1
            }
        };
        self.entries.push(Entry { slot, export });
        Ok(())
    }
}

impl Default for Exports {
    /// No export.
    fn default() -> Exports {
        Exports::of(Table::default())
    }
}

impl Exports {
    fn of(table: Table) -> Exports {
        let tree = Pseudo::new(table.exports(), SystemClock.wall());
        let (now, tree) = (ArcSwap::from_pointee(table), ArcSwap::from_pointee(tree));
        Exports { now, tree, changing: Mutex::default() }
    }

    /// Checks and keeps the exports.
    ///
    /// # Errors
    /// The first export that cannot be beside those before it.
    pub fn new(exports: Vec<Export>) -> Result<Exports, ExportsError> {
        let mut table = Table::default();
        exports.into_iter().try_for_each(|export| table.add(Arc::new(export)))?;
        Ok(Exports::of(table))
    }

    /// Adds an export.
    ///
    /// # Errors
    /// If it cannot be beside the others.
    pub(crate) fn add(&self, export: Arc<Export>) -> Result<(), ExportsError> {
        let _changing = self.changing.lock();
        let mut table = Table::clone(&self.now.load());
        table.add(export)?;
        self.change(table);
        Ok(())
    }

    fn change(&self, table: Table) {
        let tree = self.tree.load().over(table.exports(), SystemClock.wall());
        self.now.store(Arc::new(table));
        self.tree.store(Arc::new(tree));
    }

    /// The directories above exports, now. A later tree has all nodes of this one.
    pub(crate) fn tree(&self) -> Arc<Pseudo> {
        self.tree.load_full()
    }

    /// Takes an export out.
    pub(crate) fn remove(&self, id: ExportId) -> Option<Arc<Export>> {
        let _changing = self.changing.lock();
        let mut table = Table::clone(&self.now.load());
        let at = table.entries.iter().position(|entry| entry.export.id == id)?;
        let removed = table.entries.remove(at).export;
        self.change(table);
        Some(removed)
    }

    /// The export that a handle names.
    pub fn by_id(&self, id: ExportId) -> Option<Arc<Export>> {
        self.find(|export| export.id == id)
    }

    /// The export that contains a path, and the rest of the path below it.
    pub fn by_path<'p>(&self, path: &'p [u8]) -> Option<(Arc<Export>, &'p [u8])> {
        let below = |export: &Export| -> Option<&'p [u8]> {
            let rest = path.strip_prefix(export.path.trim_end_matches('/').as_bytes())?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
        };
        let candidates = self.iter().filter_map(|export| below(&export).map(|rest| (export, rest)));
        candidates.min_by_key(|(_, rest)| rest.len())
    }

    /// May this host get anything in plain text?
    pub fn shows_plainly(&self, host: IpAddr) -> bool {
        self.any(|export| export.options().shows(host, TransportSecurity::None))
    }

    /// The exports that a peer may use over a connection of this security, for a proven user or another one.
    pub fn admitting(&self, peer: SocketAddr, security: TransportSecurity, is_proven: bool) -> Admitting {
        let table = self.now.load();
        let mut words = vec![0; table.next_slot.div_ceil(64)];
        let admits = |entry: &&Entry| entry.export.options().takes(peer, security, is_proven);
        for Entry { slot, .. } in table.entries.iter().filter(admits) {
            words[slot / 64] |= 1 << (slot % 64);
        }
        Admitting(words)
    }

    /// Looks the names of clients up, which may block for long. Returns whether any of them has other
    /// addresses than before.
    pub fn look_up_clients(&self, database: &dyn HostDatabase) -> bool {
        let names: Vec<_> =
            self.iter().flat_map(|export| export.options().clients.named().to_vec()).collect();
        hosts::look_up(&names, database, Instant::now())
    }

    /// Is this so for an export?
    pub fn any(&self, mut is_so: impl FnMut(&Export) -> bool) -> bool {
        self.now.load().entries.iter().any(|entry| is_so(&entry.export))
    }

    /// The first export of which this is so.
    pub fn find(&self, mut is_so: impl FnMut(&Export) -> bool) -> Option<Arc<Export>> {
        self.now.load().entries.iter().map(|entry| &entry.export).find(|export| is_so(export)).cloned()
    }

    /// All exports at this moment.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Export>> + use<> {
        let table = self.now.load_full();
        (0..table.entries.len()).map(move |at| table.entries[at].export.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::ExportOptions;

    fn export(path: &str) -> Arc<Export> {
        Arc::new(Export::awaited(ExportId::of(path), path.to_owned(), ExportOptions::default()))
    }

    #[test]
    fn a_set_covers_what_is_in_it() {
        let of = |words: &[u64]| Admitting(words.to_vec());
        assert!(of(&[]).is_empty() && of(&[0, 0]).is_empty() && !of(&[0, 1]).is_empty());
        assert!(of(&[3, 1]).covers(&of(&[1, 1])) && of(&[1]).covers(&of(&[1, 0])));
        assert!(!of(&[1, 1]).covers(&of(&[3, 1])) && !of(&[3]).covers(&of(&[3, 1])));
    }

    #[test]
    fn an_export_that_comes_does_not_get_the_slot_of_one_that_went() {
        let exports = Exports::default();
        let peer = "10.0.0.1:700".parse().unwrap();
        let admitting = || exports.admitting(peer, TransportSecurity::None, false);
        exports.add(export("/a")).unwrap();
        exports.add(export("/b")).unwrap();
        assert_eq!(exports.add(export("/b")), Err(ExportsError::Twice("/b".into())));
        let both = admitting();
        assert_eq!(exports.remove(ExportId::of("/a")).unwrap().path, "/a");
        assert!(exports.remove(ExportId::of("/a")).is_none() && exports.by_id(ExportId::of("/a")).is_none());
        exports.add(export("/c")).unwrap();
        assert!(both.covers(&Admitting(vec![2])) && !both.covers(&admitting()), "{:?}", admitting());
        exports.remove(ExportId::of("/c")).unwrap();
        exports.add(export("/a")).unwrap();
        assert_eq!(admitting(), both, "it has come back");
        assert_eq!(exports.iter().map(|export| export.path.clone()).collect::<Vec<_>>(), ["/b", "/a"]);
    }

    #[test]
    fn slots_are_limited() {
        let exports = Exports::default();
        for number in 0..SLOTS_MAX {
            let path = format!("/{number}");
            exports.add(export(&path)).unwrap();
            exports.remove(ExportId::of(&path)).unwrap();
        }
        assert_eq!(exports.add(export("/a")), Err(ExportsError::TooMany("/a".into())));
        exports.add(export("/7")).unwrap();
    }
}
