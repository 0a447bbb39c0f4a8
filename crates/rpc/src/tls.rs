//! RPC with TLS (RFC 9289): TLS 1.3 on a TCP connection, after a call with the flavor AUTH_TLS.
//!
//! The client sends the NULL procedure with that flavor as the first call of a connection ([`probe`]). A
//! server that offers TLS answers with the verifier `STARTTLS`. Then both ends make the handshake
//! ([`handshake`]), with the ALPN name `sunrpc`, and every further byte goes through a [`session::Session`].
//! The client verifies the server's certificate ([`Connector`]). The server verifies the certificate of a
//! client that presents one ([`Acceptor`]).
//!
//! Sessions are not resumed, so each connection proves its certificates again, and there is no early data.
//!
//! TLS runs in this process, so replies out of the cache are copied. A connection whose kernel takes over the
//! keys would have no session after its handshake, and `sendfile` as before.

mod acceptor;
mod connector;
mod error;
mod files;
mod handshake;
mod probe;
pub(crate) mod session;

pub use acceptor::{Acceptor, ServerFiles};
pub use connector::{ClientFiles, Connector, SYSTEM_ROOTS};
pub use error::{Error, FileError};
pub use files::Identity;
pub(crate) use probe::starttls;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::version::TLS13;

/// The ALPN name of RPC (RFC 9289, section 8.3).
pub(crate) const ALPN: &[u8] = b"sunrpc";

/// The security of a connection, in the words of exports(5) and nfs(5) `xprtsec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportSecurity {
    /// `none`: no TLS.
    #[default]
    None,
    /// `tls`: encrypted. The client did not prove who it is.
    Tls,
    /// `mtls`: encrypted, and the client has a certificate of a CA that the server trusts.
    Mtls,
}

impl TransportSecurity {
    /// All of them.
    pub const ALL: [TransportSecurity; 3] =
        [TransportSecurity::None, TransportSecurity::Tls, TransportSecurity::Mtls];

    /// The word of exports(5).
    pub fn word(self) -> &'static str {
        match self {
            TransportSecurity::None => "none",
            TransportSecurity::Tls => "tls",
            TransportSecurity::Mtls => "mtls",
        }
    }
}

/// How a link secures its connections.
#[derive(Clone, Debug)]
pub struct TlsLink {
    /// Verifies the server.
    pub connector: Arc<Connector>,
    /// Program and version whose NULL procedure asks for TLS.
    pub probe: (u32, u32),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The versions of TLS that RFC 9289 allows.
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&TLS13];

#[cfg(test)]
mod tests;
