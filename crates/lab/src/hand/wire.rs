//! Messages between a test and the hand in its guest: a count of fields, then each field's length and bytes, big-endian.
//!
//! Both ends are built from the same source in the same run, so there are no versions. Lengths are bounded all the same: a guest
//! that went astray must not take the test's memory with it.

use std::io::{self, Read, Write};

/// Most fields a message has.
const FIELDS_MAX: u32 = 8;
/// Most bytes a field has.
const FIELD_BYTES_MAX: u32 = 64 << 20;

/// The fields of one message; the first names what it is.
pub type Message = Vec<Vec<u8>>;

/// Sends one message.
pub fn send(to: &mut impl Write, fields: &[&[u8]]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 + fields.iter().map(|field| 4 + field.len()).sum::<usize>());
    bytes.extend_from_slice(&(fields.len() as u32).to_be_bytes());
    for field in fields {
        bytes.extend_from_slice(&(field.len() as u32).to_be_bytes());
        bytes.extend_from_slice(field);
    }
    to.write_all(&bytes)
}

/// Receives one message; `None` when the other end closed between two.
pub fn receive(from: &mut impl Read) -> io::Result<Option<Message>> {
    let mut first = [0u8; 1];
    if from.read(&mut first)? == 0 {
        return Ok(None);
    }
    let mut rest = [0u8; 3];
    from.read_exact(&mut rest)?;
    let count = bounded(u32::from_be_bytes([first[0], rest[0], rest[1], rest[2]]), FIELDS_MAX)?;
    let mut message = Vec::new();
    for _ in 0..count {
        let mut length = [0u8; 4];
        from.read_exact(&mut length)?;
        let mut field = vec![0u8; bounded(u32::from_be_bytes(length), FIELD_BYTES_MAX)? as usize];
        from.read_exact(&mut field)?;
        message.push(field);
    }
    Ok(Some(message))
}

fn bounded(value: u32, max: u32) -> io::Result<u32> {
    if value <= max {
        return Ok(value);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a lab message announces {value}, the limit is {max}"),
    ))
}
