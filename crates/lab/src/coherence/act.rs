//! The acts of a player, and their checks against the ledger.

use super::ledger::{Floors, Opening};
use super::stamp::Stamp;
use super::{BLOCK_BYTES, BLOCKS, Board, CLOSERS, Kept, LOCKERS, OPEN_MAX, Player};
use crate::hand::{Mode, OpenFile};
use crate::rng::Rng;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;

/// ESTALE: the file was removed by another client.
const STALE: i32 = 116;
/// How often an open is tried while the name is being replaced.
const ATTEMPTS_MAX: usize = 5;

/// One player during an act.
pub(super) struct Act<'a> {
    pub(super) number: usize,
    pub(super) player: &'a mut Player,
    pub(super) board: &'a Board,
}

impl Act<'_> {
    /// A random act.
    pub(super) fn any(&mut self, rng: &mut Rng) -> Result<(), String> {
        match rng.below(100) {
            0..20 => self.look(rng.below(CLOSERS), &some_blocks(rng)),
            20..32 => self.open(rng.below(CLOSERS), false),
            32..44 => self.open(rng.below(CLOSERS), true),
            44..46 => self.replace(rng.below(CLOSERS)),
            46..66 if self.player.has_locks => {
                let name = CLOSERS + rng.below(LOCKERS);
                self.locked(name, &some_blocks(rng), rng.below(2) == 0, rng)
            }
            _ => self.on_kept(rng),
        }
    }

    /// A random act on an open file.
    fn on_kept(&mut self, rng: &mut Rng) -> Result<(), String> {
        let closers: Vec<usize> =
            (0..self.player.open.len()).filter(|at| self.player.open[*at].is_closer()).collect();
        if closers.is_empty() {
            return Ok(());
        }
        let at = *rng.pick(&closers);
        let writes = self.player.open[at].writes;
        match rng.below(10) {
            0..3 if writes => self.write(at, &some_blocks(rng)),
            3 if writes => self.sync(at),
            4 if writes => self.cut(at, rng.below(BLOCKS)),
            0..7 => self.read(at, &some_blocks(rng)),
            _ => self.close(at),
        }
    }

    /// Makes the empty file of a name.
    pub(super) fn make(&mut self, name: usize) -> io::Result<()> {
        let opened = self.player.seat.hand.open(self.path(name), Mode::Create)?;
        let mut ledger = self.board.ledger();
        let file = ledger.create(self.number, opened.ino);
        assert_eq!(ledger.add_name(file), name, "lab: coherence: files are made once");
        ledger.end_writing(file);
        self.player.seat.hand.close(opened.file)
    }

    /// Opens, reads and closes a file.
    fn look(&mut self, name: usize, blocks: &Range<usize>) -> Result<(), String> {
        let Some(kept) = self.open_named(name, Mode::Read)? else { return Ok(()) };
        self.player.open.push(kept);
        let at = self.player.open.len() - 1;
        let read = self.read(at, blocks);
        // If the file is stale, it is already closed.
        if self.player.open.len() > at { read.and(self.close(at)) } else { read }
    }

    /// Opens a file and keeps it open. Opens it for writing only if there is no other writer.
    fn open(&mut self, name: usize, writes: bool) -> Result<(), String> {
        if self.player.open.len() >= OPEN_MAX {
            return self.close(0);
        }
        if !writes {
            let kept = self.open_named(name, Mode::Read)?;
            self.player.open.extend(kept);
            return Ok(());
        }
        let file = self.board.ledger().file_of(name);
        if !self.board.ledger().begin_writing(file, self.number) {
            return Ok(());
        }
        // See the header of `coherence`.
        while let Some(at) = self.player.open.iter().position(|kept| kept.file == file) {
            self.close(at)?;
        }
        match self.open_named(name, Mode::Write)? {
            Some(kept) if kept.file == file => self.player.open.push(Kept { writes: true, ..kept }),
            Some(kept) => return Err(format!("file {} opened for writing, and not {file}", kept.file)),
            None => return Err(format!("file {file} is stale, and nobody has replaced it")),
        }
        Ok(())
    }

    /// Opens a file by name. Returns `None` if the name was still being replaced at the last attempt.
    fn open_named(&mut self, name: usize, mode: Mode) -> Result<Option<Kept>, String> {
        for _ in 0..ATTEMPTS_MAX {
            let opening: Opening = self.board.ledger().opening(name);
            let opened = self.player.seat.hand.open(self.path(name), mode);
            let mut ledger = self.board.ledger();
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) if may_move_away(&error) && ledger.is_moving(&opening) => continue,
                Err(error) => return Err(format!("open of name {name}: {error}")),
            };
            let (file, floors) = ledger
                .opened(&opening, self.number, opened.ino)
                .map_err(|what| format!("open of name {name}: {what}"))?;
            drop(ledger);
            self.board.count(|report| report.opens += 1);
            self.note(format!("opens name {name}, file {file}, {mode:?}, floors {floors:?}"));
            return Ok(Some(Kept { open: opened.file, file, writes: false, floors }));
        }
        Ok(None)
    }

    fn read(&mut self, at: usize, blocks: &Range<usize>) -> Result<(), String> {
        let Kept { open, file, mut floors, .. } = self.player.open[at];
        let data = match self.read_blocks(open, blocks) {
            Ok(data) => data,
            Err(error) => return self.lose(at, &error),
        };
        self.check(file, blocks, &data, &mut floors)?;
        self.player.open[at].floors = floors;
        Ok(())
    }

    fn check(
        &self,
        file: usize,
        blocks: &Range<usize>,
        data: &[u8],
        floors: &mut Floors,
    ) -> Result<(), String> {
        let ledger = self.board.ledger();
        let checked = ledger.check(file, blocks.clone(), data, floors);
        self.board.count(|report| report.reads += 1);
        self.note(format!("reads {blocks:?} of file {file}, {} bytes, floors {floors:?}", data.len()));
        checked.map_err(|what| format!("{what}\n{}", ledger.tell(file)))
    }

    fn write(&mut self, at: usize, blocks: &Range<usize>) -> Result<(), String> {
        let Kept { open, file, .. } = self.player.open[at];
        match self.write_blocks(open, file, blocks) {
            Ok(events) => {
                for (block, event) in events {
                    self.player.open[at].floors[block] = event;
                }
                Ok(())
            }
            Err(error) => self.lose(at, &error),
        }
    }

    fn sync(&mut self, at: usize) -> Result<(), String> {
        let Kept { open, file, .. } = self.player.open[at];
        if let Err(error) = self.player.seat.hand.sync(open) {
            return self.lose(at, &error);
        }
        self.board.ledger().settle(file, 0..BLOCKS, self.number, true);
        self.note(format!("syncs file {file}"));
        Ok(())
    }

    fn cut(&mut self, at: usize, blocks: usize) -> Result<(), String> {
        let Kept { open, file, .. } = self.player.open[at];
        self.note(format!("cuts file {file} to {blocks} blocks"));
        self.board.ledger().cut(file, blocks);
        if let Err(error) = self.player.seat.hand.set_size(open, (blocks * BLOCK_BYTES) as u64) {
            return self.lose(at, &error);
        }
        let mut ledger = self.board.ledger();
        ledger.cut_settled(file, blocks);
        let floors = ledger.floors(file);
        self.player.open[at].floors[blocks..].copy_from_slice(&floors[blocks..]);
        Ok(())
    }

    fn close(&mut self, at: usize) -> Result<(), String> {
        let Kept { open, file, writes, .. } = self.player.open.remove(at);
        let closed = self.player.seat.hand.close(open);
        if let Err(error) = &closed
            && !(is_stale(error) && self.board.ledger().is_gone(file))
        {
            return Err(format!("close of file {file}: {error}"));
        }
        self.note(format!("closes file {file}{}", if writes { ", which it wrote" } else { "" }));
        if writes {
            self.board.ledger().settle(file, 0..BLOCKS, self.number, false);
            thread::sleep(self.board.granularity);
            self.board.ledger().end_writing(file);
        }
        Ok(())
    }

    /// Handles the failure of an act on an open file, which is permitted only if the file was removed.
    fn lose(&mut self, at: usize, error: &io::Error) -> Result<(), String> {
        let Kept { open, file, .. } = self.player.open.remove(at);
        if !(is_stale(error) && self.board.ledger().is_gone(file)) {
            return Err(format!("file {file}: {error}\n{}", self.board.ledger().tell(file)));
        }
        self.note(format!("finds file {file} stale"));
        let _ = self.player.seat.hand.close(open); // this fails with ESTALE too
        Ok(())
    }

    /// Makes a new file and renames it over the name.
    fn replace(&mut self, name: usize) -> Result<(), String> {
        let old = self.board.ledger().file_of(name);
        // Become the writer first, so that no other player writes the old file and loses its data.
        if !self.board.ledger().begin_writing(old, self.number) {
            return Ok(());
        }
        self.player.made += 1;
        let path = self.player.seat.directory.join(format!("new-{}-{}", self.number, self.player.made));
        let failed = |error: io::Error| format!("replacing name {name}: {error}");
        let opened = self.player.seat.hand.open(&path, Mode::Create).map_err(failed)?;
        let file = self.board.ledger().create(self.number, opened.ino);
        self.write_blocks(opened.file, file, &(0..BLOCKS)).map_err(failed)?;
        self.player.seat.hand.close(opened.file).map_err(failed)?;
        self.board.ledger().settle(file, 0..BLOCKS, self.number, false);
        self.board.ledger().replace(name, file);
        self.note(format!("replaces file {old} of name {name} by {file}"));
        let to = self.path(name);
        self.player.seat.hand.rename(&path, to).map_err(failed)?;
        self.board.ledger().replaced(name);
        thread::sleep(self.board.granularity);
        self.board.ledger().end_writing(file);
        Ok(())
    }

    /// Reads or writes under a lock. The player keeps a file open for this.
    fn locked(
        &mut self,
        name: usize,
        blocks: &Range<usize>,
        writes: bool,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let at = self.locker(name)?;
        let Kept { open, file, mut floors, .. } = self.player.open[at];
        let range = (blocks.start * BLOCK_BYTES) as u64..(blocks.end * BLOCK_BYTES) as u64;
        let failed = |what: &str, error: io::Error| format!("{what} of {blocks:?} in file {file}: {error}");
        self.board.ledger().claim(file, self.number, blocks.clone(), writes);
        let held = self.player.seat.hand.lock(open, writes, &range).map_err(|error| failed("lock", error))?;
        if !held {
            self.board.count(|report| report.denied += 1);
            self.note(format!("is denied {blocks:?} of file {file}"));
            return self.board.ledger().denied(file, self.number);
        }
        self.board.ledger().granted(file, self.number, &mut floors)?;
        self.board.count(|report| report.locks += 1);
        self.note(format!(
            "locks {blocks:?} of file {file}, {}",
            if writes { "to write" } else { "to read" }
        ));
        if rng.below(3) > 0 {
            let data = self.read_blocks(open, blocks).map_err(|error| failed("read", error))?;
            self.check(file, blocks, &data, &mut floors)?;
        }
        if writes {
            let events = self.write_blocks(open, file, blocks).map_err(|error| failed("write", error))?;
            events.iter().for_each(|(block, event)| floors[*block] = *event);
            let data = self.read_blocks(open, blocks).map_err(|error| failed("read", error))?;
            self.check(file, blocks, &data, &mut floors)?;
        }
        self.note(format!("unlocks {blocks:?} of file {file}"));
        self.board.ledger().settle(file, blocks.clone(), self.number, true);
        self.board.ledger().releasing(file, self.number);
        self.player.seat.hand.unlock(open, &range).map_err(|error| failed("unlock", error))?;
        self.board.ledger().unlocked(file, self.number);
        self.player.open[at].floors = floors;
        Ok(())
    }

    /// Index of the file for lockers among the open files; opens it if necessary.
    fn locker(&mut self, name: usize) -> Result<usize, String> {
        let file = self.board.ledger().file_of(name);
        if let Some(at) = self.player.open.iter().position(|kept| kept.file == file) {
            return Ok(at);
        }
        let kept = self.open_named(name, Mode::Write)?.ok_or("a file for lockers is stale")?;
        self.player.open.push(kept);
        Ok(self.player.open.len() - 1)
    }

    fn read_blocks(&mut self, open: OpenFile, blocks: &Range<usize>) -> io::Result<Vec<u8>> {
        self.player.seat.hand.read_at(open, (blocks.start * BLOCK_BYTES) as u64, blocks.len() * BLOCK_BYTES)
    }

    /// Writes the blocks with one call. Returns the block and event number of each.
    fn write_blocks(
        &mut self,
        open: OpenFile,
        file: usize,
        blocks: &Range<usize>,
    ) -> io::Result<Vec<(usize, usize)>> {
        let stamps: Vec<Stamp> = {
            let mut ledger = self.board.ledger();
            blocks.clone().map(|block| ledger.write(file, block, self.number)).collect()
        };
        let data: Vec<u8> = stamps.iter().flat_map(|stamp| stamp.block()).collect();
        self.note(format!("writes {blocks:?} of file {file}"));
        self.player.seat.hand.write_at(open, (blocks.start * BLOCK_BYTES) as u64, &data)?;
        Ok(stamps.iter().map(|stamp| (stamp.block, stamp.event)).collect())
    }

    fn path(&self, name: usize) -> PathBuf {
        self.player.seat.directory.join(format!("shared-{name}"))
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.board.note(&format!("{} {what}", self.player.seat.name));
    }
}

impl Kept {
    /// Files of the first names have one writer at a time, and so do the files that replace them.
    fn is_closer(&self) -> bool {
        self.file < CLOSERS || self.file >= CLOSERS + LOCKERS
    }
}

fn some_blocks(rng: &mut Rng) -> Range<usize> {
    let first = rng.below(BLOCKS);
    first..first + 1 + rng.below(BLOCKS - first)
}

/// A client that has the old file open renames it away first, so for a moment the name does not exist.
fn may_move_away(error: &io::Error) -> bool {
    is_stale(error) || error.kind() == io::ErrorKind::NotFound
}

fn is_stale(error: &io::Error) -> bool {
    error.raw_os_error() == Some(STALE)
}
