//! What blocks hold: lines that say which file and block they are of, which event of the block they are, and who wrote
//! them. A stale or torn read then shows itself, line by line.

/// Bytes of a block: a page, so that no client has to read one before it writes it.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes of a line.
const LINE_BYTES: usize = 32;

/// What one line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// Written as this event of the block.
    Written(Stamp),
    /// Zeros, or beyond the end of the file.
    Nothing,
    /// Neither.
    Garbage,
}

/// Where a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Which file.
    pub file: usize,
    /// Which of its blocks.
    pub block: usize,
    /// Which event of the block.
    pub event: usize,
    /// Which player.
    pub by: usize,
}

impl Stamp {
    /// A block full of it.
    pub fn block(self) -> Vec<u8> {
        let Stamp { file, block, event, by } = self;
        // What changes is in one aligned word, which a copy under way does not tear.
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

/// The lines of the block that begins at `data`; what is missing of it is nothing.
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
