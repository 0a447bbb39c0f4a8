//! Parses ONC RPC calls in a byte stream: program, version and procedure of each call.
//!
//! It knows record marking (RFC 5531, section 11) and the fixed header of a call, and skips the rest. If a
//! stream turns out not to be RPC, it stops parsing.

/// The largest fragment that is accepted.
const FRAGMENT_BYTES_MAX: u32 = 64 << 20;
/// Length of xid, message type, RPC version, program, version and procedure.
const HEAD_BYTES: usize = 24;
/// Message type of a call.
const CALL: u32 = 0;
/// The bit of a record mark that marks the last fragment.
const LAST_FRAGMENT: u32 = 1 << 31;

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

/// Position of the parser in the stream.
#[derive(Debug)]
pub(super) struct CallReader {
    mark: Vec<u8>,
    head: Vec<u8>,
    fragment_left: u32,
    is_last_fragment: bool,
    given_up: bool,
}

impl CallReader {
    pub(super) fn new() -> CallReader {
        CallReader {
            mark: Vec::new(),
            head: Vec::new(),
            fragment_left: 0,
            is_last_fragment: true,
            given_up: false,
        }
    }

    /// Parses the next bytes of the stream. Returns the calls whose headers they complete.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Vec<Call> {
        let mut calls = Vec::new();
        while !bytes.is_empty() && !self.given_up {
            if self.fragment_left == 0 {
                take(&mut bytes, &mut self.mark, 4);
                self.begin_fragment();
                continue;
            }
            let wanted = HEAD_BYTES - self.head.len();
            let count = bytes.len().min(self.fragment_left as usize);
            let in_head = count.min(wanted);
            self.head.extend_from_slice(&bytes[..in_head]);
            if in_head > 0 && in_head == wanted {
                calls.extend(self.call());
            }
            let passed = if in_head > 0 { in_head } else { count };
            self.fragment_left -= passed as u32;
            bytes = &bytes[passed..];
            if self.fragment_left == 0 && self.is_last_fragment {
                self.head.clear();
            }
        }
        calls
    }

    fn begin_fragment(&mut self) {
        let Ok(mark) = <[u8; 4]>::try_from(self.mark.as_slice()) else { return };
        let mark = u32::from_be_bytes(mark);
        self.mark.clear();
        self.is_last_fragment = mark & LAST_FRAGMENT != 0;
        self.fragment_left = mark & !LAST_FRAGMENT;
        self.given_up = self.fragment_left > FRAGMENT_BYTES_MAX;
    }

    /// The call of a complete header; `None` if the message is not a call.
    fn call(&mut self) -> Option<Call> {
        let words: Vec<u32> = self
            .head
            .chunks_exact(4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let [_, kind, rpc_version, program, version, procedure] = words[..] else { return None };
        self.given_up = rpc_version != 2;
        (kind == CALL && rpc_version == 2).then_some(Call { program, version, procedure })
    }
}

fn take(from: &mut &[u8], to: &mut Vec<u8>, wanted: usize) {
    let count = from.len().min(wanted - to.len());
    to.extend_from_slice(&from[..count]);
    *from = &from[count..];
}

#[cfg(test)]
mod tests {
    use super::{Call, CallReader};

    fn call(procedure: u32, body: usize) -> Vec<u8> {
        let words = [77, 0, 2, 100_003, 3, procedure];
        words.iter().flat_map(|word: &u32| word.to_be_bytes()).chain(std::iter::repeat_n(9, body)).collect()
    }

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { 1 << 31 } else { 0 };
        [&mark.to_be_bytes(), bytes].concat()
    }

    #[test]
    fn calls_are_found_however_the_stream_is_cut() {
        let split = call(7, 100);
        let stream = [
            fragment(&call(1, 40), true),
            fragment(&split[..10], false),
            fragment(&split[10..60], false),
            fragment(&split[60..], true),
            fragment(&call(6, 0), true),
        ]
        .concat();
        for step in [1, 3, 28, 64, stream.len()] {
            let mut reader = CallReader::new();
            let found: Vec<u32> =
                stream.chunks(step).flat_map(|chunk| reader.feed(chunk)).map(|call| call.procedure).collect();
            assert_eq!(found, [1, 7, 6], "in steps of {step}");
        }
        assert_eq!(CallReader::new().feed(&stream)[0], Call { program: 100_003, version: 3, procedure: 1 });
    }

    #[test]
    fn what_is_no_rpc_is_given_up() {
        let mut reader = CallReader::new();
        assert_eq!(reader.feed(b"GET / HTTP/1.1\r\n\r\n"), []);
        assert_eq!(reader.feed(&fragment(&call(1, 0), true)), []);
    }
}
