//! Arbitrary sequences of calls to the reply cache: `cargo +nightly fuzz run replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| rpc::fuzzing::replies(input));
