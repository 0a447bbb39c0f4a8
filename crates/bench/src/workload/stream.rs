//! One sequential reader and one sequential writer on a long link with much bandwidth. They show how much of
//! the link one file can use: a window of 16 MiB gives 160 MB/s at 100 ms, whatever the link has.
//!
//! A file of 1 GiB, at scale 1. The writer ends with fsync and close.

use std::io;

use super::tree::put_large;
use super::{Plan, Run, Workload};
use crate::target::{How, Target};

pub(super) const WORKLOAD: Workload = Workload {
    name: "stream",
    paper: "Badros",
    section: "5, table 1, \"read a big file\" and \"copy a big file\"",
    about: "reads a file of 1 GiB once, and writes another one, with fsync",
    clients: 1,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run,
};

const READ: &str = "stream/read";
/// As `cp` does.
const BLOCK_BYTES: usize = 256 << 10;

fn file_bytes(plan: &Plan) -> u64 {
    plan.count(1 << 30, 1 << 20)
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    put_large(target, READ, file_bytes(plan), &mut plan.random(&[1]))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    run.phase("read", |run| {
        let mut file = run.client().open(READ, How::Read)?;
        let mut offset = 0;
        loop {
            let count = file.read_at(&mut block, offset)?;
            if count == 0 {
                return file.close();
            }
            offset += count as u64;
        }
    })?;
    let block = run.plan.random(&[2, run.pass]).bytes(BLOCK_BYTES);
    run.phase("write and fsync", |run| {
        let mut file = run.client().open(&format!("stream/written-{}", run.pass), How::Create)?;
        let mut offset = 0;
        while offset < file_bytes(&run.plan) {
            file.write_at(&block, offset)?;
            offset += block.len() as u64;
        }
        file.sync()?;
        file.close()
    })
}
