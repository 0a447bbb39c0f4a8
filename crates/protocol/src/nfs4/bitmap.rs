//! `bitmap4`: sets of attributes, and of small numbers of other kinds (RFC 8881, section 3.3.7).

use std::fmt;
use std::ops::{BitAnd, BitOr, Sub};

use xdr::{Decode, Decoder, Encode, Encoder, Error};

use super::Attr;

/// Words that are stored.
const WORDS: usize = 3;
/// Words that are decoded. No attribute has such a high number, but a peer may request one.
const WORDS_BOUND: usize = 1000;

/// A set of numbers below 96. Higher numbers are decoded and dropped: no attribute of this project has one,
/// and a server ignores requests for unsupported attributes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bitmap([u32; WORDS]);

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Bitmap = Bitmap([0; WORDS]);

    /// The set of these attributes.
    pub const fn of(attributes: &[Attr]) -> Bitmap {
        let mut bitmap = Bitmap::EMPTY;
        let mut index = 0;
        while index < attributes.len() {
            bitmap = bitmap.with(attributes[index]);
            index += 1;
        }
        bitmap
    }

    /// The set with these words.
    pub const fn from_words(words: [u32; WORDS]) -> Bitmap {
        Bitmap(words)
    }

    /// Its words, the lowest numbers first.
    pub const fn words(self) -> [u32; WORDS] {
        self.0
    }

    /// Adds an attribute.
    #[must_use]
    pub const fn with(self, attribute: Attr) -> Bitmap {
        self.with_bit(attribute as u32)
    }

    /// True if the set contains the attribute.
    pub const fn contains(self, attribute: Attr) -> bool {
        self.contains_bit(attribute as u32)
    }

    /// Adds a number, if it is below 96.
    #[must_use]
    pub const fn with_bit(mut self, number: u32) -> Bitmap {
        let word = (number / 32) as usize;
        if word < WORDS {
            self.0[word] |= 1 << (number % 32);
        }
        self
    }

    /// True if the set contains the number.
    pub const fn contains_bit(self, number: u32) -> bool {
        let word = (number / 32) as usize;
        word < WORDS && self.0[word] & 1 << (number % 32) != 0
    }

    /// Adds an attribute in place.
    pub const fn insert(&mut self, attribute: Attr) {
        *self = self.with(attribute);
    }

    /// True if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0[0] | self.0[1] | self.0[2] == 0
    }

    /// The lowest number.
    pub fn first(self) -> Option<u32> {
        self.iter().next()
    }

    /// The numbers, ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (index, word) = rest.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
            let bit = word.trailing_zeros();
            *word &= *word - 1;
            Some(index as u32 * 32 + bit)
        })
    }

    /// The number of bytes on the wire.
    pub fn encoded_len(self) -> usize {
        4 + 4 * self.length()
    }

    /// Number of words up to the last non-zero one.
    fn length(self) -> usize {
        WORDS - self.0.iter().rev().take_while(|word| **word == 0).count()
    }

    /// Decodes a bitmap. Also returns the lowest number in it that is not stored.
    pub(super) fn decode_all(decoder: &mut Decoder) -> Result<(Bitmap, Option<u32>), Error> {
        let mut bitmap = Bitmap::EMPTY;
        let mut beyond = None;
        for index in 0..decoder.length(WORDS_BOUND)? {
            let word = decoder.u32()?;
            match bitmap.0.get_mut(index) {
                Some(place) => *place = word,
                None if word != 0 && beyond.is_none() => {
                    beyond = Some(index as u32 * 32 + word.trailing_zeros());
                }
                None => {}
            }
        }
        Ok((bitmap, beyond))
    }

    /// Encodes the set plus one number, which may be 96 or higher.
    pub(super) fn encode_with(self, number: u32, encoder: &mut Encoder) {
        let last = (number / 32) as usize;
        let length = self.length().max(last + 1);
        encoder.u32(length as u32);
        for index in 0..length {
            let word = self.0.get(index).copied().unwrap_or(0);
            encoder.u32(if index == last { word | 1 << (number % 32) } else { word });
        }
    }
}

impl Encode for Bitmap {
    fn encode(&self, encoder: &mut Encoder) {
        let words = &self.0[..self.length()];
        encoder.u32(words.len() as u32);
        words.iter().for_each(|word| encoder.u32(*word));
    }
}

impl Decode for Bitmap {
    fn decode(decoder: &mut Decoder) -> Result<Bitmap, Error> {
        Ok(Bitmap::decode_all(decoder)?.0)
    }
}

/// Intersection.
impl BitAnd for Bitmap {
    type Output = Bitmap;
    fn bitand(self, other: Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
}

/// Union.
impl BitOr for Bitmap {
    type Output = Bitmap;
    fn bitor(self, other: Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
}

/// Difference.
impl Sub for Bitmap {
    type Output = Bitmap;
    fn sub(self, other: Bitmap) -> Bitmap {
        Bitmap(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }
}

impl fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
