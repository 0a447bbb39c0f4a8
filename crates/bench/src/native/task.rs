//! The tasks, done in each place as a program does them: system calls on paths, and `tar`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::Size;
use super::place::Kind;
use crate::random::Random;

/// Bytes per read of the sequential task.
const STEP_BYTES: usize = 1 << 20;
/// Bytes per random read.
const PAGE_BYTES: usize = 4096;
/// How many times one round reads the big file.
const PASSES: u64 = 4;
/// Files per directory of the tree that is searched.
const FILES_PER_DIRECTORY: u64 = 100;
/// Files per directory of the archive.
const SOURCES_PER_DIRECTORY: u64 = 16;

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Reads a large file from beginning to end, 1 MiB at a time.
    Sequential,
    /// Reads 4 KiB at random offsets of that file.
    Random,
    /// Lists a tree and gets the attributes of every entry.
    Stat,
    /// `tar x` of a source tree.
    Untar,
    /// Opens a file, appends a number and closes the file, repeatedly.
    Appends,
    /// Badros' "small writes": appends numbers to an open file.
    Writes,
}

impl Task {
    /// All tasks.
    pub const ALL: [Task; 6] =
        [Task::Sequential, Task::Random, Task::Stat, Task::Untar, Task::Appends, Task::Writes];

    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Task::Sequential => "sequential",
            Task::Random => "random",
            Task::Stat => "stat",
            Task::Untar => "untar",
            Task::Appends => "appends",
            Task::Writes => "writes",
        }
    }

    /// Its description.
    pub fn about(self) -> &'static str {
        match self {
            Task::Sequential => "sequential reads of 1 MiB",
            Task::Random => "random reads of 4 KiB",
            Task::Stat => "find and stat",
            Task::Untar => "tar x",
            Task::Appends => "open, append, close",
            Task::Writes => "small writes",
        }
    }

    /// The highest ratio to the native time that the project aims for in a near place.
    pub fn aim(self) -> f64 {
        match self {
            Task::Sequential | Task::Random => 1.0 / 0.95,
            Task::Stat => 2.0,
            Task::Untar | Task::Appends | Task::Writes => 3.0,
        }
    }

    /// True if the task runs in that kind of place. Reads of cached data do not depend on the distance.
    pub(super) fn is_for(self, kind: Kind) -> bool {
        !kind.is_far() || matches!(self, Task::Untar | Task::Appends | Task::Writes)
    }
}

impl std::str::FromStr for Task {
    type Err = String;
    fn from_str(text: &str) -> Result<Task, String> {
        Task::ALL
            .into_iter()
            .find(|task| task.name() == text)
            .ok_or_else(|| format!("`{text}` is no task: known are {}", Task::ALL.map(Task::name).join(", ")))
    }
}

/// A task in a place whose caches are warm.
pub(super) struct Prepared {
    task: Task,
    directory: PathBuf,
    archive: PathBuf,
    size: Size,
    /// The file or directory that the last round left.
    left: Option<PathBuf>,
}

impl Prepared {
    /// Runs the task until the caches are warm: once, or for reads until the complete file is cached and
    /// nonracy.
    pub(super) fn warm(
        task: Task,
        kind: Kind,
        (directory, archives): (&Path, &Path),
        size: &Size,
    ) -> io::Result<Prepared> {
        let mut size = *size;
        if kind.is_far() {
            size.sources = size.sources.div_ceil(size.far_part);
            size.appends = size.appends.div_ceil(size.far_part);
        }
        let archive = archives.join(format!("sources-{}.tar", size.sources));
        let mut prepared = Prepared { task, directory: directory.to_owned(), archive, size, left: None };
        let warming = if matches!(task, Task::Sequential | Task::Random) { 3 } else { 1 };
        for round in 0..warming {
            prepared.run(u64::MAX - round)?;
            prepared.clean()?;
        }
        Ok(prepared)
    }

    /// Runs the task once. Returns the seconds it took and the number of units.
    pub(super) fn run(&mut self, round: u64) -> io::Result<(f64, u64)> {
        let started = Instant::now();
        let units = match self.task {
            Task::Sequential => sequential(&self.directory.join(BIG))?,
            Task::Random => random(&self.directory.join(BIG), self.size.reads, round)?,
            Task::Stat => stat(&self.directory.join(TREE))?,
            Task::Untar => {
                let to = self.directory.join(format!("untar-{round}"));
                self.left = Some(to.clone());
                fs::create_dir(&to)?;
                untar(&self.archive, &to)?;
                self.size.sources
            }
            Task::Appends | Task::Writes => {
                let to = self.directory.join(format!("appends-{round}"));
                self.left = Some(to.clone());
                if self.task == Task::Appends {
                    appends(&to, self.size.appends)?;
                } else {
                    writes(&to, self.size.appends)?;
                }
                self.size.appends
            }
        };
        Ok((started.elapsed().as_secs_f64(), units))
    }

    /// Removes what the task left. Fails if the appended file does not have the expected content.
    pub(super) fn clean(&mut self) -> io::Result<()> {
        let Some(left) = self.left.take() else { return Ok(()) };
        if self.task == Task::Untar {
            return fs::remove_dir_all(left);
        }
        let numbers = (1..=self.size.appends).map(|n| n.to_string()).collect::<String>();
        if fs::read_to_string(&left)? != numbers {
            return Err(io::Error::other("what was appended is not what is there"));
        }
        fs::remove_file(left)
    }
}

/// Name of the large file.
const BIG: &str = "big";
/// Name of the tree that is searched.
const TREE: &str = "tree";

/// Makes the files of all tasks in a directory of this machine.
pub(super) fn prepare(directory: &Path, size: &Size) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut random = Random::new(1);
    let mut big = File::create(directory.join(BIG))?;
    let piece = random.bytes(STEP_BYTES);
    for _ in 0..size.big_bytes / STEP_BYTES as u64 {
        big.write_all(&piece)?;
    }
    big.sync_all()?;
    for number in 0..size.files {
        let below = directory.join(TREE).join(format!("d{:03}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&below)?;
        }
        fs::write(below.join(format!("file{number:05}.c")), number.to_string())?;
    }
    Ok(())
}

/// Makes the archives for near and far places in a directory of this machine.
pub(super) fn archives(directory: &Path, size: &Size) -> io::Result<()> {
    let mut random = Random::new(2);
    for sources in [size.sources, size.sources.div_ceil(size.far_part)] {
        archive(directory, sources, &mut random)?;
    }
    Ok(())
}

/// Makes an archive of a tree with `sources` files, most of them small.
fn archive(directory: &Path, sources: u64, random: &mut Random) -> io::Result<()> {
    let root = directory.join("sources");
    for number in 0..sources {
        let below = root.join(format!("part{:02}", number / SOURCES_PER_DIRECTORY));
        fs::create_dir_all(&below)?;
        let bytes = (random.exponential(6000.0) as usize).clamp(64, 64 << 10);
        fs::write(below.join(format!("unit{number:04}.c")), random.bytes(bytes))?;
    }
    let archive = directory.join(format!("sources-{sources}.tar"));
    let made = Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(&root).arg(".").status()?;
    fs::remove_dir_all(&root)?;
    if made.success() { Ok(()) } else { Err(io::Error::other("tar failed")) }
}

fn sequential(path: &Path) -> io::Result<u64> {
    let mut buffer = vec![0; STEP_BYTES];
    let mut read = 0;
    for _ in 0..PASSES {
        let file = File::open(path)?;
        let mut at = 0;
        loop {
            match file.read_at(&mut buffer, at)? {
                0 => break,
                count => at += count as u64,
            }
        }
        read += at;
    }
    Ok(read / STEP_BYTES as u64)
}

fn random(path: &Path, reads: u64, seed: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let pages = file.metadata()?.len() / PAGE_BYTES as u64;
    let mut random = Random::new(seed);
    let mut buffer = [0; PAGE_BYTES];
    for _ in 0..reads {
        file.read_exact_at(&mut buffer, random.below(pages) * PAGE_BYTES as u64)?;
    }
    Ok(reads)
}

fn stat(directory: &Path) -> io::Result<u64> {
    let mut found = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = fs::symlink_metadata(entry.path())?;
        if metadata.is_dir() {
            found += stat(&entry.path())?;
        } else if metadata.size() > 0 {
            found += 1;
        }
    }
    Ok(found)
}

fn untar(archive: &Path, to: &Path) -> io::Result<()> {
    let done = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(to).stdin(Stdio::null()).status()?;
    if done.success() { Ok(()) } else { Err(io::Error::other("tar failed")) }
}

fn appends(path: &Path, count: u64) -> io::Result<()> {
    for number in 1..=count {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        file.write_all(number.to_string().as_bytes())?;
    }
    Ok(())
}

fn writes(path: &Path, count: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    for number in 1..=count {
        file.write_all(number.to_string().as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_does_what_it_says_in_a_plain_directory() {
        let directory = tempfile::tempdir().unwrap();
        let size = Size { big_bytes: 2 << 20, reads: 50, files: 230, sources: 20, appends: 12, far_part: 4 };
        prepare(directory.path(), &size).unwrap();
        archives(directory.path(), &size).unwrap();
        let places = (directory.path(), directory.path());
        let units = |task: Task, kind: Kind| {
            let mut prepared = Prepared::warm(task, kind, places, &size).unwrap();
            let (seconds, units) = prepared.run(1).unwrap();
            assert!(seconds > 0.0);
            prepared.clean().unwrap();
            units
        };
        let near = Task::ALL.map(|task| units(task, Kind::Native));
        assert_eq!(near, [8, 50, 230, 20, 12, 12]);
        assert_eq!(units(Task::Untar, Kind::Far), 5);
        assert!(!directory.path().join("untar-1").exists() && !directory.path().join("appends-1").exists());
    }

    #[test]
    fn what_was_not_written_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let size = Size { appends: 3, ..Size::default() };
        let mut prepared = Prepared {
            task: Task::Appends,
            directory: directory.path().to_owned(),
            archive: PathBuf::new(),
            size,
            left: None,
        };
        prepared.run(1).unwrap();
        fs::write(directory.path().join("appends-1"), "12").unwrap();
        assert!(prepared.clean().is_err());
    }
}
