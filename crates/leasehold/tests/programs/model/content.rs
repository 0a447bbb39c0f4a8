//! The possible content of a file: each cell and the size have all values that were written, in order, and
//! which of them are settled.
//!
//! A value is settled when its writer has closed, synced or unlocked the file. An open must show the values
//! settled before it, or later ones. A client sees its own data at once. If two clients write a file at the
//! same time without locks, the file is contested: from then on it may contain anything, and only errors are
//! wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crate::program::{CELLS, data_of};

/// One value of a cell or a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Value {
    /// The number of the change that set it, from 1 on.
    change: u64,
    /// The data of a cell, or a number of cells.
    what: u64,
    client: usize,
    /// When it was settled.
    visible_from: Option<Duration>,
}

/// For each cell, and for the size: the oldest change that may still be shown.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Floors {
    cells: [u64; CELLS],
    size: u64,
}

/// A byte-range lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lock {
    /// Seat and slot.
    holder: (usize, usize),
    cells: Range<usize>,
    exclusive: bool,
}

/// How long a lock may still block another client after a close has ended it.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// A lock that a close has ended.
#[derive(Debug, Clone, Hash)]
struct Left {
    lock: Lock,
    client: usize,
    /// When the close returned.
    at: Duration,
}

/// A file.
#[derive(Debug, Clone, Hash)]
pub struct Content {
    unit: usize,
    cells: Vec<Vec<Value>>,
    sizes: Vec<Value>,
    changes: u64,
    /// For each client, the latest change of the size that an open has shown.
    shown: BTreeMap<usize, u64>,
    contested: bool,
    was_cut: bool,
    locks: Vec<Lock>,
    left: Vec<Left>,
    /// For each client, the end of its last call on the file.
    used: BTreeMap<usize, Duration>,
}

impl Content {
    /// An empty file that a client has made.
    pub fn new(unit: usize, client: usize) -> Content {
        let empty = Value { change: 0, what: 0, client, visible_from: Some(Duration::ZERO) };
        Content {
            unit,
            cells: vec![vec![empty]; CELLS],
            sizes: vec![empty],
            changes: 0,
            shown: BTreeMap::new(),
            contested: false,
            was_cut: false,
            locks: Vec::new(),
            left: Vec::new(),
            used: BTreeMap::new(),
        }
    }

    /// A call of a client on the file has ended.
    pub fn use_by(&mut self, client: usize, ended: Duration) {
        let last = self.used.entry(client).or_default();
        *last = ended.max(*last);
    }

    /// When a client other than this one last used the file.
    pub fn used_by_others(&self, client: usize) -> Option<Duration> {
        self.used.iter().filter(|(user, _)| **user != client).map(|(_, ended)| *ended).max()
    }

    /// The oldest changes that an open, or a lock, of a client may show.
    pub fn floors(&self, client: usize) -> Floors {
        let least = |values: &Vec<Value>| {
            let must =
                values.iter().rev().find(|value| value.visible_from.is_some() || value.client == client);
            must.map_or(0, |value| value.change)
        };
        let mut floors = Floors { cells: [0; CELLS], size: least(&self.sizes) };
        for (floor, values) in floors.cells.iter_mut().zip(&self.cells) {
            *floor = least(values);
        }
        floors
    }

    /// A client has opened the file.
    pub fn opened(&mut self, client: usize) -> Floors {
        let floors = self.floors(client);
        let shown = self.shown.entry(client).or_default();
        *shown = floors.size.max(*shown);
        floors
    }

    /// May this client write without a lock? Yes, if no other client has unsettled changes.
    pub fn is_free_for(&self, client: usize) -> bool {
        let free = |value: &Value| value.client == client || value.visible_from.is_some();
        self.cells.iter().chain([&self.sizes]).flatten().all(free)
    }

    pub fn contest(&mut self) {
        self.contested = true;
    }

    /// Is a map of these cells safe from SIGBUS? Yes, if the file was never truncated and has these cells.
    pub fn may_map(&self, cells: &Range<usize>) -> bool {
        let sizes = || self.sizes.iter().filter(|value| value.visible_from.is_some());
        !self.was_cut && !self.contested && sizes().any(|value| value.what >= cells.end as u64)
    }

    /// Data was written.
    pub fn write(&mut self, client: usize, cells: Range<usize>, data: u64, floors: &mut Floors) {
        self.changes += 1;
        let value = Value { change: self.changes, what: data, client, visible_from: None };
        for cell in cells.clone() {
            self.cells[cell].push(value);
            floors.cells[cell] = self.changes;
        }
        if self.size() < cells.end as u64 {
            self.sizes.push(Value { what: cells.end as u64, ..value });
            floors.size = self.changes;
        }
    }

    /// The size was set.
    pub fn cut(&mut self, client: usize, cells: usize, floors: &mut Floors) {
        self.changes += 1;
        self.was_cut |= (cells as u64) < self.size();
        let value = Value { change: self.changes, what: 0, client, visible_from: None };
        for cell in cells..CELLS {
            self.cells[cell].push(value);
            floors.cells[cell] = self.changes;
        }
        self.sizes.push(Value { what: cells as u64, ..value });
        floors.size = self.changes;
    }

    /// The changes of a client become visible to all clients.
    pub fn settle(&mut self, client: usize, when: Duration) {
        for value in self.cells.iter_mut().chain([&mut self.sizes]).flatten() {
            if value.client == client && value.visible_from.is_none() {
                value.visible_from = Some(when);
            }
        }
    }

    /// May a read return this? Raises the floors, because a read never goes back.
    pub fn read(&self, cells: &Range<usize>, data: &[u8], floors: &mut Floors) -> Result<(), String> {
        if self.contested {
            return Ok(());
        }
        let length =
            |value: &Value| (value.what as usize).min(cells.end).saturating_sub(cells.start) * self.unit;
        let sizes: Vec<&Value> = self.sizes.iter().filter(|value| value.change >= floors.size).collect();
        let Some(size) = sizes.iter().find(|value| length(value) == data.len()) else {
            let may: Vec<usize> = sizes.into_iter().map(length).collect();
            return Err(format!("{} bytes were read, and it may be {may:?}", data.len()));
        };
        floors.size = size.change;
        for (cell, bytes) in cells.clone().zip(data.chunks(self.unit)) {
            let floor = &mut floors.cells[cell];
            let may: Vec<&Value> = self.cells[cell].iter().filter(|value| value.change >= *floor).collect();
            let found = data_of(bytes, cell);
            let Some(value) = may.iter().find(|value| Some(value.what) == found) else {
                let found =
                    found.map_or_else(|| "parts of several data".to_owned(), |id| format!("data {id}"));
                let may: Vec<u64> = may.into_iter().map(|value| value.what).collect();
                return Err(format!("cell {cell} has {found}, and may have {may:?}"));
            };
            *floor = value.change;
        }
        Ok(())
    }

    /// May lstat(2) show this size, in bytes, to a client? A size that was settled `lifetime` before the call
    /// must be visible.
    pub fn may_be(
        &self,
        client: usize,
        size: u64,
        began: Duration,
        lifetime: Duration,
    ) -> Result<(), String> {
        if self.contested {
            return Ok(());
        }
        let due = |value: &&Value| {
            value.client == client || value.visible_from.is_some_and(|when| when + lifetime < began)
        };
        let floor = self.sizes.iter().rev().find(due).map_or(0, |value| value.change);
        let floor = self.shown.get(&client).copied().unwrap_or_default().max(floor);
        let may = self.sizes.iter().filter(|value| value.change >= floor);
        let may: Vec<u64> = may.map(|value| value.what * self.unit as u64).collect();
        if may.contains(&size) { Ok(()) } else { Err(format!("it has {size} bytes, and may have {may:?}")) }
    }

    /// The latest size, in cells.
    fn size(&self) -> u64 {
        self.sizes.last().map_or(0, |value| value.what)
    }

    /// Does a lock of another holder conflict?
    pub fn is_locked(&self, holder: (usize, usize), cells: &Range<usize>, exclusive: bool) -> bool {
        self.locks.iter().any(|lock| lock.is_in_the_way(holder, cells, exclusive))
    }

    /// May a lock of another client still conflict although its holder has closed the file? FUSE sends the
    /// RELEASE after close(2) has returned.
    pub fn may_be_locked(
        &self,
        (holder, client): ((usize, usize), usize),
        cells: &Range<usize>,
        exclusive: bool,
        began: Duration,
    ) -> bool {
        let late = |left: &Left| {
            left.client != client
                && left.at + LEAVING_MAX >= began
                && left.lock.is_in_the_way(holder, cells, exclusive)
        };
        self.left.iter().any(late)
    }

    /// May a holder write these cells?
    pub fn holds(&self, holder: (usize, usize), cells: &Range<usize>) -> bool {
        let covers = |lock: &Lock| lock.cells.start <= cells.start && cells.end <= lock.cells.end;
        self.locks.iter().any(|lock| lock.holder == holder && lock.exclusive && covers(lock))
    }

    /// Does a holder have any lock?
    pub fn has_lock(&self, holder: (usize, usize)) -> bool {
        self.locks.iter().any(|lock| lock.holder == holder)
    }

    pub fn lock(&mut self, holder: (usize, usize), cells: Range<usize>, exclusive: bool) {
        self.locks.push(Lock { holder, cells, exclusive });
    }

    pub fn unlock(&mut self, holder: (usize, usize)) {
        self.locks.retain(|lock| lock.holder != holder);
    }

    /// A holder has closed the file.
    pub fn close(&mut self, holder: (usize, usize), client: usize, at: Duration) {
        self.left.retain(|left| left.at + LEAVING_MAX >= at);
        let ended = self.locks.iter().filter(|lock| lock.holder == holder).cloned();
        self.left.extend(ended.map(|lock| Left { lock, client, at }));
        self.unlock(holder);
    }
}

impl Lock {
    fn is_in_the_way(&self, holder: (usize, usize), cells: &Range<usize>, exclusive: bool) -> bool {
        let overlaps = self.cells.start < cells.end && cells.start < self.cells.end;
        self.holder != holder && overlaps && (self.exclusive || exclusive)
    }
}

impl Floors {
    /// Takes the later change of each pair.
    pub fn raise(&mut self, other: &Floors) {
        for (floor, other) in self.cells.iter_mut().zip(other.cells) {
            *floor = other.max(*floor);
        }
        self.size = self.size.max(other.size);
    }
}

#[cfg(test)]
mod tests {
    use super::Content;
    use crate::program::fill;
    use std::time::Duration;

    const A: usize = 0;
    const B: usize = 1;

    fn data(ids: &[u64]) -> Vec<u8> {
        ids.iter().enumerate().flat_map(|(cell, id)| fill(*id, cell, 512)).collect()
    }

    #[test]
    fn what_is_settled_must_be_seen_and_what_is_not_may_be() {
        let mut file = Content::new(512, A);
        let mut mine = file.opened(A);
        file.write(A, 0..2, 5, &mut mine);
        let mut early = file.opened(B);
        file.settle(A, Duration::ZERO);
        let late = file.opened(B);
        assert!(file.read(&(0..4), &[], &mut early.clone()).is_ok());
        assert!(file.read(&(0..4), &data(&[5, 5]), &mut early).is_ok());
        assert!(file.read(&(0..4), &[], &mut early).is_err(), "seen before");
        assert!(file.read(&(0..4), &[], &mut late.clone()).is_err(), "settled before the open");
        file.write(A, 1..3, 6, &mut mine);
        for may in [&[5, 5][..], &[5, 6, 6], &[5, 5, 6], &[5, 6], &[5, 7]] {
            assert_eq!(file.read(&(0..4), &data(may), &mut late.clone()).is_ok(), may != [5, 7], "{may:?}");
        }
        assert!(file.read(&(0..4), &data(&[5, 5]), &mut mine.clone()).is_err(), "its own");
        file.cut(A, 1, &mut mine);
        assert!(file.read(&(0..4), &data(&[5]), &mut mine.clone()).is_ok());
        assert!(!file.may_map(&(0..1)) && !file.is_free_for(B) && file.is_free_for(A));
    }

    #[test]
    fn locks_exclude() {
        let mut file = Content::new(512, A);
        file.lock((0, 0), 0..4, true);
        assert!(file.is_locked((1, 0), &(3..5), false) && !file.is_locked((1, 0), &(4..5), true));
        assert!(file.holds((0, 0), &(1..3)) && !file.holds((0, 0), &(3..5)) && !file.holds((1, 0), &(1..3)));
        file.close((0, 0), 0, Duration::from_secs(1));
        assert!(!file.is_locked((1, 0), &(0..4), true));
        let late =
            |client, began| file.may_be_locked(((1, 0), client), &(0..4), true, Duration::from_secs(began));
        assert!(late(1, 2) && !late(0, 2) && !late(1, 9));
    }
}
