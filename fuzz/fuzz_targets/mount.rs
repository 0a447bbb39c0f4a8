//! Arbitrary bytes as mount messages: `cargo +nightly fuzz run mount`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::mount(input));
