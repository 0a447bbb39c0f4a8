//! Directories for the caches of tests.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

/// A directory that is removed at the end, even if a task of a cache still writes there for a moment.
pub struct Scratch(std::path::PathBuf);

impl Scratch {
    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for _ in 0..100 {
            match std::fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => return,
            }
        }
    }
}

/// A directory in memory if the machine has one, so that the tests wait for no disk.
pub fn scratch() -> Scratch {
    Scratch(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap().keep())
}

/// A small file system mounted on a directory. If it cannot be mounted, the test says so.
pub struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    pub fn on(directory: &std::path::Path, bytes: usize) -> Option<SmallDisk> {
        let options = format!("size={bytes}");
        let mount = ["-t", "tmpfs", "-o", &options, "leasehold-test"];
        let done = std::process::Command::new("mount").args(mount).arg(directory).output();
        let done = done.is_ok_and(|output| output.status.success());
        if !done {
            println!("skipped: needs the right to mount a tmpfs");
        }
        done.then(|| SmallDisk(directory.to_owned()))
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.0.join("ballast")
    }

    /// Takes all free space, in the end byte by byte.
    pub fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::options().create(true).append(true).open(self.ballast()).unwrap();
        for chunk in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; chunk]).is_ok() {}
        }
    }

    /// Frees it again.
    pub fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Copies a directory with its contents.
pub fn copy(from: &std::path::Path, to: &std::path::Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            // A file that the cleaner has just removed is missing in the copy too.
            match std::fs::copy(entry.path(), to) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => drop(other.unwrap()),
            }
        }
    }
}

impl super::Bench {
    /// All files of the store.
    pub fn stored_files(&self) -> Vec<std::path::PathBuf> {
        let shards = std::fs::read_dir(self.directory.path().join("cache/objects")).unwrap();
        let files =
            |shard: std::path::PathBuf| std::fs::read_dir(shard).unwrap().map(|file| file.unwrap().path());
        shards.flat_map(|shard| files(shard.unwrap().path())).collect()
    }
}
