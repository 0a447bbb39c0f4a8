//! Arbitrary bytes as NSM messages: `cargo +nightly fuzz run nsm`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nsm(input));
