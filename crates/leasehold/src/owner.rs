//! The identity of a proxy or mount at an origin of version 4: its client owner (RFC 8881, section 2.4) and
//! the record of what it holds there. The owner is the same in every incarnation, and the next incarnation
//! resumes from the record.
//!
//! Without a usable record, the new incarnation makes the origin drop what the previous one held. Otherwise
//! the delegations of a killed proxy would block other clients until its lease expires.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use client::{Origin, Url};

use crate::Failure;
use crate::state::{self, Lock};

/// The longest owner: `NFS4_OPAQUE_LIMIT`.
const BYTES_MAX: usize = 1024;

/// An identity, and the lock that keeps other processes from using it.
pub struct Incarnation {
    /// The identity, as the client takes it.
    pub client: client::Incarnation,
    /// Why the previous incarnation's state is not resumed, if there was any.
    reason: Option<String>,
    lock: Option<Lock>,
}

impl Incarnation {
    /// The next incarnation of the proxy or mount whose cache is in `directory`; the first, if there is no
    /// state yet. Waits for a process that is shutting down there.
    ///
    /// # Errors
    /// If another process runs on the directory, or if another user could read or change its contents.
    pub async fn begin(url: &Url, directory: &Path) -> Result<Incarnation, Failure> {
        state::private::check_link(directory)?;
        if directory.is_dir() {
            state::private::secure(directory)?;
        }
        let state = &directory.join("state");
        if !state.is_dir() {
            return Ok(Incarnation { client: client::Incarnation::volatile(url), reason: None, lock: None });
        }
        let lock = state::lock_after(state, directory).await?;
        let (client, reason) = match std::fs::read(file(state)) {
            Ok(owner) if (1..=BYTES_MAX).contains(&owner.len()) => {
                client::Incarnation::resume(url, owner.into(), &record(state))
            }
            Ok(_) => (client::Incarnation::volatile(url), None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (client::Incarnation::volatile(url), None)
            }
            Err(error) => return Err(unusable(&file(state), &error)),
        };
        Ok(Incarnation { client, reason, lock: Some(lock) })
    }

    /// Stores the owner durably, and from now on records what is held at the origin. The lock is held until
    /// the returned value is dropped.
    ///
    /// # Errors
    /// If a file cannot be written, or if another process took the lock first.
    pub fn keep(self, state: &Path, origin: &dyn Origin) -> Result<Lock, Failure> {
        let lock = match self.lock {
            Some(lock) => lock,
            None => state::lock(state)?,
        };
        let stored = store(state, self.client.owner()).map_err(|error| (file(state), error));
        let kept =
            stored.and_then(|()| origin.keep_record(&record(state)).map_err(|error| (record(state), error)));
        match kept {
            Ok(()) => {}
            Err((path, error)) if state::is_full(&error) => {
                // The next incarnation must not resume from a record that is out of date.
                let _ = std::fs::remove_file(record(state));
                let _ = std::fs::remove_file(record(state).with_extension("locks"));
                crate::output::tell(format_args!(
                    "cannot write {}: its disk is full, so after a crash the next start resumes nothing; free some space and start again",
                    path.display()
                ));
            }
            Err((path, error)) => return Err(unusable(&path, &error)),
        }
        if let Some(reason) = self.reason {
            crate::output::tell(format_args!("{reason}"));
        }
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

fn record(state: &Path) -> PathBuf {
    state.join("client.state")
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure(format!("cannot use {}: {error}; make it readable and writable", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_owner_lasts_and_one_life_is_lived_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path();
        let state = cache.join("state");
        let url = Url::parse("nfs://filer/export").unwrap();
        assert!(
            Incarnation::begin(&url, cache).await.unwrap().lock.is_none(),
            "nothing is made that was not there"
        );
        std::fs::create_dir(&state).unwrap();
        store(&state, b"the owner").unwrap();
        let first = Incarnation::begin(&url, cache).await.unwrap();
        assert_eq!(first.client.owner()[..], b"the owner"[..]);
        assert!(!first.client.resumes(), "there is no record yet");
        assert!(Incarnation::begin(&url, cache).await.is_err(), "one life at a time");
        drop(first);
        std::fs::write(record(&state), b"damage").unwrap();
        let second = Incarnation::begin(&url, cache).await.unwrap();
        assert_eq!(second.client.owner()[..], b"the owner"[..]);
        assert!(!second.client.resumes());
    }
}
