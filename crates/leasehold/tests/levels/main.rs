//! Proxies behind proxies: `serve`, three proxies each before the one below, and clients of the last. All are
//! processes of their own.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod chain;
mod costs;
#[path = "../program/mod.rs"]
mod program;
mod recalls;
mod restarts;
