//! The complete client, really mounted, as programs of this machine see it. Skipped where mounting is
//! impossible.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod counts;
mod direct;
mod ends;
mod files;
mod gated;
mod gone;
mod handles;
#[path = "../../../cache/tests/origin/mod.rs"]
mod origin;
mod others;
mod reopen;
mod semantics;
mod setting;
mod stress;
mod sys;
