//! Arbitrary sequences of operations on the table of states: `cargo +nightly fuzz run states`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::states(input));
