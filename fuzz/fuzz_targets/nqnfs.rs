//! Arbitrary bytes as nqnfs messages: `cargo +nightly fuzz run nqnfs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nqnfs(input));
