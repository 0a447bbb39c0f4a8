//! Arbitrary bytes as portmap messages: `cargo +nightly fuzz run portmap`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::portmap(input));
