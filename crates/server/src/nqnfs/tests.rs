//! The diagrams of section 4 and the rules of section 5, on simulated time, through the whole server: calls as they come
//! off the wire, the arbiter, and a file system in memory that grants leases. What the network does is for tests of
//! sockets.

#[path = "../../../arbiter/tests/below/mod.rs"]
mod below;
mod sharing;
mod stage;
mod waiting;
