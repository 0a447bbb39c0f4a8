//! Decoding from a shared buffer.

use bytes::Bytes;

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The message ends in the middle of a value.
    #[error("message ends early")]
    Truncated,
    /// A length over the bound of its type.
    #[error("length {length} is over the bound of {bound}")]
    TooLong {
        /// The received length.
        length: u32,
        /// The bound.
        bound: u32,
    },
    /// A discriminant that the type does not have, or a boolean other than 0 and 1.
    #[error("{value} is no value of {name}")]
    Discriminant {
        /// The type.
        name: &'static str,
        /// The received value.
        value: u32,
    },
    /// Bytes after the end of the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
}

/// A type that can be decoded.
pub trait Decode: Sized {
    /// Takes the value from the front of the remaining bytes.
    fn decode(decoder: &mut Decoder) -> Result<Self, Error>;
}

/// A cursor over a received message.
#[derive(Clone, Debug)]
pub struct Decoder {
    bytes: Bytes,
    position: usize,
}

impl Decoder {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: Bytes) -> Decoder {
        Decoder { bytes, position: 0 }
    }

    /// The bytes before the position, shared.
    pub fn consumed(&self) -> Bytes {
        self.bytes.slice(..self.position)
    }

    /// The bytes not decoded yet; they share the buffer.
    pub fn rest(&self) -> Bytes {
        self.bytes.slice(self.position..)
    }

    /// The number of bytes not decoded.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Succeeds if no bytes are left.
    pub fn finish(&self) -> Result<(), Error> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(Error::Trailing(left)),
        }
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A length, checked against its bound.
    pub fn length(&mut self, bound: usize) -> Result<usize, Error> {
        let length = self.u32()?;
        if length as usize > bound {
            return Err(Error::TooLong { length, bound: bound.try_into().unwrap_or(u32::MAX) });
        }
        Ok(length as usize)
    }

    /// `N` bytes without padding: `N` must be a multiple of four for XDR.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = self.take(N)?;
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    /// Variable-length opaque data, borrowed.
    pub fn slice(&mut self, bound: usize) -> Result<&[u8], Error> {
        let length = self.length(bound)?;
        let start = self.position;
        self.take(length + crate::padding(length))?;
        Ok(&self.bytes[start..start + length])
    }

    /// Variable-length opaque data, sharing the buffer.
    pub fn shared(&mut self, bound: usize) -> Result<Bytes, Error> {
        let length = self.length(bound)?;
        let start = self.position;
        self.take(length + crate::padding(length))?;
        Ok(self.bytes.slice(start..start + length))
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Error> {
        let end = self.position.checked_add(count).ok_or(Error::Truncated)?;
        let taken = self.bytes.get(self.position..end).ok_or(Error::Truncated)?;
        self.position = end;
        Ok(taken)
    }
}

impl Decode for () {
    fn decode(_: &mut Decoder) -> Result<(), Error> {
        Ok(())
    }
}

impl Decode for u32 {
    fn decode(decoder: &mut Decoder) -> Result<u32, Error> {
        decoder.u32()
    }
}

impl Decode for i32 {
    fn decode(decoder: &mut Decoder) -> Result<i32, Error> {
        Ok(decoder.u32()? as i32)
    }
}

impl Decode for u64 {
    fn decode(decoder: &mut Decoder) -> Result<u64, Error> {
        decoder.u64()
    }
}

impl Decode for i64 {
    fn decode(decoder: &mut Decoder) -> Result<i64, Error> {
        Ok(decoder.u64()? as i64)
    }
}

impl Decode for bool {
    fn decode(decoder: &mut Decoder) -> Result<bool, Error> {
        match decoder.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(Error::Discriminant { name: "bool", value }),
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(decoder: &mut Decoder) -> Result<Option<T>, Error> {
        bool::decode(decoder)?.then(|| T::decode(decoder)).transpose()
    }
}

/// Fixed-length opaque data, with the padding that XDR requires.
impl<const N: usize> Decode for [u8; N] {
    fn decode(decoder: &mut Decoder) -> Result<[u8; N], Error> {
        let array = decoder.array()?;
        decoder.take(crate::padding(N))?;
        Ok(array)
    }
}
