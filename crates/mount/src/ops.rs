//! The operations, one file per group: what the kernel asks, in terms of the file system below.

mod attributes;
pub mod deadlock;
mod directory;
pub mod doubt;
mod extended;
mod io;
pub mod lock;
mod names;
mod open;
pub mod opening;
mod remove;
pub mod reopen;
