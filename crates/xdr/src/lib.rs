//! XDR (RFC 4506): encoding into scatter lists, decoding out of shared buffers.
//!
//! This crate never copies file data. A decoded [`Bulk`] or [`Opaque`] shares the buffer of the record that
//! contained it. The encoder emits file data as a segment of its own. A segment may be a range of a file,
//! which the transport sends with `sendfile`. The decoder checks every received length against a bound before
//! it allocates memory for the value.
//!
//! `#[derive(Xdr)]` writes [`Encode`] and [`Decode`] for
//! - structs: the fields in order;
//! - enums without data: the discriminant; decoding any other value is an error;
//! - enums with data (XDR unions): `#[xdr(case = N)]` on each variant, and `#[xdr(default)]` on at most one.
//!   The first field of the default variant is the discriminant itself.

mod collections;
mod decoder;
mod encoder;

pub use collections::{Inline, LinkedList, List, Opaque};
pub use decoder::{Decode, Decoder, Error};
pub use encoder::{Bulk, Encode, Encoder, FileRange, Message, Segment};
pub use xdr_derive::Xdr;

// Lets the derive's output use the path `::xdr` inside this crate too.
extern crate self as xdr;

/// Decodes a message; bytes after the value are an error.
pub fn from_bytes<T: Decode>(bytes: bytes::Bytes) -> Result<T, Error> {
    let mut decoder = Decoder::new(bytes);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

/// Encodes a value into one buffer. File ranges are read into memory.
pub fn to_bytes<T: Encode + ?Sized>(value: &T) -> std::io::Result<bytes::Bytes> {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.finish().to_bytes()
}

/// How many bytes pad an opaque of this length to a multiple of four.
pub const fn padding(length: usize) -> usize {
    (4 - length % 4) % 4
}

#[cfg(test)]
mod tests;
