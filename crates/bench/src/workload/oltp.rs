//! Filebench's OLTP: 20 readers, 5 writers and 1 log writer on each client (Nache, section 6.3.1, figure 14).
//!
//! The I/O model of Oracle 9i. Clients share ten data files. They make 2 KB reads and synchronous 2 KB writes
//! at random offsets. There is one write for ten reads, and one 256 KB log entry for 3,200 reads. As in the
//! original, whose writers are asynchronous, writers do not wait for readers.

use std::io;

use super::{Plan, Run, Workload, in_parallel};
use crate::target::{How, OpenFile, Target};

pub(super) const WORKLOAD: Workload = Workload {
    name: "oltp",
    paper: "Nache",
    section: "6.3.1, figure 14",
    about: "filebench OLTP: 20 readers, 5 writers and a log writer on each of two clients, one database",
    clients: 2,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

const DATA_FILES: u64 = 10;
const READERS: u64 = 20;
const WRITERS: u64 = 5;
const BLOCK_BYTES: u64 = 2048;
const READS_FOR_EACH_WRITE: u64 = 10;
const READS_FOR_EACH_LOG_ENTRY: u64 = 3200;
const LOG_ENTRY_BYTES: usize = 256 << 10;

fn file_bytes(plan: &Plan) -> u64 {
    plan.count(10 << 20, 256 << 10) / BLOCK_BYTES * BLOCK_BYTES
}

fn path(file: u64) -> String {
    format!("database/{file}")
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    let mut random = plan.random(&[1]);
    (0..DATA_FILES)
        .try_for_each(|file| super::tree::put_large(target, &path(file), file_bytes(plan), &mut random))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let reads = run.plan.count(1000, 30);
    run.phase("transactions", |run| {
        in_parallel(run.numbered(), |&(number, client)| {
            in_parallel(0..=READERS + WRITERS, |&thread| {
                let random = run.plan.random(&[2, run.pass, number as u64, thread]);
                let worker = Worker { client, random, blocks: file_bytes(&run.plan) / BLOCK_BYTES };
                let all_reads = reads * READERS;
                match thread {
                    ..READERS => worker.read(reads),
                    READERS => {
                        let log = format!("database-log-{}-{number}", run.pass);
                        worker.log(&log, (all_reads / READS_FOR_EACH_LOG_ENTRY).max(1))
                    }
                    _ => worker.write((all_reads / READS_FOR_EACH_WRITE / WRITERS).max(1)),
                }
            })
        })
    })
}

/// One process of the database.
struct Worker<'w> {
    client: &'w dyn Target,
    random: crate::random::Random,
    blocks: u64,
}

impl<'w> Worker<'w> {
    /// Opens all data files, as each process of the database does.
    fn open(&self, how: How) -> io::Result<Vec<Box<dyn OpenFile + 'w>>> {
        (0..DATA_FILES).map(|file| self.client.open(&path(file), how)).collect()
    }

    /// A random file and offset.
    fn anywhere(&mut self) -> (usize, u64) {
        (self.random.below(DATA_FILES) as usize, self.random.below(self.blocks) * BLOCK_BYTES)
    }

    fn read(mut self, count: u64) -> io::Result<()> {
        let mut files = self.open(How::Read)?;
        let mut block = [0; BLOCK_BYTES as usize];
        for _ in 0..count {
            let (file, offset) = self.anywhere();
            files[file].read_at(&mut block, offset)?;
        }
        files.into_iter().try_for_each(OpenFile::close)
    }

    fn write(mut self, count: u64) -> io::Result<()> {
        let mut files = self.open(How::Update)?;
        for _ in 0..count {
            let (file, offset) = self.anywhere();
            let block = self.random.bytes(BLOCK_BYTES as usize);
            files[file].write_at(&block, offset)?;
            files[file].sync()?;
        }
        files.into_iter().try_for_each(OpenFile::close)
    }

    fn log(self, path: &str, count: u64) -> io::Result<()> {
        let mut file = self.client.open(path, How::Create)?;
        for entry in 0..count {
            file.write_at(&vec![b'.'; LOG_ENTRY_BYTES], entry * LOG_ENTRY_BYTES as u64)?;
            file.sync()?;
        }
        file.close()
    }
}
