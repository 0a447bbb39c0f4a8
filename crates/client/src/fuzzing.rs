//! The body of the client's fuzz target: sequences of callbacks of an origin.

pub use crate::nfs4::fuzzing::callbacks;
