//! NFSv4 on the wire: hand-made compounds over a local directory behind the arbiter.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod changes;
mod garbage;
mod minor2;
mod names;
mod pseudo;
mod referrals;
mod rules;
mod secinfo;
#[allow(dead_code, reason = "the tests of state use the rest")]
#[path = "../v4_state/setup.rs"]
mod setup;
#[allow(dead_code, reason = "the tests of state use the rest")]
mod wire;
