//! Why a connection has no TLS, with the way out.

use std::io;
use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError};

/// Why TLS failed. The messages end with the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server does not offer TLS.
    #[error(
        "the server offers no TLS; enable it there (Leasehold: --tls allow or require), or connect with xprtsec=none"
    )]
    NotOffered,
    /// The server sent more than its answer to the probe before the handshake.
    #[error("the server sent bytes in plain text before the handshake; something on the way may interfere")]
    EarlyBytes,
    /// The handshake failed, or a record is not authentic.
    #[error("{}", explain(.0))]
    Tls(#[from] rustls::Error),
    /// The other end does not speak RPC over TLS.
    #[error("the other end did not choose the ALPN name `sunrpc`; it does not speak RPC with TLS (RFC 9289)")]
    Alpn,
    /// A file with a certificate or a key cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The host of the URL cannot be the name in a certificate.
    #[error("`{0}` cannot be verified; name the server by its DNS name or address")]
    Name(String),
    /// The connection ended, without close_notify.
    #[error("the connection ended in the middle of TLS; look at the log of the other end")]
    Truncated,
    /// The handshake took too long.
    #[error("the handshake of TLS was not done in time; look at the log of the other end")]
    TimedOut,
    /// The connection failed.
    #[error("{0}")]
    Connection(#[from] io::Error),
}

/// Why a file with certificates or a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}: {why}", .path.display())]
pub struct FileError {
    pub(super) path: PathBuf,
    pub(super) why: String,
}

impl Error {
    /// Is it about TLS, and not only about a connection that is gone?
    pub fn is_about_tls(&self) -> bool {
        !matches!(self, Error::Connection(_) | Error::Truncated | Error::TimedOut)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        match error {
            Error::Connection(error) => error,
            Error::Truncated => io::Error::new(io::ErrorKind::UnexpectedEof, error),
            Error::TimedOut => io::Error::new(io::ErrorKind::TimedOut, error),
            error => io::Error::new(io::ErrorKind::InvalidData, error),
        }
    }
}

fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(cause) => certificate(cause),
        rustls::Error::NoCertificatesPresented => {
            "the client has no certificate, and one is required; connect with xprtsec=mtls".to_owned()
        }
        rustls::Error::AlertReceived(alert) => alert_received(*alert),
        rustls::Error::InvalidMessage(_) => {
            format!("the other end does not speak TLS as it should: {error}; is it an RPC server or client?")
        }
        rustls::Error::NoApplicationProtocol => Error::Alpn.to_string(),
        error => format!("{error}; the two ends do not agree on TLS 1.3"),
    }
}

fn certificate(cause: &CertificateError) -> String {
    match cause {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate of the other end has expired; renew it there, or set the clock here".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the certificate of the other end is not valid yet; set the clocks".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "no CA that is trusted here has issued the certificate of the other end; give the CA's certificate with tlsca= (mount, origin) or --tls-client-ca (server)"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "the server's certificate has another name: {cause}; use a name that it has, or issue one with this name"
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate of the other end is not for this purpose; issue one with the extended key usage serverAuth or clientAuth"
                .to_owned()
        }
        cause => format!("the certificate of the other end cannot be used: {cause}; issue another one"),
    }
}

fn alert_received(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::CertificateRequired => {
            "the other end requires a certificate; connect with xprtsec=mtls,tlscert=FILE,tlskey=FILE".to_owned()
        }
        A::CertificateExpired => "the other end says that our certificate has expired; renew it".to_owned(),
        A::UnknownCA => {
            "the other end does not trust the CA of our certificate; add it there (client: tlsca=, server: --tls-client-ca)"
                .to_owned()
        }
        A::BadCertificate | A::UnsupportedCertificate | A::CertificateRevoked | A::CertificateUnknown => {
            format!("the other end does not accept our certificate ({alert:?}); look at its log")
        }
        A::NoApplicationProtocol => Error::Alpn.to_string(),
        other => format!("the other end ended the handshake ({other:?}); look at its log"),
    }
}
