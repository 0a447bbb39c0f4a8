//! Measuring NFS servers, and the network that measurements want between two ends of one machine.
//!
//! [`relay`] is a network with a round trip: what a wide-area link does to a protocol can be seen on one machine.
//! [`wire`] asks NFSv3 servers one thing at a time, as fast as they answer.

mod histogram;
pub mod random;
pub mod relay;
mod sys;
pub mod target;
pub mod wire;
pub mod workload;
