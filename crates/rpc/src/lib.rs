//! ONC RPC (RFC 5531): calls and replies over TCP and UDP, in both roles on one connection.
//!
//! A [`Service`] answers calls. A [`Server`] listens for it on TCP and UDP; a [`Link`] calls one, reconnects when the
//! connection is lost and resends with the same xid. Both stand on the symmetric [`Connection`], so that a server can
//! call its client back on the connection that the client made.
//!
//! The [`ReplyCache`] makes calls that must not happen twice happen once, across a `kill -9`: see [`replay`].
//!
//! A [`Server`] keeps within bounds for the whole process: [`account`] for memory, the table of connections for descriptors.
//!
//! Assumed everywhere: messages are bounded by [`RECORD_MAX_BYTES`], the calls in flight of a connection by
//! [`connection::Limits`]; a message that cannot be decoded ends its connection and nothing else.

pub mod account;
pub mod auth;
pub mod congestion;
pub mod connection;
mod connections;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod intake;
pub mod link;
pub mod memory;
pub mod message;
mod outbox;
pub mod pending;
pub mod record;
pub mod replay;
pub mod rtt;
pub mod server;
pub mod service;
mod sys;
mod udp;

pub use auth::{AuthSys, Credential};
pub use connection::Connection;
pub use link::{Answer, CallError, Connected, Link, LinkOptions, Outgoing, Patience, SourcePort, Transport};
pub use replay::ReplyCache;
pub use server::{Load, Server, ServerOptions};
pub use service::{Call, Outcome, Remember, Service};
pub use udp::Datagrams;

/// The largest message: our largest transfer of 1 MiB (2 MiB asked of us by others) with room for headers.
pub const RECORD_MAX_BYTES: usize = (2 << 20) + (64 << 10);
