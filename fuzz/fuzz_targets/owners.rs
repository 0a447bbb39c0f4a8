//! Arbitrary sequences of requests to the table of owners: `cargo +nightly fuzz run owners`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::owners(input));
