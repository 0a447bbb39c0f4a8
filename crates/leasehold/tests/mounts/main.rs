//! `leasehold mount` under kills, with other mounts, and with programs that rely on Unix semantics. All
//! parts run as processes, with `serve` as the server, over versions 3 and 4.2. Skipped on machines where
//! nothing can be mounted.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod close_to_open;
mod departure;
mod descriptors;
mod fsync;
mod full;
mod journal;
mod kill;
mod killed;
mod locks;
mod model;
mod names;
mod prefetch;
mod profile;
mod setting;
mod sparse;
mod stress;
mod times;
mod unix;
mod writeback;
