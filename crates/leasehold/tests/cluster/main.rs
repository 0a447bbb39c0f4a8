//! A cluster of proxies with real etcd: members, their virtual servers, and clients that go on while members
//! are killed, stopped, drained and cut off. All parts are processes on this machine.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod failover;
mod mistakes;
mod older;
#[path = "../../../rpc/tests/tls/pki.rs"]
mod pki;
#[path = "../program/mod.rs"]
mod program;
mod site;
mod tls;
