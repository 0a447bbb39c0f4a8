//! What every read may see: a pure record of what was written, when it was settled, and who holds which lock.
//!
//! Of each block it has all events in order: writes and truncations. One is **settled** when whoever made it has closed,
//! synced or unlocked: who opens the file from then on must see it or a later one. What a read may give lies between what
//! was settled when the file was opened (or what this reader has seen already) and what was written when the read ended.
//! Under a byte-range lock that is one and the same.
//!
//! There are two kinds of files. Those for **closers** have one writer at a time and any number of readers: what clients
//! promise without locks. Those for **lockers** are written and read under locks alone, by all at once.

use super::stamp::{BLOCK_BYTES, Line, Stamp, lines};
use std::collections::HashMap;
use std::ops::Range;

/// Blocks of a file.
pub const BLOCKS: usize = 6;

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Written { by: usize },
    Gone,
}

#[derive(Debug, Clone)]
struct Block {
    events: Vec<Event>,
    settled: usize,
    /// Settled so that it outlives whoever wrote it: a client with a write delegation may close without flushing.
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

/// Who asks for, holds or releases a lock.
#[derive(Debug, Clone)]
struct Claim {
    player: usize,
    blocks: Range<usize>,
    exclusive: bool,
    held: bool,
    /// A claim in its way was there at some time since it was asked for.
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
    /// The files it led to, in order; the last is the present one.
    files: Vec<usize>,
    settled: usize,
}

/// For each block of a file, the first event that a reader may see.
pub type Floors = [usize; BLOCKS];

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    files: Vec<File>,
    names: Vec<Name>,
    inodes: HashMap<u64, Vec<usize>>,
}

/// What an open by name may lead to.
#[derive(Debug)]
pub struct Opening {
    name: usize,
    from: usize,
    candidates: Vec<(usize, Floors)>,
}

impl Ledger {
    /// A new file that nobody can find yet.
    pub fn create(&mut self, writer: usize, inode: u64) -> usize {
        let file = self.files.len();
        let blocks = vec![Block::new(); BLOCKS];
        self.files.push(File { blocks, writer: Some(writer), claims: Vec::new(), gone: false });
        self.inodes.entry(inode).or_default().push(file);
        file
    }

    /// A new name, which leads to a file.
    pub fn add_name(&mut self, file: usize) -> usize {
        self.names.push(Name { files: vec![file], settled: 0 });
        self.names.len() - 1
    }

    /// The file that a name leads to.
    pub fn file_of(&self, name: usize) -> usize {
        self.names[name].files.last().copied().unwrap_or(0)
    }

    /// An open begins.
    pub fn opening(&self, name: usize) -> Opening {
        let from = self.names[name].settled;
        let candidates =
            self.names[name].files[from..].iter().map(|file| (*file, self.floors(*file))).collect();
        Opening { name, from, candidates }
    }

    /// It has led to the file of this inode: which is that, and what must be seen in it?
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
            // Who held it back has been made to flush it, unless it is who opens.
            if block.events[floor] != (Event::Written { by: player }) {
                block.durable = block.durable.max(floor);
            }
        }
        Ok((file, floors))
    }

    /// Has the name led elsewhere since, or may it have?
    pub fn is_moving(&self, opening: &Opening) -> bool {
        self.names[opening.name].files.len() - 1 > opening.from
    }

    /// What is settled.
    pub fn floors(&self, file: usize) -> Floors {
        let mut floors = [0; BLOCKS];
        for (floor, block) in floors.iter_mut().zip(&self.files[file].blocks) {
            *floor = block.settled;
        }
        floors
    }

    /// Becomes the one writer; false if there is one, or the file is gone.
    pub fn begin_writing(&mut self, file: usize, player: usize) -> bool {
        let file = &mut self.files[file];
        let free = file.writer.is_none() && !file.gone;
        if free {
            file.writer = Some(player);
        }
        free
    }

    /// Is no longer the writer.
    pub fn end_writing(&mut self, file: usize) {
        self.files[file].writer = None;
    }

    /// A write begins: the stamp of the block.
    pub fn write(&mut self, file: usize, block: usize, by: usize) -> Stamp {
        let entry = &mut self.files[file].blocks[block];
        entry.events.push(Event::Written { by });
        entry.dirty = Some(by);
        Stamp { file, block, event: entry.last(), by }
    }

    /// A truncation to so many blocks begins.
    pub fn cut(&mut self, file: usize, blocks: usize) {
        for block in &mut self.files[file].blocks[blocks..] {
            block.dirty = None;
            if block.events.last() != Some(&Event::Gone) {
                block.events.push(Event::Gone);
            }
        }
    }

    /// It has ended.
    pub fn cut_settled(&mut self, file: usize, blocks: usize) {
        for block in &mut self.files[file].blocks[blocks..] {
            (block.settled, block.durable) = (block.last(), block.last());
        }
    }

    /// What a player has written to these blocks is settled: by close, or for good.
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

    /// A read has ended: is what it gave what it may give? Raises the floors of who read.
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

    /// A lock is asked for.
    pub fn claim(&mut self, file: usize, player: usize, blocks: Range<usize>, exclusive: bool) {
        let mut claim = Claim { player, blocks, exclusive, held: false, contended: false };
        for other in &mut self.files[file].claims {
            if claim.conflicts(other) {
                (claim.contended, other.contended) = (true, true);
            }
        }
        self.files[file].claims.push(claim);
    }

    /// It was granted: did nobody have it? From now on what was written there last is what must be seen.
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

    /// It was denied: was anybody in the way?
    pub fn denied(&mut self, file: usize, player: usize) -> Result<(), String> {
        let claim = self.released(file, player).ok_or("no such claim")?;
        if claim.contended {
            return Ok(());
        }
        Err(format!("a lock of file {file} was denied that nobody else wanted: {claim:?}"))
    }

    /// The lock is about to be released: others may have it from now on.
    pub fn releasing(&mut self, file: usize, player: usize) {
        for claim in self.files[file].claims.iter_mut().filter(|claim| claim.player == player) {
            claim.held = false;
        }
    }

    /// It is released.
    pub fn unlocked(&mut self, file: usize, player: usize) {
        self.released(file, player);
    }

    fn released(&mut self, file: usize, player: usize) -> Option<Claim> {
        let claims = &mut self.files[file].claims;
        let mine = claims.iter().position(|claim| claim.player == player)?;
        Some(claims.remove(mine))
    }

    /// A name begins to lead to another file, whose writer has closed it. The old one has its writer's place taken, for ever.
    pub fn replace(&mut self, name: usize, by: usize) {
        let old = self.file_of(name);
        self.files[old].gone = true;
        self.names[name].files.push(by);
    }

    /// It does.
    pub fn replaced(&mut self, name: usize) {
        self.names[name].settled = self.names[name].files.len() - 1;
    }

    /// The file has no name any more: who has it open may find it stale.
    pub fn is_gone(&self, file: usize) -> bool {
        self.files[file].gone
    }

    /// A player is no more: nothing of its will be settled, and what it closed may be lost. It holds nothing.
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

    /// What happened to a file, for a failure's report.
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
    /// The event that a line shows, if it may show it.
    fn allows(&self, line: Line, floor: usize, of: (usize, usize)) -> Result<usize, String> {
        match line {
            Line::Garbage => Err("it holds what nobody wrote".to_owned()),
            Line::Written(stamp) if (stamp.file, stamp.block) != of => Err(format!("it holds {stamp:?}")),
            Line::Written(stamp) if stamp.event < floor => Err(format!("stale: it holds {stamp:?}")),
            Line::Written(stamp) => match self.events.get(stamp.event) {
                Some(Event::Written { by }) if *by == stamp.by => Ok(stamp.event),
                _ => Err(format!("it holds {stamp:?}, which nobody wrote")),
            },
            // The first event that allows it is the last that it proves.
            Line::Nothing => (floor..self.events.len())
                .find(|event| self.events[*event] == Event::Gone)
                .ok_or_else(|| "stale: it holds nothing".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
