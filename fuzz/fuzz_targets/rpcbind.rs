//! Arbitrary bytes as RPCBIND messages: `cargo +nightly fuzz run rpcbind`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::rpcbind(input));
