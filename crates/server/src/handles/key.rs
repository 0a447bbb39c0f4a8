//! The secret key of the handle checks. If it is lost, all handles that clients hold become stale, so it is
//! user data.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Sixteen secret bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HandleKey([u8; 16]);

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandleKey(…)")
    }
}

impl HandleKey {
    /// A key with these bytes.
    pub fn new(bytes: [u8; 16]) -> HandleKey {
        HandleKey(bytes)
    }

    /// Loads the key from a file. If there is no file, creates a random key that is durable there before
    /// this returns.
    ///
    /// # Errors
    /// `InvalidData` if the file does not hold sixteen bytes. `PermissionDenied` if the file's mode or
    /// owner lets other users read or change the key; readers in its group are allowed.
    pub fn load_or_create(path: &Path) -> io::Result<HandleKey> {
        match File::open(path) {
            Ok(mut file) => {
                check(&file.metadata()?)?;
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let bytes = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                Ok(HandleKey(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => HandleKey::create(path),
            Err(error) => Err(error),
        }
    }

    fn create(path: &Path) -> io::Result<HandleKey> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let partial = path.with_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)?;
        if let Some(directory) = path.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(HandleKey(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Checks that other users cannot read the key, because any process with the key can forge handles. Several
/// proxies may share it through their group.
fn check(file: &Metadata) -> io::Result<()> {
    let lax = |problem: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    let mode = file.mode() & 0o7777;
    if mode & LAX != 0 {
        return lax(format!("its mode {mode:04o} lets others read or change it; set 0600"));
    }
    let ours = rustix::process::geteuid().as_raw();
    if file.uid() != ours && file.uid() != 0 {
        return lax(format!("it belongs to user {}; give it to user {ours}", file.uid()));
    }
    Ok(())
}

/// Mode bits that a key must not have: write for the group, and everything for others.
const LAX: u32 = 0o027;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_that_others_may_know_or_change_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("handle.key");
        let key = HandleKey::load_or_create(&path).unwrap();
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o644, 0o660, 0o601, 0o666] {
            set(mode);
            let refused = HandleKey::load_or_create(&path).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            assert!(refused.to_string().contains("0600"), "{refused}");
        }
        for mode in [0o600, 0o400, 0o640] {
            set(mode);
            assert_eq!(HandleKey::load_or_create(&path).unwrap(), key);
        }
    }

    #[test]
    fn a_key_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("handle.key");
        let key = HandleKey::load_or_create(&path).unwrap();
        assert_eq!(HandleKey::load_or_create(&path).unwrap(), key);
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(HandleKey::load_or_create(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
