//! Arbitrary bytes as NLM messages: `cargo +nightly fuzz run nlm`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nlm(input));
