//! Encoding into a scatter list of new bytes, shared bytes and file ranges.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::decoder::{Decode, Decoder, Error};

/// Copying shared data shorter than this is cheaper than sending it as a segment of its own.
const SEGMENT_MIN_BYTES: usize = 2048;

/// The longest opaque data accepted in a message: the largest transfer of this project.
const BULK_MAX_BYTES: usize = 4 << 20;

/// A type that can be encoded. Encoding cannot fail, because each type enforces its own bounds.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, encoder: &mut Encoder);
}

/// A range of an open file, which is sent without a copy in user space.
#[derive(Clone)]
pub struct FileRange {
    /// The file, open for reading.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// A value that must stay alive until the range has been sent.
    pub pin: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRange({}..+{})", self.offset, self.length)
    }
}

/// File data in a message.
#[derive(Clone, Debug)]
pub enum Bulk {
    /// In memory. Decoded data is always in memory and shares the record's buffer.
    Bytes(Bytes),
    /// In a file.
    File(FileRange),
}

impl Bulk {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Bulk::Bytes(bytes) => bytes.len(),
            Bulk::File(range) => range.length as usize,
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes. File ranges are read into memory.
    pub fn to_bytes(&self) -> io::Result<Bytes> {
        match self {
            Bulk::Bytes(bytes) => Ok(bytes.clone()),
            Bulk::File(range) => read_in(range),
        }
    }
}

impl Default for Bulk {
    fn default() -> Bulk {
        Bulk::Bytes(Bytes::new())
    }
}

impl From<Bytes> for Bulk {
    fn from(bytes: Bytes) -> Bulk {
        Bulk::Bytes(bytes)
    }
}

/// Two values are equal if both are in memory and have the same bytes. A file range equals nothing.
impl PartialEq for Bulk {
    fn eq(&self, other: &Bulk) -> bool {
        matches!((self, other), (Bulk::Bytes(one), Bulk::Bytes(two)) if one == two)
    }
}

impl Encode for Bulk {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Bulk::Bytes(bytes) => encoder.shared(bytes),
            Bulk::File(range) => encoder.file(range),
        }
    }
}

impl Decode for Bulk {
    fn decode(decoder: &mut Decoder) -> Result<Bulk, Error> {
        decoder.shared(BULK_MAX_BYTES).map(Bulk::Bytes)
    }
}

/// A piece of an encoded message.
#[derive(Clone, Debug)]
pub enum Segment {
    /// In memory.
    Bytes(Bytes),
    /// In a file.
    File(FileRange),
}

impl Segment {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Segment::Bytes(bytes) => bytes.len(),
            Segment::File(range) => range.length as usize,
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An encoded message: segments to send one after the other. `first` holds all of a small message.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The first segment, always in memory.
    pub first: Bytes,
    /// The segments after the first.
    pub more: Vec<Segment>,
}

impl Message {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.first.len() + self.more.iter().map(Segment::len).sum::<usize>()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the message in one buffer. File ranges are read into memory; a single first segment is shared,
    /// not copied.
    pub fn to_bytes(&self) -> io::Result<Bytes> {
        if self.more.is_empty() {
            return Ok(self.first.clone());
        }
        let mut all = BytesMut::with_capacity(self.len());
        all.put_slice(&self.first);
        for segment in &self.more {
            match segment {
                Segment::Bytes(bytes) => all.put_slice(bytes),
                Segment::File(range) => all.put_slice(&read_in(range)?),
            }
        }
        Ok(all.freeze())
    }
}

fn read_in(range: &FileRange) -> io::Result<Bytes> {
    let mut buffer = vec![0; range.length as usize];
    range.file.read_exact_at(&mut buffer, range.offset)?;
    Ok(buffer.into())
}

/// Builds an encoded message.
#[derive(Debug, Default)]
pub struct Encoder {
    closed: Vec<Segment>,
    open: BytesMut,
    closed_bytes: usize,
}

impl Encoder {
    /// An empty message with capacity for a small one.
    pub fn new() -> Encoder {
        Encoder::with_capacity(256)
    }

    /// An empty message whose first segment has capacity for `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Encoder {
        Encoder { closed: Vec::new(), open: BytesMut::with_capacity(bytes), closed_bytes: 0 }
    }

    /// Number of bytes so far.
    pub fn len(&self) -> usize {
        self.closed_bytes + self.open.len()
    }

    /// True if nothing has been appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) {
        self.open.put_u32(value);
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.open.put_u64(value);
    }

    /// Appends bytes unchanged, without length or padding.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.open.put_slice(bytes);
    }

    /// Appends variable-length opaque data, copied.
    pub fn opaque(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
        self.pad(bytes.len());
    }

    /// Appends variable-length opaque data, shared if that is cheaper.
    pub fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < SEGMENT_MIN_BYTES {
            return self.opaque(bytes);
        }
        self.u32(bytes.len() as u32);
        self.segment(Segment::Bytes(bytes.clone()));
        self.pad(bytes.len());
    }

    /// Appends variable-length opaque data from a file.
    pub fn file(&mut self, range: &FileRange) {
        self.u32(range.length);
        self.segment(Segment::File(range.clone()));
        self.pad(range.length as usize);
    }

    /// Appends another message.
    pub fn message(&mut self, message: Message) {
        if message.first.len() < SEGMENT_MIN_BYTES {
            self.raw(&message.first);
        } else {
            self.segment(Segment::Bytes(message.first));
        }
        for segment in message.more {
            self.segment(segment);
        }
    }

    /// Overwrites four bytes that were appended to the first segment before.
    pub fn patch(&mut self, position: usize, value: u32) {
        let place = match self.closed.first_mut() {
            None => &mut self.open[position..position + 4],
            // A bulk segment closed the first segment. Only this encoder refers to it, but it is frozen:
            // rewrite it.
            Some(Segment::Bytes(first)) => {
                let mut copy = BytesMut::from(&first[..]);
                copy[position..position + 4].copy_from_slice(&value.to_be_bytes());
                *first = copy.freeze();
                return;
            }
            Some(Segment::File(_)) => unreachable!("the first segment is always in memory"),
        };
        place.copy_from_slice(&value.to_be_bytes());
    }

    /// Returns the message.
    pub fn finish(mut self) -> Message {
        if self.closed.is_empty() {
            return Message { first: self.open.freeze(), more: Vec::new() };
        }
        if !self.open.is_empty() {
            self.closed.push(Segment::Bytes(self.open.freeze()));
        }
        let mut segments = self.closed.into_iter();
        match segments.next() {
            Some(Segment::Bytes(first)) => Message { first, more: segments.collect() },
            _ => unreachable!("the first segment is always in memory"),
        }
    }

    fn pad(&mut self, length: usize) {
        self.raw(&[0; 3][..crate::padding(length)]);
    }

    fn segment(&mut self, segment: Segment) {
        if self.closed.is_empty() || !self.open.is_empty() {
            let open = self.open.split().freeze();
            self.closed_bytes += open.len();
            self.closed.push(Segment::Bytes(open));
        }
        self.closed_bytes += segment.len();
        self.closed.push(segment);
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Encoder) {}
}

impl Encode for u32 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(*self);
    }
}

impl Encode for i32 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(*self as u32);
    }
}

impl Encode for u64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u64(*self);
    }
}

impl Encode for i64 {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u64(*self as u64);
    }
}

impl Encode for bool {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(u32::from(*self));
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, encoder: &mut Encoder) {
        self.is_some().encode(encoder);
        if let Some(value) = self {
            value.encode(encoder);
        }
    }
}

impl<T: Encode + ?Sized> Encode for &T {
    fn encode(&self, encoder: &mut Encoder) {
        (**self).encode(encoder);
    }
}

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.raw(self);
        encoder.pad(N);
    }
}
