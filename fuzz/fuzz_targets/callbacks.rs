//! Arbitrary sequences of callbacks of an origin: `cargo +nightly fuzz run callbacks`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| client::fuzzing::callbacks(input));
