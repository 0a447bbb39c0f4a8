//! Arbitrary sequences of NQNFS calls to a server on simulated time: `cargo +nightly fuzz run leases`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::leases(input));
