//! The body of the fuzz target of RPC: any bytes as a stream of records, and as one datagram.

use bytes::Bytes;

use crate::message::{Incoming, parse_reply};
use crate::record::Assembler;

/// The bound on records: small, so that the fuzzer finds it.
const BOUND: usize = 1 << 16;

/// Takes any bytes apart, as a connection and a socket would.
pub fn rpc(input: &[u8]) {
    message(Bytes::copy_from_slice(input));
    let mut assembler = Assembler::new(BOUND);
    assembler.buffer.extend_from_slice(input);
    while let Ok(Some(record)) = assembler.take() {
        assert!(record.len() <= BOUND);
        message(record);
    }
}

fn message(record: Bytes) {
    match Incoming::parse(record) {
        Ok(Incoming::Reply { rest, .. }) => drop(parse_reply(rest)),
        Ok(Incoming::Call(header, _)) => assert!(xdr::to_bytes(&header).is_ok_and(|bytes| bytes.len() >= 40)),
        Ok(Incoming::Mismatch { .. } | Incoming::BadCredential { .. }) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_body_holds() {
        protocol::fuzzing::over_corpus("rpc", super::rpc);
    }
}
