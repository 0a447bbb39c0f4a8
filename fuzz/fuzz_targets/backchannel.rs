//! Arbitrary sequences of callbacks and answers on a backchannel: `cargo +nightly fuzz run backchannel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| server::fuzzing::backchannel(input));
