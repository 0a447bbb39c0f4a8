//! Opaque data and lists whose type states the bound.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

use crate::decoder::{Decode, Decoder, Error};
use crate::encoder::{Encode, Encoder};

/// `opaque<MAX>` or `string<MAX>`; a decoded value shares the message's buffer.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Opaque<const MAX: usize>(Bytes);

impl<const MAX: usize> Opaque<MAX> {
    /// Wraps `bytes`, or returns `None` if there are more than `MAX`.
    pub fn new(bytes: impl Into<Bytes>) -> Option<Opaque<MAX>> {
        let bytes = bytes.into();
        (bytes.len() <= MAX).then_some(Opaque(bytes))
    }

    /// The bytes.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl<const MAX: usize> Deref for Opaque<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<const MAX: usize> fmt::Debug for Opaque<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl<const MAX: usize> Encode for Opaque<MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(&self.0);
    }
}

impl<const MAX: usize> Decode for Opaque<MAX> {
    fn decode(decoder: &mut Decoder) -> Result<Opaque<MAX>, Error> {
        decoder.shared(MAX).map(Opaque)
    }
}

/// `opaque<MAX>` stored in place, for handles: they are small, hashed and passed by value. `MAX` is at most
/// 255.
#[derive(Clone, Copy)]
pub struct Inline<const MAX: usize> {
    length: u8,
    bytes: [u8; MAX],
}

impl<const MAX: usize> Inline<MAX> {
    /// Copies `from`, or returns `None` if it is longer than `MAX`.
    pub fn new(from: &[u8]) -> Option<Inline<MAX>> {
        let length = u8::try_from(from.len()).ok()?;
        let mut bytes = [0; MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Inline { length, bytes })
    }
}

impl<const MAX: usize> Deref for Inline<MAX> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

impl<const MAX: usize> PartialEq for Inline<MAX> {
    fn eq(&self, other: &Inline<MAX>) -> bool {
        self[..] == other[..]
    }
}

impl<const MAX: usize> Eq for Inline<MAX> {}

impl<const MAX: usize> fmt::Debug for Inline<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const MAX: usize> Encode for Inline<MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.opaque(self);
    }
}

impl<const MAX: usize> Decode for Inline<MAX> {
    fn decode(decoder: &mut Decoder) -> Result<Inline<MAX>, Error> {
        let bytes = decoder.slice(MAX)?;
        Inline::new(bytes).ok_or(Error::TooLong { length: bytes.len() as u32, bound: MAX as u32 })
    }
}

/// A counted array of at most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> List<T, MAX> {
    /// Wraps `elements`, or returns `None` if there are more than `MAX`.
    pub fn new(elements: Vec<T>) -> Option<List<T, MAX>> {
        (elements.len() <= MAX).then_some(List(elements))
    }

    /// The elements.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> List<T, MAX> {
        List(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for List<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Encode, const MAX: usize> Encode for List<T, MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(self.0.len() as u32);
        self.0.iter().for_each(|element| element.encode(encoder));
    }
}

impl<T: Decode, const MAX: usize> Decode for List<T, MAX> {
    fn decode(decoder: &mut Decoder) -> Result<List<T, MAX>, Error> {
        let length = decoder.length(MAX)?;
        // Reserve no more capacity than the message can fill: an element takes at least four bytes.
        let mut elements = Vec::with_capacity(length.min(decoder.remaining() / 4));
        for _ in 0..length {
            elements.push(T::decode(decoder)?);
        }
        Ok(List(elements))
    }
}

/// An XDR linked list (`entry *next`) of at most `MAX` elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkedList<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> LinkedList<T, MAX> {
    /// Wraps `elements`, or returns `None` if there are more than `MAX`.
    pub fn new(elements: Vec<T>) -> Option<LinkedList<T, MAX>> {
        (elements.len() <= MAX).then_some(LinkedList(elements))
    }

    /// The elements.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const MAX: usize> Default for LinkedList<T, MAX> {
    fn default() -> LinkedList<T, MAX> {
        LinkedList(Vec::new())
    }
}

impl<T, const MAX: usize> Deref for LinkedList<T, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Encode, const MAX: usize> Encode for LinkedList<T, MAX> {
    fn encode(&self, encoder: &mut Encoder) {
        for element in &self.0 {
            true.encode(encoder);
            element.encode(encoder);
        }
        false.encode(encoder);
    }
}

impl<T: Decode, const MAX: usize> Decode for LinkedList<T, MAX> {
    fn decode(decoder: &mut Decoder) -> Result<LinkedList<T, MAX>, Error> {
        let mut elements = Vec::new();
        while bool::decode(decoder)? {
            if elements.len() == MAX {
                return Err(Error::TooLong { length: MAX as u32 + 1, bound: MAX as u32 });
            }
            elements.push(T::decode(decoder)?);
        }
        Ok(LinkedList(elements))
    }
}
