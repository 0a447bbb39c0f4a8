//! Record marking (RFC 5531, section 11): messages in a byte stream, each in one or more fragments.
//!
//! Sans-I/O: the transport reads bytes into [`Assembler::buffer`] and takes complete messages out. A message
//! in one fragment, which is what every known peer sends, shares the receive buffer. A message in several
//! fragments is copied together once.

use bytes::{Bytes, BytesMut};

const LAST_FRAGMENT: u32 = 1 << 31;
/// Most fragments in one message. Only an abusive peer sends more.
const FRAGMENTS_MAX: u32 = 4096;
/// If less space than this is free, the next read enlarges the buffer.
const FREE_MIN_BYTES: usize = 4 << 10;

/// Why a stream cannot be decoded any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A message over the bound.
    #[error("a message of {0} bytes and more is over the bound")]
    TooLong(usize),
    /// A message in too many fragments.
    #[error("a message in more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// Reassembles messages.
#[derive(Debug)]
pub struct Assembler {
    /// Where the transport appends what it read.
    pub buffer: BytesMut,
    partial: BytesMut,
    fragments: u32,
    bound: usize,
}

impl Assembler {
    /// An assembler for messages of at most `bound` bytes.
    pub fn new(bound: usize) -> Assembler {
        Assembler { buffer: BytesMut::new(), partial: BytesMut::new(), fragments: 0, bound }
    }

    /// Bytes of the message being received, marks included, as far as known. Zero between messages.
    pub fn begun(&self) -> usize {
        self.partial.len() + self.fragment().unwrap_or(self.buffer.len())
    }

    /// Makes space for the missing part of the current fragment, and for `read_bytes` if little space is
    /// free.
    pub fn reserve(&mut self, read_bytes: usize) {
        let missing = self.fragment().unwrap_or(0).saturating_sub(self.buffer.len());
        if self.buffer.capacity() - self.buffer.len() < missing.max(FREE_MIN_BYTES) {
            self.buffer.reserve(missing.max(read_bytes));
        }
    }

    /// Bytes of the first fragment in the buffer, mark included. `None` before its mark has arrived.
    fn fragment(&self) -> Option<usize> {
        let mark = self.buffer.first_chunk::<4>().copied().map(u32::from_be_bytes)?;
        Some(4 + (mark & !LAST_FRAGMENT) as usize)
    }

    /// The next complete message, or `None` until more bytes are read.
    pub fn take(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some(mark) = self.buffer.first_chunk::<4>().copied().map(u32::from_be_bytes) else {
                return Ok(None);
            };
            let length = (mark & !LAST_FRAGMENT) as usize;
            if self.partial.len() + length > self.bound {
                return Err(Error::TooLong(self.partial.len() + length));
            }
            if self.buffer.len() < 4 + length {
                return Ok(None);
            }
            let fragment = self.buffer.split_to(4 + length).freeze().slice(4..);
            let last = mark & LAST_FRAGMENT != 0;
            if last && self.partial.is_empty() {
                self.fragments = 0;
                return Ok(Some(fragment));
            }
            self.partial.extend_from_slice(&fragment);
            self.fragments += 1;
            if last {
                self.fragments = 0;
                return Ok(Some(self.partial.split().freeze()));
            }
            if self.fragments > FRAGMENTS_MAX {
                return Err(Error::TooManyFragments);
            }
        }
    }
}

/// The mark of a message of `length` bytes that is sent in one fragment.
pub fn mark(length: usize) -> [u8; 4] {
    (length as u32 | LAST_FRAGMENT).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_hold_before_bytes_come() {
        let mut assembler = Assembler::new(100);
        assembler.buffer.extend_from_slice(&mark(101));
        assert_eq!(assembler.take(), Err(Error::TooLong(101)));
        let mut assembler = Assembler::new(100);
        assert_eq!(assembler.begun(), 0);
        assembler.buffer.extend_from_slice(b"\0\0\0\x3cxx");
        assert_eq!(assembler.take(), Ok(None));
        assert_eq!(assembler.begun(), 64);
        assembler.reserve(10);
        assert!(assembler.buffer.capacity() >= 64);
        assembler.buffer.extend_from_slice(&[0; 58]);
        assembler.buffer.extend_from_slice(&mark(60));
        assert_eq!(assembler.take(), Err(Error::TooLong(120)));
        let mut assembler = Assembler::new(100);
        (0..=FRAGMENTS_MAX).for_each(|_| assembler.buffer.extend_from_slice(&[0; 4]));
        assert_eq!(assembler.take(), Err(Error::TooManyFragments));
    }

    proptest! {
        #[test]
        fn messages_come_out_however_they_are_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..6),
            fragment in 1usize..20,
            chunk in 1usize..30,
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                let pieces = message.chunks(fragment).collect::<Vec<_>>();
                for (index, piece) in pieces.iter().enumerate() {
                    let last = if index + 1 == pieces.len() { LAST_FRAGMENT } else { 0 };
                    stream.extend_from_slice(&(piece.len() as u32 | last).to_be_bytes());
                    stream.extend_from_slice(piece);
                }
                if pieces.is_empty() {
                    stream.extend_from_slice(&mark(0));
                }
            }
            let mut assembler = Assembler::new(1000);
            let mut out = Vec::new();
            for bytes in stream.chunks(chunk) {
                assembler.buffer.extend_from_slice(bytes);
                while let Some(message) = assembler.take().unwrap() {
                    out.push(message.to_vec());
                }
            }
            prop_assert_eq!(out, messages);
        }
    }
}
