//! The bodies of the fuzz targets of the server: sequences of calls before the tables of clients and sessions.

pub use crate::nfs4::fuzzing::{clients, sessions};
