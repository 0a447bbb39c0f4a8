//! A seat: a hand on a mount, with its open files. It makes the calls of a program and reports their
//! outcomes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::{Hand, Mode, OpenFile};

use crate::program::{Dir, How, Op, Outcome, Place, SLOTS, fill};

/// A caller.
pub struct Seat {
    pub name: String,
    /// The index of its client.
    pub client: usize,
    hand: Hand,
    mount: PathBuf,
    /// The directory of the program, below the mount.
    root: PathBuf,
    slots: [Option<(OpenFile, usize)>; SLOTS],
}

/// A call with its outcome, and the times of its begin and its reply, counted from the start of the program.
#[derive(Debug, Clone)]
pub struct Event {
    pub seat: usize,
    pub op: Op,
    pub outcome: Outcome,
    pub began: Duration,
    pub ended: Duration,
}

impl Seat {
    pub fn new(name: impl Into<String>, client: usize, hand: Hand, mount: PathBuf) -> Seat {
        let root = mount.clone();
        Seat { name: name.into(), client, hand, mount, root, slots: [None; SLOTS] }
    }

    /// Begins a program in a directory of its own, which the first seat makes.
    pub fn begin(&mut self, directory: &str, makes: bool) -> std::io::Result<()> {
        self.root = self.mount.join(directory);
        if makes {
            self.hand.mkdir(&self.root)?;
            for top in 0..crate::program::TOPS {
                self.hand.mkdir(self.root.join(Dir::Top(top).to_string()))?;
            }
        }
        Ok(())
    }

    /// Closes the files that are still open.
    pub fn end(&mut self) {
        for slot in &mut self.slots {
            if let Some((file, _)) = slot.take() {
                let _ = self.hand.close(file);
            }
        }
    }

    /// Makes a call. After a link or mkdir it makes another call to look at the object, because another seat
    /// may have changed the name since.
    pub fn call(&mut self, seat: usize, op: &Op, since: Instant) -> Vec<Event> {
        let event = self.call_once(seat, op, since);
        match op {
            Op::Link(_, place) | Op::Mkdir(place) if event.outcome == Outcome::Inode(None) => {
                let look = self.call_once(seat, &Op::Look(*place), since);
                vec![event, look]
            }
            _ => vec![event],
        }
    }

    fn call_once(&mut self, seat: usize, op: &Op, since: Instant) -> Event {
        let began = since.elapsed();
        let outcome = self.act(op).unwrap_or_else(|error| match error.raw_os_error() {
            Some(number) => Outcome::Failed(number),
            None => Outcome::Broken(error.to_string()),
        });
        Event { seat, op: op.clone(), outcome, began, ended: since.elapsed() }
    }

    fn act(&mut self, op: &Op) -> std::io::Result<Outcome> {
        let done = |()| Outcome::Done;
        match op {
            Op::Look(place) => {
                let stat = self.hand.stat(self.at(*place))?;
                let is_directory = stat.mode & 0o170_000 == 0o040_000;
                Ok(Outcome::Stat { ino: stat.ino, size: stat.size, is_directory })
            }
            Op::Open { place, access, slot } => {
                if self.slots[*slot].is_some() {
                    return Ok(Outcome::Skipped);
                }
                let opened = self.hand.open(self.at(*place), Mode::As(*access))?;
                self.slots[*slot] = Some((opened.file, place.name.unit()));
                Ok(Outcome::Inode(Some(opened.ino)))
            }
            Op::Link(from, to) => {
                self.hand.link(self.at(*from), self.at(*to))?;
                Ok(Outcome::Inode(None))
            }
            Op::Mkdir(place) => {
                self.hand.mkdir(self.at(*place))?;
                Ok(Outcome::Inode(None))
            }
            Op::Rename(from, to) => self.hand.rename(self.at(*from), self.at(*to)).map(done),
            Op::Unlink(place) => self.hand.remove(self.at(*place)).map(done),
            Op::Rmdir(place) => self.hand.rmdir(self.at(*place)).map(done),
            Op::List(dir) => {
                let names = self.hand.list(self.root.join(dir.to_string()))?;
                let names = names.into_iter().map(|name| String::from_utf8_lossy(&name).into_owned());
                Ok(Outcome::Names(names.filter(|name| !name.starts_with(".nfs")).collect()))
            }
            Op::Pause { milliseconds } => {
                std::thread::sleep(Duration::from_millis(*milliseconds));
                Ok(Outcome::Done)
            }
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Cut { slot, .. }
            | Op::Sync { slot }
            | Op::Close { slot }
            | Op::Lock { slot, .. }
            | Op::Unlock { slot } => match self.slots[*slot] {
                Some((file, unit)) => self.on(op, *slot, file, unit),
                None => Ok(Outcome::Skipped),
            },
        }
    }

    /// Makes a call on an open file.
    fn on(&mut self, op: &Op, slot: usize, file: OpenFile, unit: usize) -> std::io::Result<Outcome> {
        let hand = &mut self.hand;
        let bytes = |cells: usize| (cells * unit) as u64;
        match op {
            Op::Read { cells, map, .. } => {
                let (at, length) = (bytes(cells.start), cells.len() * unit);
                let data =
                    if *map { hand.read_map(file, at, length) } else { hand.read_at(file, at, length) };
                data.map(Outcome::Data)
            }
            Op::Write { cells, how, id, .. } => {
                let data: Vec<u8> = cells.clone().flat_map(|cell| fill(*id, cell, unit)).collect();
                match how {
                    How::Call => hand.write_at(file, bytes(cells.start), &data)?,
                    how => hand.write_map(file, bytes(cells.start), &data, *how == How::MapSync)?,
                }
                Ok(Outcome::Done)
            }
            Op::Cut { cells, .. } => hand.set_size(file, bytes(*cells)).map(|()| Outcome::Done),
            Op::Sync { .. } => hand.sync(file).map(|()| Outcome::Done),
            Op::Lock { cells, exclusive, .. } => {
                hand.lock(file, *exclusive, &(bytes(cells.start)..bytes(cells.end))).map(Outcome::Locked)
            }
            Op::Unlock { .. } => {
                hand.unlock(file, &(0..bytes(crate::program::CELLS))).map(|()| Outcome::Done)
            }
            _ => {
                self.slots[slot] = None;
                hand.close(file).map(|()| Outcome::Done)
            }
        }
    }

    fn at(&self, place: Place) -> PathBuf {
        self.root.join(place.to_string())
    }
}
