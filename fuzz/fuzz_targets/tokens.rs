//! Any bytes as tokens of Kerberos, without and with a right signature: `cargo +nightly fuzz run tokens`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| gss::fuzzing::tokens(input));
