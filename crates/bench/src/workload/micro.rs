//! Nache's micro-benchmarks: the cost of a proxy if no data is shared (section 6.4, table 3).
//!
//! Creates 25,000 files of up to 16 KB. Reads and writes 1 GB at random offsets. Appends 1 to 8 KB to several
//! files, with a sync every 10 MB, up to 1 GB. The paper does not give the number of random reads and writes;
//! here it is 10,000 of 8 KB.

use std::io;

use super::tree::put_large;
use super::{Plan, Run, STEP_BYTES, Workload, write_file};
use crate::target::{How, Target, make_all};

pub(super) const CREATE: Workload = Workload {
    name: "create",
    paper: "Nache",
    section: "6.4, table 3",
    about: "creates 25,000 files, writes up to 16 KB to each, closes them",
    clients: 1,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare: |_, _| Ok(()),
    run: create,
};

pub(super) const RANDOM_READS: Workload = Workload {
    name: "random-reads",
    about: "10,000 random reads of 8 KB from a file of 1 GB, one thread",
    prepare,
    run: random_reads,
    ..CREATE
};

pub(super) const RANDOM_WRITES: Workload = Workload {
    name: "random-writes",
    about: "10,000 random writes of 8 KB to a file of 1 GB, one thread",
    prepare,
    run: random_writes,
    ..CREATE
};

pub(super) const RANDOM_APPENDS: Workload = Workload {
    name: "random-appends",
    about: "appends of 1 to 8 KB to files, synced every 10 MB, up to 1 GB",
    run: random_appends,
    ..CREATE
};

const LARGE: &str = "micro/large";
const BLOCK_BYTES: u64 = 8 << 10;
const FILES_APPENDED_TO: u64 = 16;
const SYNC_BYTES: u64 = 10 << 20;

fn large_bytes(plan: &Plan) -> u64 {
    plan.count(1 << 30, 4 << 20) / BLOCK_BYTES * BLOCK_BYTES
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    put_large(target, LARGE, large_bytes(plan), &mut plan.random(&[1]))
}

fn create(run: &mut Run<'_>) -> io::Result<()> {
    let at = format!("create-{}", run.pass);
    run.phase("Create Files", |run| {
        let mut random = run.plan.random(&[2]);
        for file in 0..run.plan.count(25_000, 50) {
            if file % 1000 == 0 {
                make_all(run.client(), &format!("{at}/{}", file / 1000))?;
            }
            let size = random.between(1, 16 << 10) as usize;
            write_file(
                run.client(),
                &format!("{at}/{}/{file}", file / 1000),
                &random.bytes(size),
                STEP_BYTES,
            )?;
        }
        Ok(())
    })
}

fn random_reads(run: &mut Run<'_>) -> io::Result<()> {
    run.phase("Random Reads", |run| {
        let mut random = run.plan.random(&[3]);
        let mut file = run.client().open(LARGE, How::Read)?;
        let mut block = [0; BLOCK_BYTES as usize];
        for _ in 0..run.plan.count(10_000, 50) {
            let block_number = random.below(large_bytes(&run.plan) / BLOCK_BYTES);
            file.read_at(&mut block, block_number * BLOCK_BYTES)?;
        }
        file.close()
    })
}

fn random_writes(run: &mut Run<'_>) -> io::Result<()> {
    run.phase("Random Writes", |run| {
        let mut random = run.plan.random(&[4, run.pass]);
        let mut file = run.client().open(LARGE, How::Update)?;
        for _ in 0..run.plan.count(10_000, 50) {
            let block_number = random.below(large_bytes(&run.plan) / BLOCK_BYTES);
            file.write_at(&random.bytes(BLOCK_BYTES as usize), block_number * BLOCK_BYTES)?;
        }
        file.close()
    })
}

fn random_appends(run: &mut Run<'_>) -> io::Result<()> {
    let at = format!("append-{}", run.pass);
    run.phase("Random Appends", |run| {
        make_all(run.client(), &at)?;
        let mut random = run.plan.random(&[5]);
        let mut ends = [0; FILES_APPENDED_TO as usize];
        let (all, every) = (run.plan.count(1 << 30, 1 << 20), run.plan.count(SYNC_BYTES, 64 << 10));
        let mut written = 0;
        while written < all {
            let which = random.below(FILES_APPENDED_TO) as usize;
            let mut file = run.client().open(&format!("{at}/{which}"), How::Append)?;
            let mut unsynced = 0;
            while unsynced < every / FILES_APPENDED_TO {
                let size = random.between(1 << 10, 8 << 10);
                file.write_at(&random.bytes(size as usize), ends[which])?;
                ends[which] += size;
                unsynced += size;
            }
            file.sync()?;
            file.close()?;
            written += unsynced;
        }
        Ok(())
    })
}
