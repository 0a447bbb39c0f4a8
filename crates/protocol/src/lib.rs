//! The wire types of the protocols that Leasehold speaks, and nothing that they do.
//!
//! One module per program, named as its RFC names it; within it the RFC's names in Rust case, less the version digit
//! that the module already says. Each program is a table of procedures ([`Procedure`](nfs3::Procedure) by number, a
//! [`Call`] type for each), so that a client sends and a server dispatches by type.
//!
//! Bounds are part of the types. Where an RFC leaves a length open, the bound here is what Linux could ever send.

mod program;
mod reply;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod mount;
pub mod nfs2;
pub mod nfs3;
pub mod nfs4;
pub mod nqnfs;
pub mod portmap;

pub use program::{Call, UnknownProcedure, Visit};
pub use reply::Reply;

#[cfg(test)]
mod tests;
