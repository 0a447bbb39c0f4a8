//! The write verifier of a cache with delayed writes (RFC 8881, section 18.32.3).
//!
//! A client keeps what it wrote unstably until a COMMIT returns the verifier of those WRITEs, and otherwise
//! writes it again. So the verifier must change with each loss of such bytes. An error alone would reach one
//! client of several.
//!
//! The verifier need not change when the process is killed: bytes in the journal are not lost, and clients
//! then write nothing again. A file beside the journal keeps the verifier. It is there while all delayed
//! bytes are in the journal, and counts until the machine is restarted.
//!
//! If one client alone writes here, errors tell it of each loss. Then the verifier stays as long as the
//! process: it is that of all files, and a new one would make the fsync of every other file fail.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use parking_lot::Mutex;
use vfs::Verifier;

use crate::options::WriteBehind;
use crate::store::{Directory, directory};

/// The verifier in our replies to WRITE and COMMIT.
#[derive(Debug, Default)]
pub struct WriteVerifier {
    now: AtomicU64,
    /// Do several clients write here?
    shared: bool,
    /// Where the next process finds it. `None`: each process has another one.
    file: Option<VerifierFile>,
}

/// The file that keeps it: the number of the machine's boot and the verifier, eight bytes each.
#[derive(Debug)]
struct VerifierFile {
    path: PathBuf,
    boot: u64,
    /// Whether the file is there. Read without the lock, it is a hint.
    is_there: AtomicBool,
    changing: Mutex<()>,
}

/// The verifier of a cache directory. `nonce` is new in every process. It counts until
/// [`WriteVerifier::take_over`].
pub fn verifier_of(place: &Directory, options: &WriteBehind, nonce: u64) -> WriteVerifier {
    let keeps = options.shared && options.journal;
    let file = keeps.then(|| (place.writeback().join("verifier"), directory::boot_id()));
    WriteVerifier::new(nonce, options.shared, file)
}

/// No later process takes over the verifier that the last one left. May block.
pub fn forget_verifier(place: &Directory) {
    remove_or_tell(&place.writeback().join("verifier"));
}

impl WriteVerifier {
    fn new(nonce: u64, shared: bool, file: Option<(PathBuf, u64)>) -> WriteVerifier {
        let file_of = |(path, boot)| VerifierFile {
            path,
            boot,
            is_there: AtomicBool::new(false),
            changing: Mutex::default(),
        };
        WriteVerifier { now: nonce.into(), shared, file: file.map(file_of) }
    }

    /// Takes over what the last process left. From now on, the file is there. May block.
    pub fn take_over(&self) {
        let Some(file) = &self.file else { return };
        if let Some(left) = left(&file.path, file.boot) {
            self.now.store(left, Ordering::Release);
        }
        self.all_entered(|| true);
    }

    /// Is there a file for the next process?
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// The verifier for a reply. That of a WRITE is taken before its bytes, that of a COMMIT after its flush.
    pub fn get(&self) -> Verifier {
        self.now.load(Ordering::Acquire).to_be_bytes()
    }

    /// Bytes are lost that a client may have been told are unstable.
    pub fn lost(&self) {
        if !self.shared {
            return;
        }
        self.now.fetch_add(1, Ordering::AcqRel);
        let Some(file) = &self.file else { return };
        let _changing = file.changing.lock();
        if file.is_there.load(Ordering::Acquire) {
            file.put(self.now.load(Ordering::Acquire));
        }
    }

    /// Bytes are delayed that only this process has. Their WRITE is not answered yet.
    pub fn unentered(&self) {
        let Some(file) = &self.file else { return };
        // Either this sees the file, or who makes it sees the bytes.
        fence(Ordering::SeqCst);
        if file.is_there.load(Ordering::Acquire) {
            let _changing = file.changing.lock();
            file.remove();
        }
    }

    /// Nothing is delayed any more that only this process has, if `is_so` still says it.
    pub fn all_entered(&self, is_so: impl FnOnce() -> bool) {
        let Some(file) = self.file.as_ref().filter(|file| !file.is_there.load(Ordering::Acquire)) else {
            return;
        };
        let _changing = file.changing.lock();
        file.is_there.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if is_so() {
            file.put(self.now.load(Ordering::Acquire));
        } else {
            file.is_there.store(false, Ordering::Release);
        }
    }
}

impl VerifierFile {
    /// Writes the file. A process that does not find it is right all the same.
    fn put(&self, verifier: u64) {
        let written = write(&self.path, self.boot, verifier);
        if let Err(error) = &written {
            tracing::debug!("{}: {error}; clients will write again after a restart", self.path.display());
            self.remove();
        }
        self.is_there.store(written.is_ok(), Ordering::Release);
    }

    fn remove(&self) {
        remove_or_tell(&self.path);
        self.is_there.store(false, Ordering::Release);
    }
}

/// The verifier that an earlier process has left in this boot of the machine.
fn left(path: &Path, boot: u64) -> Option<u64> {
    let bytes: [u8; 16] = std::fs::read(path).ok()?.try_into().ok()?;
    let number = u128::from_be_bytes(bytes);
    ((number >> 64) as u64 == boot).then_some(number as u64)
}

/// In one step: a kill leaves the old file or the new one.
fn write(path: &Path, boot: u64, verifier: u64) -> io::Result<()> {
    let new = path.with_extension("new");
    path.parent().into_iter().try_for_each(std::fs::create_dir_all)?;
    File::create(&new)?.write_all(&(u128::from(boot) << 64 | u128::from(verifier)).to_be_bytes())?;
    std::fs::rename(new, path)
}

fn remove_or_tell(path: &Path) {
    // A file without a verifier does as well.
    let emptied = || File::options().write(true).truncate(true).open(path);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound && emptied().is_err() => tracing::error!(
            "{}: {error}; remove this file before the next start, or clients may lose what they wrote",
            path.display()
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_leaves_it_unless_bytes_were_lost_or_not_entered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("writeback/verifier");
        let start = |nonce, boot| {
            let verifier = WriteVerifier::new(nonce, true, Some((path.clone(), boot)));
            verifier.take_over();
            verifier
        };
        let number = |verifier: &WriteVerifier| u64::from_be_bytes(verifier.get());
        let first = start(100, 1);
        assert_eq!(number(&first), 100);
        assert_eq!(number(&start(200, 1)), 100, "killed");
        assert_eq!(number(&start(300, 2)), 300, "after a restart of the machine");
        let second = start(400, 2);
        assert_eq!(number(&second), 300);
        second.lost();
        assert_eq!(number(&second), 301);
        assert_eq!(number(&start(500, 2)), 301);
        let third = start(600, 2);
        third.unentered();
        third.all_entered(|| false);
        assert_eq!(number(&third), 301);
        third.lost();
        assert_eq!(number(&start(700, 2)), 700, "killed while only the process had bytes");
        let fourth = start(800, 2);
        fourth.unentered();
        fourth.all_entered(|| true);
        assert_eq!(number(&start(900, 2)), 700);
    }

    #[test]
    fn without_a_file_each_process_has_another_one() {
        let verifier = WriteVerifier::new(7, true, None);
        verifier.unentered();
        verifier.lost();
        assert_eq!(u64::from_be_bytes(verifier.get()), 8);
    }

    #[test]
    fn one_client_alone_has_the_same_one_after_a_loss() {
        let verifier = WriteVerifier::new(7, false, None);
        verifier.lost();
        assert_eq!(u64::from_be_bytes(verifier.get()), 7);
    }
}
