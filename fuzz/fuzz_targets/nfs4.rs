//! Arbitrary bytes as nfs4 messages: `cargo +nightly fuzz run nfs4`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nfs4(input));
