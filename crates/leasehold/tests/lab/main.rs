//! `leasehold` with real kernels. Linux clients mount `serve` and `proxy`, with all three origins, through
//! kills and network cuts. Each test boots what it needs. As many tests run at the same time as the lab has
//! lanes.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod builds;
mod close_to_open;
mod cluster;
mod coherence;
mod counts;
mod defaults;
#[path = "../everyday/mod.rs"]
mod everyday;
mod everyday_there;
mod faults;
mod foreign_proxies;
mod frozen;
mod journal;
mod kerberos;
mod kill;
mod levels;
mod lever;
mod locks;
mod mounted;
mod nache;
mod nested;
mod nlm;
mod origins;
mod package;
mod recalls;
mod referrals;
mod restart;
mod rpcbind;
mod stack;
mod suite;
mod tails;
mod tree;
mod v4;
