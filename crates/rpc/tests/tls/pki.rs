//! Certificates for tests: a CA, and what it issues, in files of a temporary directory.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// A CA.
pub struct Pki {
    ca: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Pki {
    /// A CA that nobody knew before.
    pub fn new() -> Pki {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let directory = tempfile::tempdir().unwrap();
        params.distinguished_name.push(DnType::CommonName, directory.path().display().to_string());
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Pki { ca, directory };
        std::fs::write(pki.ca(), pki.ca.pem()).unwrap();
        pki
    }

    /// The file with the CA's certificate.
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.crt")
    }

    /// A certificate with these names: of hosts, or addresses.
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        self.issue_until(file, names, 2100)
    }

    /// A certificate that expires with the end of a year.
    pub fn issue_until(&self, file: &str, names: &[&str], year: i32) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 12, 31);
        params.distinguished_name.push(DnType::CommonName, file);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        let path = |kind: &str| self.directory.path().join(file).with_extension(kind);
        let issued = Issued { certificate: path("crt"), key: path("key") };
        // Renamed into place, as a careful administrator does it.
        for (path, text) in [(&issued.certificate, certificate.pem()), (&issued.key, key.serialize_pem())] {
            let new: &Path = &path.with_extension("new");
            std::fs::write(new, text).unwrap();
            std::fs::rename(new, path).unwrap();
        }
        issued
    }
}
