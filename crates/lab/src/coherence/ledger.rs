//! The ledger: a record of all writes, of when they were settled, and of the locks held. It states what every
//! read may return.
//!
//! For each block it has all events in order: writes and truncations. An event is **settled** when its player
//! has closed, synced or unlocked the file. A player that opens the file afterwards must see that event or a
//! later one.
//!
//! The lower bound of a read is the event settled at the open, or a later one that the reader has already
//! seen. The upper bound is the last event written when the read ends. Under a byte-range lock both are the
//! same event.
//!
//! There are two kinds of files. Files for **closers** have one writer at a time and any number of readers:
//! clients promise coherence for them without locks. Files for **lockers** are read and written only under
//! locks, by all players at once.

use super::stamp::{BLOCK_BYTES, Line, Stamp, lines};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks per file.
pub const BLOCKS: usize = 6;

/// An event of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Written { by: usize },
    Gone,
}

#[derive(Debug, Clone)]
struct Block {
    events: Vec<Event>,
    settled: usize,
    /// The last settled event that survives the loss of its writer. A client with a write delegation may
    /// close without flushing.
    durable: usize,
    dirty: Option<usize>,
}

impl Block {
    fn new() -> Block {
        Block { events: vec![Event::Gone], settled: 0, durable: 0, dirty: None }
    }

    fn last(&self) -> usize {
        self.events.len() - 1
    }
}

/// A lock that a player has requested, holds or is releasing.
#[derive(Debug, Clone)]
struct Claim {
    player: usize,
    blocks: Range<usize>,
    exclusive: bool,
    held: bool,
    /// True if a conflicting claim existed at any time since the request.
    contended: bool,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        let apart = self.blocks.end <= other.blocks.start || other.blocks.end <= self.blocks.start;
        self.player != other.player && !apart && (self.exclusive || other.exclusive)
    }
}

#[derive(Debug, Clone)]
struct File {
    blocks: Vec<Block>,
    writer: Option<usize>,
    claims: Vec<Claim>,
    gone: bool,
}

#[derive(Debug)]
struct Name {
    /// The files that the name has referred to, in order; the last is the current one.
    files: Vec<usize>,
    settled: usize,
}

/// For each block of a file, the first event that a reader may see.
pub type Floors = [usize; BLOCKS];

/// The record of all events; see the module.
#[derive(Debug, Default)]
pub struct Ledger {
    files: Vec<File>,
    names: Vec<Name>,
    inodes: HashMap<u64, Vec<usize>>,
}

/// What an open by name may find.
#[derive(Debug)]
pub struct Opening {
    name: usize,
    from: usize,
    candidates: Vec<(usize, Floors)>,
}

impl Ledger {
    /// Adds a new file that has no name yet.
    pub fn create(&mut self, writer: usize, inode: u64) -> usize {
        let file = self.files.len();
        let blocks = vec![Block::new(); BLOCKS];
        self.files.push(File { blocks, writer: Some(writer), claims: Vec::new(), gone: false });
        self.inodes.entry(inode).or_default().push(file);
        file
    }

    /// Adds a new name for a file.
    pub fn add_name(&mut self, file: usize) -> usize {
        self.names.push(Name { files: vec![file], settled: 0 });
        self.names.len() - 1
    }

    /// The current file of a name.
    pub fn file_of(&self, name: usize) -> usize {
        self.names[name].files.last().copied().unwrap_or(0)
    }

    /// Notes the start of an open.
    pub fn opening(&self, name: usize) -> Opening {
        let from = self.names[name].settled;
        let candidates =
            self.names[name].files[from..].iter().map(|file| (*file, self.floors(*file))).collect();
        Opening { name, from, candidates }
    }

    /// Checks the inode that an open has found. Returns the file, and the first events that the reader must
    /// see.
    pub fn opened(
        &mut self,
        opening: &Opening,
        player: usize,
        inode: u64,
    ) -> Result<(usize, Floors), String> {
        let led_to = &self.names[opening.name].files[opening.from..];
        let of_inode = self.inodes.get(&inode).map_or(&[][..], Vec::as_slice);
        let Some(file) = led_to.iter().rev().find(|file| of_inode.contains(file)).copied() else {
            return Err(format!(
                "the name leads to inode {inode}, which is file {of_inode:?}; it may be {led_to:?}"
            ));
        };
        let known = opening.candidates.iter().find(|(candidate, _)| *candidate == file);
        let floors = known.map_or([0; BLOCKS], |(_, floors)| *floors);
        for (block, floor) in self.files[file].blocks.iter_mut().zip(floors) {
            // A client that held these data back has been made to flush them, unless that client is the
            // opener.
            if block.events[floor] != (Event::Written { by: player }) {
                block.durable = block.durable.max(floor);
            }
        }
        Ok((file, floors))
    }

    /// True if the name has begun to refer to another file since the open began, or did so shortly before.
    pub fn is_moving(&self, opening: &Opening) -> bool {
        self.names[opening.name].files.len() - 1 > opening.from
    }

    /// The settled events.
    pub fn floors(&self, file: usize) -> Floors {
        let mut floors = [0; BLOCKS];
        for (floor, block) in floors.iter_mut().zip(&self.files[file].blocks) {
            *floor = block.settled;
        }
        floors
    }

    /// Makes the player the only writer. Returns false if there is a writer or the file has no name any more.
    pub fn begin_writing(&mut self, file: usize, player: usize) -> bool {
        let file = &mut self.files[file];
        let free = file.writer.is_none() && !file.gone;
        if free {
            file.writer = Some(player);
        }
        free
    }

    /// Ends the player's role as the writer.
    pub fn end_writing(&mut self, file: usize) {
        self.files[file].writer = None;
    }

    /// Notes the start of a write. Returns the stamp of the block.
    pub fn write(&mut self, file: usize, block: usize, by: usize) -> Stamp {
        let entry = &mut self.files[file].blocks[block];
        entry.events.push(Event::Written { by });
        entry.dirty = Some(by);
        Stamp { file, block, event: entry.last(), by }
    }

    /// Notes the start of a truncation to `blocks` blocks.
    pub fn cut(&mut self, file: usize, blocks: usize) {
        for block in &mut self.files[file].blocks[blocks..] {
            block.dirty = None;
            if block.events.last() != Some(&Event::Gone) {
                block.events.push(Event::Gone);
            }
        }
    }

    /// Notes the end of the truncation.
    pub fn cut_settled(&mut self, file: usize, blocks: usize) {
        for block in &mut self.files[file].blocks[blocks..] {
            (block.settled, block.durable) = (block.last(), block.last());
        }
    }

    /// Settles everything that a player has written to these blocks. `for_good` states that the data is at
    /// the server, as after sync or unlock.
    pub fn settle(&mut self, file: usize, blocks: Range<usize>, player: usize, for_good: bool) {
        for block in &mut self.files[file].blocks[blocks] {
            if block.dirty == Some(player) {
                block.settled = block.last();
                block.dirty = None;
            }
            if for_good && block.events[block.settled] == (Event::Written { by: player }) {
                block.durable = block.settled;
            }
        }
    }

    /// Checks the data of a read that has ended. Raises the reader's floors to the events that it has seen.
    pub fn check(
        &self,
        file: usize,
        read: Range<usize>,
        data: &[u8],
        floors: &mut Floors,
    ) -> Result<(), String> {
        for (at, number) in read.enumerate() {
            let (block, floor) = (&self.files[file].blocks[number], floors[number]);
            let data = data.get(at * BLOCK_BYTES..).unwrap_or_default();
            let mut seen = block.last();
            for line in lines(data) {
                let event = block.allows(line, floor, (file, number)).map_err(|what| {
                    let (last, settled) = (block.last(), block.settled);
                    format!("block {number} of file {file}: {what}; events {floor}..={last} are allowed, {settled} is settled")
                })?;
                seen = seen.min(event);
            }
            floors[number] = floor.max(seen);
        }
        Ok(())
    }

    /// Notes the request for a lock.
    pub fn claim(&mut self, file: usize, player: usize, blocks: Range<usize>, exclusive: bool) {
        let mut claim = Claim { player, blocks, exclusive, held: false, contended: false };
        for other in &mut self.files[file].claims {
            if claim.conflicts(other) {
                (claim.contended, other.contended) = (true, true);
            }
        }
        self.files[file].claims.push(claim);
    }

    /// Notes that the lock was granted, and fails if another player holds it. From now on the reader must see
    /// the last events.
    pub fn granted(&mut self, file: usize, player: usize, floors: &mut Floors) -> Result<(), String> {
        let claims = &mut self.files[file].claims;
        let mine = claims.iter().position(|claim| claim.player == player).ok_or("no such claim")?;
        claims[mine].held = true;
        let claim = claims[mine].clone();
        if let Some(other) = claims.iter().find(|other| other.held && claim.conflicts(other)) {
            return Err(format!(
                "a lock of file {file} was granted that another holds: {claim:?} and {other:?}"
            ));
        }
        for block in claim.blocks {
            floors[block] = self.files[file].blocks[block].last();
        }
        Ok(())
    }

    /// Notes that the lock was denied, and fails if no conflicting claim existed.
    pub fn denied(&mut self, file: usize, player: usize) -> Result<(), String> {
        let claim = self.released(file, player).ok_or("no such claim")?;
        if claim.contended {
            return Ok(());
        }
        Err(format!("a lock of file {file} was denied that nobody else wanted: {claim:?}"))
    }

    /// Notes that the lock is about to be released: from now on others may get it.
    pub fn releasing(&mut self, file: usize, player: usize) {
        for claim in self.files[file].claims.iter_mut().filter(|claim| claim.player == player) {
            claim.held = false;
        }
    }

    /// Notes that the lock is released.
    pub fn unlocked(&mut self, file: usize, player: usize) {
        self.released(file, player);
    }

    fn released(&mut self, file: usize, player: usize) -> Option<Claim> {
        let claims = &mut self.files[file].claims;
        let mine = claims.iter().position(|claim| claim.player == player)?;
        Some(claims.remove(mine))
    }

    /// Notes the start of a rename that gives the name to another, closed file. The old file never gets a new
    /// writer.
    pub fn replace(&mut self, name: usize, by: usize) {
        let old = self.file_of(name);
        self.files[old].gone = true;
        self.names[name].files.push(by);
    }

    /// Notes the end of the rename.
    pub fn replaced(&mut self, name: usize) {
        self.names[name].settled = self.names[name].files.len() - 1;
    }

    /// True if the file has no name any more: players that have it open may get ESTALE.
    pub fn is_gone(&self, file: usize) -> bool {
        self.files[file].gone
    }

    /// Removes a lost player. Its dirty data will never be settled, its data that is not durable may be lost,
    /// and its locks end.
    pub fn leave(&mut self, player: usize) {
        for file in &mut self.files {
            file.claims.retain(|claim| claim.player != player);
            if file.writer == Some(player) {
                file.writer = None;
            }
            for block in &mut file.blocks {
                if block.dirty == Some(player) {
                    block.dirty = None;
                }
                if block.events[block.settled] == (Event::Written { by: player }) {
                    block.settled = block.durable;
                }
            }
        }
    }

    /// The history of a file, for a failure message.
    pub fn tell(&self, file: usize) -> String {
        let File { blocks, writer, claims, gone } = &self.files[file];
        let of = |block: &Block| {
            let last: Vec<_> = block.events.iter().rev().take(4).rev().collect();
            format!("last {} settled {} durable {} {last:?}", block.last(), block.settled, block.durable)
        };
        let blocks: Vec<String> = blocks.iter().map(of).collect();
        format!("file {file}: writer {writer:?}, gone {gone}, claims {claims:?}\n  {}", blocks.join("\n  "))
    }
}

impl Block {
    /// The event that a line proves. Fails if the reader may not see it.
    fn allows(&self, line: Line, floor: usize, of: (usize, usize)) -> Result<usize, String> {
        match line {
            Line::Garbage => Err("it holds what nobody wrote".to_owned()),
            Line::Written(stamp) if (stamp.file, stamp.block) != of => Err(format!("it holds {stamp:?}")),
            Line::Written(stamp) if stamp.event < floor => Err(format!("stale: it holds {stamp:?}")),
            Line::Written(stamp) => match self.events.get(stamp.event) {
                Some(Event::Written { by }) if *by == stamp.by => Ok(stamp.event),
                _ => Err(format!("it holds {stamp:?}, which nobody wrote")),
            },
            // Report the first matching event: the line proves none of the later ones.
            Line::Nothing => (floor..self.events.len())
                .find(|event| self.events[*event] == Event::Gone)
                .ok_or_else(|| "stale: it holds nothing".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
