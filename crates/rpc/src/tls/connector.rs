//! The client's side: the CAs that it trusts, the name that the server must prove, and its own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::FileError;
use super::files::{self, Identity, Stamp};
use super::handshake::shake;
use super::session::Session;
use super::{ALPN, Error, VERSIONS, probe, provider};

/// The CAs that this machine trusts, where Debian, Fedora and openSUSE have them.
pub const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/var/lib/ca-certificates/ca-bundle.pem",
];

/// How long probe and handshake may take.
const SECURE_MAX: Duration = Duration::from_secs(10);

/// The files of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The CAs that may issue the server's certificate. Without it, those that this machine trusts.
    pub ca: Option<PathBuf>,
    /// The client's own certificate and key, for `xprtsec=mtls`.
    pub identity: Option<Identity>,
}

impl ClientFiles {
    /// What rustls needs, from the files as they are now: TLS 1.3, with these protocols (RFC 7301).
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn config(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, FileError> {
        let ca = self.ca();
        let roots = files::roots(ca)?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| FileError { path: ca.to_owned(), why: error.to_string() })?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let (chain, private) = (files::certificates(certificate)?, files::key(key)?);
                let built = builder.with_client_auth_cert(chain, private);
                built.map_err(|error| files::mismatch(certificate, key, &error))?
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn ca(&self) -> &Path {
        let system = || SYSTEM_ROOTS.iter().map(Path::new).find(|path| path.exists());
        self.ca.as_deref().or_else(system).unwrap_or(Path::new(SYSTEM_ROOTS[0]))
    }
}

/// See the module. It reads its files when it is used first, and again if one of them has changed when a
/// further connection begins.
#[derive(Debug)]
pub struct Connector {
    /// The server's name or address, as the user wrote it.
    host: String,
    files: ClientFiles,
    loaded: Mutex<Option<(Stamps, Arc<ClientConfig>)>>,
}

/// The stamps of all files.
type Stamps = Vec<Option<Stamp>>;

impl Connector {
    /// For connections to this host: a DNS name or an address.
    pub fn new(host: &str, files: ClientFiles) -> Arc<Connector> {
        Arc::new(Connector { host: host.to_owned(), files, loaded: Mutex::default() })
    }

    /// Asks for TLS on a new connection, and makes the handshake.
    pub(crate) async fn secure(&self, stream: &TcpStream, probe: (u32, u32)) -> Result<Session, Error> {
        let config = self.config()?;
        let name = ServerName::try_from(self.host.clone()).map_err(|_| Error::Name(self.host.clone()))?;
        let securing = async {
            probe::ask(stream, probe).await?;
            shake(stream, ClientConnection::new(config, name)?.into()).await
        };
        timeout(SECURE_MAX, securing).await.map_err(|_| Error::TimedOut)?
    }

    /// The configuration, from files as they are now. If a changed file cannot be used, the configuration of
    /// the earlier ones stays.
    fn config(&self) -> Result<Arc<ClientConfig>, FileError> {
        let stamps = self.stamps();
        let mut loaded = self.loaded.lock();
        let before = loaded.as_ref().map(|(of, config)| (*of == stamps, config.clone()));
        if let Some((true, config)) = before {
            return Ok(config);
        }
        let config = match (self.files.config(&[ALPN]), before) {
            (Ok(config), _) => config,
            (Err(error), Some((_, config))) => {
                tracing::warn!(host = self.host, "the certificates read before stay: {error}");
                config
            }
            (Err(error), None) => return Err(error),
        };
        *loaded = Some((stamps, config.clone()));
        Ok(config)
    }

    fn stamps(&self) -> Stamps {
        let identity = self.files.identity.iter();
        let own = identity.flat_map(|identity| [&*identity.certificate, &*identity.key]);
        own.chain([self.files.ca()]).map(files::stamp).collect()
    }
}
