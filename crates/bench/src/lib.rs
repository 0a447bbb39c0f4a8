//! Measuring NFS servers, and the network that measurements want between two ends of one machine.
//!
//! [`relay`] is a network with a round trip: what a wide-area link does to a protocol can be seen on one machine.

pub mod relay;
mod sys;
