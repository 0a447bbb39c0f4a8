//! Arbitrary bytes as nfs3 messages: `cargo +nightly fuzz run nfs3`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nfs3(input));
