//! ONC RPC (RFC 5531): calls and replies over TCP and UDP, in both roles on one connection.
//!
//! A [`Service`] answers calls. A [`Server`] listens on TCP and UDP and hands calls to a service. A [`Link`]
//! calls a server; when the connection is lost, the link reconnects and resends with the same xid. Both use
//! the symmetric [`Connection`], so a server can call its client back on the connection that the client made.
//!
//! The [`ReplyCache`] executes each non-idempotent call only once, even across a `kill -9` of the server: see
//! [`replay`].
//!
//! A [`Server`] bounds the resources of the whole process: [`account`] bounds memory, and the table of
//! connections bounds descriptors. [`fair`] divides what is left between peers: processors, queues, and
//! rates.
//!
//! Connections may be secured by TLS: see [`tls`]. Users may prove who they are: see [`rpcsec_gss`].
//!
//! Every module relies on two bounds: [`RECORD_MAX_BYTES`] limits a message, and [`connection::Limits`]
//! limits the calls in flight of a connection. A message that cannot be decoded ends its connection and
//! nothing else.

pub mod account;
pub mod auth;
pub mod congestion;
pub mod connection;
mod connections;
pub mod fair;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod intake;
pub mod latency;
pub mod link;
pub mod memory;
pub mod message;
mod outbox;
pub mod pending;
pub mod record;
mod refusals;
pub mod replay;
pub mod rpcsec_gss;
pub mod rtt;
pub mod server;
pub mod service;
mod sys;
pub mod term;
pub mod tls;
mod udp;
mod wire;

pub use auth::{AuthSys, Credential};
pub use connection::Connection;
pub use link::{
    Answer, CallError, Connected, Link, LinkOptions, NoContext, Outgoing, Patience, SourcePort, Transport,
};
pub use refusals::refused;
pub use replay::ReplyCache;
pub use server::{Load, Server, ServerOptions};
pub use service::{Call, Outcome, Remember, Service};
pub use tls::{TlsLink, TransportSecurity};
pub use udp::Datagrams;

/// The largest message: 2 MiB of data plus headers. Our own transfers are 1 MiB; other clients may ask us for
/// 2 MiB.
pub const RECORD_MAX_BYTES: usize = (2 << 20) + (64 << 10);
