//! The options of TLS on the side of the server.

use std::path::PathBuf;

use clap::Args;

/// The TLS options.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS, as in RFC 9289")]
pub struct Tls {
    /// Whether clients may or must use TLS
    #[arg(long = "tls", id = "tls", value_enum, default_value_t)]
    pub policy: TlsPolicy,
    /// PEM file with the certificate of this server, and those of intermediate CAs. SIGHUP reads it again
    #[arg(long = "tls-certificate", id = "tls_certificate", value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// PEM file with its private key [default: the file of the certificate]
    #[arg(long = "tls-key", id = "tls_key", value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// PEM file with the CAs that issue the certificates of clients: needed for `--xprtsec mtls`
    #[arg(long = "tls-client-ca", id = "tls_client_ca", value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
}

/// `--tls`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsPolicy {
    /// No TLS
    #[default]
    Off,
    /// TLS for clients that ask for it
    Allow,
    /// TLS for all clients. In plain text they get an error to every call but NULL
    Require,
}
