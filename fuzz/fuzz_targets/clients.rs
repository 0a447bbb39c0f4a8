//! Arbitrary sequences of calls to the table of clients: `cargo +nightly fuzz run clients`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::clients(input));
