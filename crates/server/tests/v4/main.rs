//! NFSv4 on the wire: compounds made by hand, over a directory of this machine behind the arbiter.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod garbage;
mod minor2;
mod names;
mod pseudo;
mod referrals;
mod rules;
#[allow(dead_code, reason = "the tests of state use the rest")]
#[path = "../v4_state/setup.rs"]
mod setup;
#[allow(dead_code, reason = "the tests of state use the rest")]
mod wire;
