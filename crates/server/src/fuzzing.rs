//! The bodies of the server's fuzz targets: sequences of calls to the tables of clients, owners, sessions and
//! states, of callbacks, and of calls to an NQNFS server.

pub use crate::callback::fuzzing::backchannel;
pub use crate::nqnfs::fuzzing::leases;
pub use crate::state::fuzzing::{clients, owners, sessions, states};
