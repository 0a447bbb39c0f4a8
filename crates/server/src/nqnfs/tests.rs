//! Tests the diagrams of section 4 and the rules of section 5 of the paper on simulated time. They cover
//! the complete server: decoded calls, the arbiter, and a file system in memory that grants leases. Tests
//! with sockets cover the network.

mod sharing;
mod waiting;
