//! Arbitrary sequences of requests to the table of sessions: `cargo +nightly fuzz run sessions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::sessions(input));
