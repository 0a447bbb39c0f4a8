//! Arbitrary bytes as a stream of RPC records, and as one datagram: `cargo +nightly fuzz run rpc`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rpc::fuzzing::rpc(input));
