//! The bodies of the server's fuzz targets: sequences of calls to the tables of clients, owners, sessions and
//! states, of callbacks, and of calls to an NQNFS server.

pub use crate::nfs4::fuzzing::{backchannel, clients, owners, sessions, states};
pub use crate::nqnfs::fuzzing::leases;
