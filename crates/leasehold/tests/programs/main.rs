//! Programs of POSIX calls on several mounts of one server: each outcome is held against a model of what is promised.
//!
//! `random` makes programs up (`LAB_SEED` repeats them from one on, `LAB_STEPS` says how many calls are made), `scripted` has
//! those that once found something. Skipped where nothing can be mounted.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

#[path = "../everyday/mod.rs"]
mod everyday;
mod everyday_here;
mod generate;
mod kernel;
mod model;
mod play;
mod program;
mod random;
mod scripted;
mod seat;
#[allow(dead_code, reason = "that program's tests use the rest")]
#[path = "../mounts/setting.rs"]
mod setting;
mod sys;
