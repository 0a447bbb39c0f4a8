//! The content of blocks: each line states its file, its block, the event of the block, and the player. So a
//! stale or torn read is visible line by line.

/// Bytes of a block: a page, so that no client has to read it before writing it.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a line.
const LINE_BYTES: usize = 32;

/// The content of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Written by this event of the block.
    Written(Stamp),
    /// Zeros, or beyond the end of the file.
    Nothing,
    /// Anything else.
    Garbage,
}

/// The origin of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The file.
    pub file: usize,
    /// The block of the file.
    pub block: usize,
    /// The event of the block.
    pub event: usize,
    /// The player.
    pub by: usize,
}

impl Stamp {
    /// A block filled with this stamp.
    pub fn block(self) -> Vec<u8> {
        let Stamp { file, block, event, by } = self;
        // The varying part is in one aligned word, which a concurrent copy does not tear.
        let line = format!("{file:06} {block:04}     {event:06}{by:02}-------\n");
        line.as_bytes().iter().copied().cycle().take(BLOCK_BYTES).collect()
    }

    fn parse(line: &[u8]) -> Option<Stamp> {
        let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
        let (file, block) = (number(line.get(..6)?)?, number(line.get(7..11)?)?);
        let (event, by) = (number(line.get(16..22)?)?, number(line.get(22..24)?)?);
        line.ends_with(b"-------\n").then_some(Stamp { file, block, event, by })
    }
}

/// The lines of the block that begins at `data`. A missing rest counts as one line without content.
pub fn lines(data: &[u8]) -> impl Iterator<Item = Line> {
    let block = &data[..data.len().min(BLOCK_BYTES)];
    let of = |line: &[u8]| match Stamp::parse(line) {
        Some(stamp) => Line::Written(stamp),
        None if line.iter().all(|byte| *byte == 0) => Line::Nothing,
        None => Line::Garbage,
    };
    let short = block.len() < BLOCK_BYTES;
    block.chunks(LINE_BYTES).map(of).chain(short.then_some(Line::Nothing))
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, Line, Stamp, lines};

    #[test]
    fn blocks_say_what_they_are() {
        let stamp = Stamp { file: 12, block: 3, event: 4711, by: 2 };
        let block = stamp.block();
        assert_eq!(block.len(), BLOCK_BYTES);
        assert!(lines(&block).all(|line| line == Line::Written(stamp)));
        assert_eq!(lines(&block).count(), 128);
        assert_eq!(lines(&block[..64]).last(), Some(Line::Nothing));
        assert!(lines(&[0; BLOCK_BYTES]).all(|line| line == Line::Nothing));
        assert!(lines(&block[1..65]).any(|line| line == Line::Garbage));
    }
}
