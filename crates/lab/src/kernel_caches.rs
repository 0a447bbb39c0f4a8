//! The caches of this machine's kernel: dentries, inodes, and the names of directories. A test that drops
//! them costs others calls that they do not expect. A lock file lets one kind of test exclude the other.
//!
//! `Setting::counting` of the `mounted` tests takes the same lock. Its package has no dependency on the lab.

use std::fs::File;

use rustix::fs::{FlockOperation, flock};

/// As long as the file is open, no test drops the kernel's caches. Waits for one that does.
///
/// # Panics
/// If the lock file cannot be made or locked.
#[must_use]
pub fn keep_kernel_caches() -> File {
    let file = lock_file();
    flock(&file, FlockOperation::LockShared).expect("a lock file can be locked");
    file
}

/// Permission to drop the kernel's caches, until the file is closed. `None` while a test relies on them.
///
/// # Panics
/// If the lock file cannot be made.
#[must_use]
pub fn may_drop_kernel_caches() -> Option<File> {
    let file = lock_file();
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(file)
}

fn lock_file() -> File {
    let path = std::env::temp_dir().join("leasehold-kernel-caches.lock");
    File::create(&path).unwrap_or_else(|error| panic!("lab: cannot make {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_relies_on_them_is_not_disturbed() {
        let kept = keep_kernel_caches();
        assert!(may_drop_kernel_caches().is_none());
        drop((kept, keep_kernel_caches()));
    }
}
