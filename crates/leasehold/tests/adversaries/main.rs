//! The program against those who mean it ill: each finding of a hostile review is a test here or, where the wire is enough,
//! in `server/tests/v4_state/adversaries`.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod bounds;
mod damage;
mod disk;
#[path = "../program/mod.rs"]
mod program;
mod rights;
mod wire;
