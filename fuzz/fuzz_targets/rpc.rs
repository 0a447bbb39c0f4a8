//! Any bytes as a stream of RPC records, and as one datagram: `cargo +nightly fuzz run rpc`.
#![no_main]

use rpc::message::{Incoming, parse_reply};
use rpc::record::Assembler;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    message(input.to_vec().into());
    let mut assembler = Assembler::new(1 << 16);
    assembler.buffer.extend_from_slice(input);
    while let Ok(Some(record)) = assembler.next() {
        message(record);
    }
});

fn message(record: bytes::Bytes) {
    if let Ok(Incoming::Reply { rest, .. }) = Incoming::parse(record) {
        let _ = parse_reply(rest);
    }
}
