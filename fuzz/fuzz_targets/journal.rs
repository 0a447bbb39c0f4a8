//! Any entries as the journal of delayed writes of an earlier process: `cargo +nightly fuzz run journal`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| cache::fuzzing::journal(input));
