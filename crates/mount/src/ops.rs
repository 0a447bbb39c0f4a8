//! The operations, one file for each group: they translate the kernel's requests into calls of the file
//! system below.

mod attributes;
pub mod deadlock;
mod directory;
pub mod doubt;
mod extended;
mod gone;
mod io;
pub mod lock;
pub mod moved;
mod names;
mod open;
pub mod opening;
mod remove;
pub mod reopen;
pub mod walks;
