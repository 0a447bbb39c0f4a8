//! The bodies of the server's fuzz targets: sequences of calls to the tables of clients, owners,
//! sessions and states.

pub use crate::nfs4::fuzzing::{clients, owners, sessions, states};
