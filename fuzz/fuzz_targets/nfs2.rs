//! Arbitrary bytes as nfs2 messages: `cargo +nightly fuzz run nfs2`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol::fuzzing::nfs2(input));
