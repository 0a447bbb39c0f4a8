//! XDR (RFC 4506): encoding into scatter lists, decoding out of shared buffers.
//!
//! File data is never copied here. A decoded [`Bulk`] or [`Opaque`] shares the buffer of the record that it arrived
//! in; an encoded one goes out as a segment of its own, which may be a range of a file that the transport sends with
//! `sendfile`. Every length from outside is held against a bound before anything is allocated for it.
//!
//! `#[derive(Xdr)]` writes [`Encode`] and [`Decode`] for
//! - structs: the fields in order;
//! - enums without data: the discriminant, any other value being an error;
//! - enums with data (XDR unions): `#[xdr(case = N)]` on each variant, and `#[xdr(default)]` on at most one, whose
//!   first field then is the discriminant itself.

mod collections;
mod decoder;
mod encoder;

pub use collections::{Inline, LinkedList, List, Opaque};
pub use decoder::{Decode, Decoder, Error};
pub use encoder::{Bulk, Encode, Encoder, FileRange, Message, Segment};
pub use xdr_derive::Xdr;

// Lets the derive's output name this crate from inside it, as it does from outside.
extern crate self as xdr;

/// Decodes a whole message; bytes left over are an error.
pub fn from_bytes<T: Decode>(bytes: bytes::Bytes) -> Result<T, Error> {
    let mut decoder = Decoder::new(bytes);
    let value = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(value)
}

/// Encodes a value into one buffer. File ranges are read in.
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
