//! Random operations on one file, compared with a model in memory: writes, reads, truncations, appends,
//! reopens, dropped caches.
//!
//! This is what fsx does, with one addition: it sometimes drops the kernel's caches, so that reads really
//! reach the server and may return part of the data. The seed determines all operations. A failure prints the
//! seed and the last operations.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Largest size of the file, in bytes.
const SIZE_MAX: u64 = 1 << 20;
/// Largest length of one read or write, in bytes.
const STRETCH_MAX: u64 = 100_000;
/// Number of operations that a failure prints.
const HISTORY_MAX: usize = 20;

struct Exercise<'a> {
    path: &'a str,
    file: File,
    model: Vec<u8>,
    history: VecDeque<String>,
    random: u64,
}

/// Does `operations` operations on `path`, which it creates.
pub fn run(path: &str, operations: u64, seed: u64) -> io::Result<()> {
    let _ = fs::remove_file(path); // it need not exist
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    let mut exercise = Exercise { path, file, model: Vec::new(), history: VecDeque::new(), random: seed };
    for number in 0..operations {
        exercise.step(number).map_err(|error| {
            let history: Vec<String> = exercise.history.drain(..).collect();
            io::Error::other(format!("{error}\nseed {seed}, the last operations:\n{}", history.join("\n")))
        })?;
    }
    exercise.reopen()?;
    exercise.check(0, SIZE_MAX)
}

impl Exercise<'_> {
    fn step(&mut self, number: u64) -> io::Result<()> {
        let kind = self.below(100);
        let offset = self.below(SIZE_MAX);
        let length = (1 + self.below(STRETCH_MAX)).min(SIZE_MAX - offset);
        let size = self.model.len() as u64;
        match kind {
            0..30 => {
                self.note(format!("{number}: write {length} at {offset}"));
                self.write(number, offset, length)
            }
            30..40 => {
                let length = length.min(SIZE_MAX - size);
                self.note(format!("{number}: append {length} at {size}"));
                self.write(number, size, length)
            }
            40..75 => {
                let offset = self.below(size.max(1));
                self.note(format!("{number}: read {length} at {offset}"));
                self.check(offset, length)
            }
            75..82 => {
                let size = self.below(SIZE_MAX);
                self.note(format!("{number}: truncate from {} to {size}", self.model.len()));
                self.model.resize(size as usize, 0);
                self.file.set_len(size)
            }
            82..90 => {
                self.note(format!("{number}: reopen"));
                self.reopen()
            }
            90..95 => {
                self.note(format!("{number}: sync"));
                self.file.sync_data()
            }
            _ => {
                self.note(format!("{number}: forget"));
                self.file.sync_data()?;
                fs::write("/proc/sys/vm/drop_caches", "1")
            }
        }
    }

    fn write(&mut self, number: u64, offset: u64, length: u64) -> io::Result<()> {
        let (from, to) = (offset as usize, (offset + length) as usize);
        let bytes: Vec<u8> =
            (from..to).map(|place| (place as u64).wrapping_mul(31).wrapping_add(number) as u8).collect();
        if self.model.len() < to {
            self.model.resize(to, 0);
        }
        self.model[from..to].copy_from_slice(&bytes);
        self.file.write_all_at(&bytes, offset)
    }

    /// Reads up to `length` bytes at `offset`. The bytes and the file's size must match the model.
    fn check(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let size = self.model.len() as u64;
        let seen = self.file.metadata()?.len();
        if seen != size {
            return Err(io::Error::other(format!("{}: the size is {seen}, not {size}", self.path)));
        }
        let wanted = &self.model[offset.min(size) as usize..(offset + length).min(size) as usize];
        let mut got = vec![0u8; wanted.len()];
        self.file.read_exact_at(&mut got, offset)?;
        match got.iter().zip(wanted).position(|(got, wanted)| got != wanted) {
            None => Ok(()),
            Some(wrong) => {
                let place = offset + wrong as u64;
                let (got, wanted) = (got[wrong], wanted[wrong]);
                Err(io::Error::other(format!("{}: byte {place} is {got:#04x}, not {wanted:#04x}", self.path)))
            }
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = OpenOptions::new().read(true).write(true).open(self.path)?;
        Ok(())
    }

    fn note(&mut self, operation: String) {
        self.history.push_back(operation);
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    /// A random number below `bound`, which must not be 0 (xorshift64*, Vigna 2016).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % bound
    }
}
