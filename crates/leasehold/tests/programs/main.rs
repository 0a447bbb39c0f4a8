//! Programs of POSIX calls on several mounts of one server. Each outcome is compared with a model of the
//! promises.
//!
//! `random` generates programs: `LAB_SEED` repeats them from a seed, and `LAB_STEPS` sets the number of
//! calls. `scripted` contains programs that once found a bug. Skipped on machines where nothing can be
//! mounted.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

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
