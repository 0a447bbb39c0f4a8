//! Messages between a test and the hand in its guest: the number of fields, then length and bytes of each
//! field. Integers are big-endian.
//!
//! Both ends are built from the same source in the same run, so there is no version number. Lengths are
//! bounded nevertheless: a faulty guest must not exhaust the memory of the test.
//!
//! A socket with a timeout fails with EINTR when its process is stopped and continued, or frozen and thawed
//! (signal(7)). Such a read is repeated: otherwise every later reply would be taken for that of the act
//! after its own.

use std::io::{self, Read, Write};

/// The most fields of a message.
const FIELDS_MAX: u32 = 8;
/// The most bytes of a field.
const FIELD_BYTES_MAX: u32 = 64 << 20;

/// The fields of a message; the first is its kind.
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

/// Receives one message; `None` if the other end has closed the connection between two messages.
pub fn receive(from: &mut impl Read) -> io::Result<Option<Message>> {
    let Some(first) = first_byte(from)? else { return Ok(None) };
    let mut rest = [0u8; 3];
    from.read_exact(&mut rest)?;
    let count = bounded(u32::from_be_bytes([first, rest[0], rest[1], rest[2]]), FIELDS_MAX)?;
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

fn first_byte(from: &mut impl Read) -> io::Result<Option<u8>> {
    let mut byte = [0u8; 1];
    loop {
        match from.read(&mut byte) {
            Ok(read) => return Ok((read > 0).then_some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::{receive, send};
    use std::io::{self, Read};

    /// Every other read is interrupted.
    struct Stopped<'a> {
        bytes: &'a [u8],
        now: bool,
    }

    impl Read for Stopped<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.now = !self.now;
            if self.now { Err(io::ErrorKind::Interrupted.into()) } else { self.bytes.read(into) }
        }
    }

    #[test]
    fn a_process_that_was_stopped_and_continued_receives_all_messages() {
        let mut bytes = Vec::new();
        send(&mut bytes, &[b"ok", b"one"]).expect("sent");
        send(&mut bytes, &[b"ok", b"two"]).expect("sent");
        let mut from = Stopped { bytes: &bytes, now: false };
        let received = [(); 3].map(|()| receive(&mut from).expect("received"));
        let message = |text: &[u8]| Some(vec![b"ok".to_vec(), text.to_vec()]);
        assert_eq!(received, [message(b"one"), message(b"two"), None]);
    }
}
