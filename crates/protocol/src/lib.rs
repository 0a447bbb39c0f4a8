//! The wire types of the protocols that Leasehold uses, without behaviour.
//!
//! Each program has one module, named as in its RFC. Names in it are those of the RFC in Rust case, without
//! the version digit, which the module already states. Each program is a table of procedures:
//! [`Procedure`](nfs3::Procedure) by number, and a [`Call`] type for each. So clients send by type and
//! servers dispatch by type.
//!
//! Bounds are part of the types. If an RFC leaves a length open, the bound is the most that Linux can send.

mod program;
mod reply;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod mount;
pub mod nfs2;
pub mod nfs3;
pub mod nfs4;
pub mod nlm;
pub mod nqnfs;
pub mod nsm;
pub mod portmap;
pub mod rpcbind;

pub use program::{Call, UnknownProcedure, Visit};
pub use reply::Reply;

#[cfg(test)]
mod tests;
