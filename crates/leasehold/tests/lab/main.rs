//! `leasehold` under real kernels: Linux clients mount `serve` and `proxy`, before all three origins, through kills and
//! cut networks. Each boots what it needs; as many are in the lab at a time as it has lanes.
#![allow(clippy::unwrap_used)] // a test ends at the first surprise

mod builds;
mod close_to_open;
mod coherence;
mod counts;
mod defaults;
#[path = "../everyday/mod.rs"]
mod everyday;
mod everyday_there;
mod faults;
mod frozen;
mod kill;
mod lever;
mod locks;
mod mounted;
mod nache;
mod nested;
mod recalls;
mod referrals;
mod restart;
mod rpcbind;
mod stack;
mod suite;
mod tails;
mod tree;
mod v4;
