//! NFSv4 on the wire: compounds made by hand, over a directory of this machine behind the arbiter.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod garbage;
mod names;
mod pseudo;
mod rules;
mod wire;
