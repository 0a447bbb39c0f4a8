//! Reads of a file from its start to its end, with few system calls: a block is read at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const BLOCK_BYTES: usize = 1 << 20;

/// A file, and the block of it that was read last.
pub(super) struct Blocks<'a> {
    file: &'a File,
    start: u64,
    block: Vec<u8>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(file: &'a File) -> Blocks<'a> {
        Blocks { file, start: 0, block: Vec::new() }
    }

    /// The bytes at this offset.
    ///
    /// # Errors
    /// The error of the read, or `UnexpectedEof` if the file ends before.
    pub(super) fn read(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let end = offset + length as u64;
        if offset < self.start || end > self.start + self.block.len() as u64 {
            self.fill(offset, length)?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.block[from..from + length])
    }

    fn fill(&mut self, offset: u64, length: usize) -> io::Result<()> {
        self.start = offset;
        self.block.resize(BLOCK_BYTES.max(length), 0);
        let mut filled = 0;
        while filled < self.block.len() {
            match self.file.read_at(&mut self.block[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.block.truncate(filled);
        if filled < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}
