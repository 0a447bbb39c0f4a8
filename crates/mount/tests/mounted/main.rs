//! The whole client, mounted for real: what programs of this machine see. Skipped where nothing can be mounted.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod counts;
mod ends;
mod files;
mod semantics;
mod setting;
mod stress;
