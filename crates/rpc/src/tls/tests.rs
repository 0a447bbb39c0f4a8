//! Certificates for the tests of this module.

#[path = "../../tests/tls/pki.rs"]
mod pki;

pub(super) use pki::Pki;

use super::ServerFiles;

impl Pki {
    /// The files of a server with this name.
    pub(super) fn server(&self, name: &str) -> ServerFiles {
        let issued = self.issue("server", &[name]);
        ServerFiles { certificate: issued.certificate, key: issued.key, client_ca: None }
    }
}
