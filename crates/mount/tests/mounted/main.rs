//! The whole client, mounted for real: what programs of this machine see. Skipped where nothing can be mounted.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod counts;
mod direct;
mod ends;
mod files;
mod gated;
mod handles;
#[path = "../../../cache/tests/origin/mod.rs"]
mod origin;
mod others;
mod reopen;
mod semantics;
mod setting;
mod stress;
mod sys;
