//! The bodies of the fuzz targets of the server: sequences of calls before the tables of clients, sessions and states.

pub use crate::nfs4::fuzzing::{clients, sessions, states};
