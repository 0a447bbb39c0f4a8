//! Who a proxy is to an origin of version 4: its client owner (RFC 8881, section 2.4), the same in all its lives.
//!
//! An origin that hears of a client again drops what its last life held. Without that, the delegations of a proxy that
//! was killed would keep others waiting until their lease ends.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use client::{Identity, Url};

use crate::Failure;
use crate::state::{self, Lock};

/// The longest owner: `NFS4_OPAQUE_LIMIT`.
const BYTES_MAX: usize = 1024;

/// Who to be, and what keeps others from being it too.
pub struct Life {
    /// For the origin.
    pub identity: Identity,
    lock: Option<Lock>,
}

impl Life {
    /// The next life of the proxy whose `state` this is; the first, if the directory is not there yet.
    ///
    /// # Errors
    /// If another process lives it.
    pub fn begin(url: &Url, state: &Path) -> Result<Life, Failure> {
        let mut identity = Identity::volatile(url);
        if !state.is_dir() {
            return Ok(Life { identity, lock: None });
        }
        let lock = state::lock(state)?;
        match std::fs::read(file(state)) {
            Ok(owner) if (1..=BYTES_MAX).contains(&owner.len()) => identity.owner = owner.into(),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(state, &error)),
        }
        Ok(Life { identity, lock: Some(lock) })
    }

    /// Makes the owner durable. The lock is held until the value that comes back is dropped.
    ///
    /// # Errors
    /// If it cannot be written, or another process was faster.
    pub fn keep(self, state: &Path) -> Result<Lock, Failure> {
        let lock = match self.lock {
            Some(lock) => lock,
            None => state::lock(state)?,
        };
        store(state, &self.identity.owner).map_err(|error| unusable(state, &error))?;
        Ok(lock)
    }
}

fn store(state: &Path, owner: &[u8]) -> io::Result<()> {
    let path = file(state);
    if std::fs::read(&path).is_ok_and(|kept| kept == owner) {
        return Ok(());
    }
    let partial = path.with_extension("new");
    let mut file = File::create(&partial)?;
    file.write_all(owner)?;
    file.sync_all()?;
    std::fs::rename(&partial, &path)?;
    File::open(state)?.sync_all()
}

fn file(state: &Path) -> PathBuf {
    state.join("client.owner")
}

fn unusable(state: &Path, error: &io::Error) -> Failure {
    Failure(format!("cannot use {}: {error}; make it readable and writable", file(state).display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_lasts_and_the_verifier_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let url = Url::parse("nfs://filer/export").unwrap();
        let first = Life::begin(&url, &state).unwrap();
        let identity = first.identity.clone();
        std::fs::create_dir(&state).unwrap();
        let lock = first.keep(&state).unwrap();
        assert!(Life::begin(&url, &state).is_err(), "one life at a time");
        drop(lock);
        let second = Life::begin(&url, &state).unwrap();
        assert_eq!(second.identity.owner, identity.owner);
        assert_ne!(second.identity.verifier, identity.verifier);
    }
}
