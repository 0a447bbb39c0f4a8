//! RPC with TLS between a real server and real links, and against peers that break the rules.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod pki;
mod raw;
mod refused;
mod setting;
mod works;
