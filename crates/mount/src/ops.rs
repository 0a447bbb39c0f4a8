//! The operations, one file per group: what the kernel asks, in terms of the file system below.

mod attributes;
mod directory;
mod extended;
mod io;
mod lock;
mod names;
mod open;
mod remove;
