//! The state of NFSv4 clients on the wire: sessions, opens, locks, leases and their end, over a local
//! directory behind the arbiter.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod adversaries;
mod callbacks;
#[path = "../common/calls.rs"]
mod calls;
mod capacity;
mod clients;
mod delegations;
mod directories;
mod locks;
mod minor0;
mod nlm;
mod opens;
mod proxied;
mod restart;
mod sessions;
mod setup;
mod stateless;
#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "../v4/wire.rs"]
mod wire;
