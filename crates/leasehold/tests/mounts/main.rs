//! `leasehold mount` against those who would break it: kills, other mounts, and programs that hold Unix to its word.
//! Everything runs as programs, before `serve`, over version 3 and 4.2. Skipped where nothing can be mounted.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod close_to_open;
mod departure;
mod descriptors;
mod full;
mod kill;
mod killed;
mod locks;
mod model;
mod names;
mod setting;
mod sparse;
mod stress;
mod times;
mod unix;
