//! Certificates and keys in PEM files.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::FileError;

/// The largest file that is read, in bytes. The list of all public CAs has a quarter of a million.
const SIZE_MAX: u64 = 4 << 20;

/// The state of a file when it was read: it is read again once this differs.
pub(super) type Stamp = (u64, u64, i64, i64);

fn wrong(path: &Path, why: impl Into<String>) -> FileError {
    FileError { path: path.to_owned(), why: why.into() }
}

/// The stamp of a file. `None` if it is not there.
pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let of = |metadata: Metadata| (metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec());
    std::fs::metadata(path).ok().map(of)
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed =
        |error: std::io::Error| wrong(path, format!("{error}; name a PEM file that this user may read"));
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(SIZE_MAX + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > SIZE_MAX {
        return Err(wrong(path, format!("it has more than {SIZE_MAX} bytes; name a PEM file")));
    }
    Ok(bytes)
}

/// All certificates of a file. At least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(path)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| wrong(path, format!("{error}; write it as PEM")))?;
    if found.is_empty() {
        return Err(wrong(path, "it has no certificate; it must have a line -----BEGIN CERTIFICATE-----"));
    }
    Ok(found)
}

/// The first private key of a file.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|_| {
        wrong(path, "it has no private key that can be read; it must be PEM and without a pass phrase")
    })
}

/// The CAs of a file. Certificates that make no sense as a CA are left out: the lists of systems have some.
pub(super) fn roots(path: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates(path)?);
    if taken == 0 { Err(wrong(path, "it has no certificate of a CA")) } else { Ok(roots) }
}

/// The message for a certificate and a key that cannot be used together.
pub(super) fn mismatch(certificate: &Path, key: &Path, error: &rustls::Error) -> FileError {
    let why = match error {
        rustls::Error::InconsistentKeys(_) => format!("it does not belong to the key {}", key.display()),
        error => format!("{error} (with the key {})", key.display()),
    };
    wrong(certificate, format!("{why}; name the certificate and its own key"))
}

/// Two files, or one that has both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The certificate, then those of intermediate CAs.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}
