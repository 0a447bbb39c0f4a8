//! The server's side: its certificate, the CAs of its clients, and the bounds of handshakes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::error::FileError;
use super::files::{self, Identity};
use super::handshake::shake;
use super::session::Session;
use super::{ALPN, Error, VERSIONS, provider};
use crate::account::Peer;

/// How long a handshake may take, with the wait for its turn.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Failures of one peer are logged once in this time.
const TOLD_FOR: Duration = Duration::from_secs(600);
/// The peers whose failures are remembered. Beyond that, failures of others are logged at the level debug.
const TOLD_MAX: usize = 1024;

/// The files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate of the server, then those of intermediate CAs.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs that issue the certificates of clients. Without it, no client is asked for one.
    pub client_ca: Option<PathBuf>,
}

/// See the module.
#[derive(Debug)]
pub struct Acceptor {
    files: ServerFiles,
    config: RwLock<Arc<ServerConfig>>,
    told: Mutex<HashMap<Peer, Instant>>,
}

impl Acceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn open(files: ServerFiles) -> Result<Arc<Acceptor>, FileError> {
        let config = RwLock::new(load(&files)?);
        Ok(Arc::new(Acceptor { files, config, told: Mutex::default() }))
    }

    /// Reads the files again, for the handshakes from now on.
    ///
    /// # Errors
    /// Names the file that cannot be used. The certificates in force stay.
    pub fn reload(&self) -> Result<(), FileError> {
        let config = load(&self.files)?;
        *self.config.write() = config;
        Ok(())
    }

    /// Does it verify certificates of clients?
    pub fn verifies_clients(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Makes the handshake, once `turn` is over.
    pub(crate) async fn accept(
        &self,
        stream: &TcpStream,
        turn: impl Future<Output = impl Sized>,
    ) -> Result<Session, Error> {
        let config = self.config.read().clone();
        let shaking = async {
            let _turn = turn.await;
            shake(stream, ServerConnection::new(config)?.into()).await
        };
        timeout(HANDSHAKE_MAX, shaking).await.map_err(|_| Error::TimedOut)?
    }

    /// Logs that TLS with a peer has failed: once, and not again for a while.
    pub(crate) fn failed(&self, peer: std::net::SocketAddr, error: &Error) {
        if self.is_new(Peer::from(peer.ip()), Instant::now()) {
            tracing::warn!(peer = %peer.ip(), "a client is refused: {error}");
        } else {
            tracing::debug!(%peer, %error, "TLS failed");
        }
    }

    fn is_new(&self, peer: Peer, now: Instant) -> bool {
        let mut told = self.told.lock();
        let is_over = |at: &Instant| now.saturating_duration_since(*at) >= TOLD_FOR;
        if told.get(&peer).is_some_and(|at| !is_over(at)) {
            return false;
        }
        if told.len() >= TOLD_MAX {
            told.retain(|_, at| !is_over(at));
        }
        let has_space = told.len() < TOLD_MAX;
        if has_space {
            told.insert(peer, now);
        }
        has_space
    }
}

fn load(of: &ServerFiles) -> Result<Arc<ServerConfig>, FileError> {
    let Identity { certificate, key } = Identity { certificate: of.certificate.clone(), key: of.key.clone() };
    let wrong = |error: &rustls::Error| files::mismatch(&certificate, &key, error);
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(|error| wrong(&error))?;
    let builder = match &of.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(files::roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            // Each export says whether it needs a certificate.
            let verifier = verifier.allow_unauthenticated().build().map_err(|error| FileError {
                path: path.clone(),
                why: format!("{error}; name a file with certificates of CAs"),
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, private) = (files::certificates(&certificate)?, files::key(&key)?);
    let mut config = builder.with_single_cert(chain, private).map_err(|error| wrong(&error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::tests::Pki;
    use super::*;

    #[test]
    fn failures_of_a_peer_are_told_once_in_a_while() {
        let pki = Pki::new();
        let acceptor = Acceptor::open(pki.server("localhost")).unwrap();
        let [peer, other] = [1, 2].map(|last| Peer::from(IpAddr::from([10, 0, 0, last])));
        let now = Instant::now();
        assert!(acceptor.is_new(peer, now) && acceptor.is_new(other, now));
        assert!(!acceptor.is_new(peer, now + TOLD_FOR / 2));
        assert!(acceptor.is_new(peer, now + TOLD_FOR));
    }
}
