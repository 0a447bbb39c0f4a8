//! Badros' thirteen tests (A Caching NFS Client for Linux, table 1): each alone, and then four copies at
//! once.
//!
//! As in the paper, file data is dropped from memory between two tests, but not from a cache on disk.

use std::io;

use super::tree::{put_large, walk};
use super::{Plan, Run, STEP_BYTES, Workload, andrew, in_parallel, read_file, write_file};
use crate::target::{How, Target, make_all};

pub(super) const WORKLOAD: Workload = Workload {
    name: "badros",
    paper: "Badros",
    section: "5, table 1, figures 4 to 7",
    about: "thirteen tests: Andrew, big files, small reads and writes; alone and four at once",
    clients: 1,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: true,
    guesses: false,
    prepare,
    run,
};

/// The tests after the five of the Andrew benchmark.
const OTHERS: [&str; 8] = [
    "untar big package",
    "repeated ls-ing",
    "read a big file",
    "read a big file again",
    "copy a big file",
    "random reads",
    "small writes",
    "small reads and writes",
];

const BIG_BYTES: u64 = 6_100_000;
const PACKAGE_BYTES: u64 = 4_300_000;
const PACKAGE_FILES: u64 = 400;
const LISTED_FILES: u64 = 500;
const COPIES: u64 = 4;

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    super::tree::put_source(target, andrew::ORIGINAL, &andrew::source(plan))?;
    let mut random = plan.random(&[1]);
    // Each of the four copies has its own files.
    for copy in 0..COPIES {
        let at = format!("big{copy}");
        put_large(target, &format!("{at}/read"), plan.count(BIG_BYTES, 100_000), &mut random)?;
        put_large(target, &format!("{at}/copy"), plan.count(BIG_BYTES, 100_000), &mut random)?;
        put_large(target, &format!("{at}/random"), plan.count(PACKAGE_BYTES, 100_000), &mut random)?;
        for file in 0..plan.count(LISTED_FILES, 20) {
            if file % 50 == 0 {
                make_all(target, &format!("{at}/list/{}", file / 50))?;
            }
            write_file(target, &format!("{at}/list/{}/{file}", file / 50), b"listed", STEP_BYTES)?;
        }
    }
    Ok(())
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    for copies in [1, COPIES] {
        for number in 0..andrew::PHASES.len() + OTHERS.len() {
            run.client().forget()?;
            let name = andrew::PHASES.into_iter().chain(OTHERS).nth(number).unwrap_or_default();
            let title = if copies == 1 { name.to_owned() } else { format!("{name} x {copies}") };
            run.phase(&title, |run| {
                in_parallel(0..copies, |&copy| {
                    let work = Work {
                        target: run.client(),
                        plan: &run.plan,
                        copy,
                        first: copies == 1,
                        pass: run.pass,
                    };
                    work.test(number, name)
                })
            })?;
        }
    }
    Ok(())
}

struct Work<'w> {
    target: &'w dyn Target,
    plan: &'w Plan,
    copy: u64,
    /// True for the test that runs alone, before the four.
    first: bool,
    pass: u64,
}

impl Work<'_> {
    /// A directory for the output of this test only.
    fn scratch(&self, name: &str) -> String {
        format!("{name}-{}-{}-{}", self.pass, u8::from(!self.first), self.copy)
    }

    fn test(&self, number: usize, name: &str) -> io::Result<()> {
        let big = |file: &str| format!("big{}/{file}", self.copy);
        match name {
            _ if number < andrew::PHASES.len() => {
                andrew::phase(self.target, self.plan, number, &self.scratch("andrew"))
            }
            "untar big package" => self.untar(),
            "repeated ls-ing" => (0..4).try_for_each(|_| walk(self.target, &big("list")).map(drop)),
            "read a big file" | "read a big file again" => read_file(self.target, &big("read")).map(drop),
            "copy a big file" => {
                let data = read_file(self.target, &big("copy"))?;
                write_file(self.target, &self.scratch("copied"), &data, STEP_BYTES)
            }
            "random reads" => self.random_reads(&big("random")),
            "small writes" => self.small_writes(),
            _ => self.small_reads_and_writes(),
        }
    }

    fn untar(&self) -> io::Result<()> {
        let (mut random, at) = (self.plan.random(&[2, self.copy]), self.scratch("package"));
        let files = self.plan.count(PACKAGE_FILES, 20);
        let mean = PACKAGE_BYTES / PACKAGE_FILES;
        for file in 0..files {
            if file % 20 == 0 {
                make_all(self.target, &format!("{at}/{}", file / 20))?;
            }
            let data = random.bytes(1 + random.clone().below(2 * mean) as usize);
            write_file(self.target, &format!("{at}/{}/{file}", file / 20), &data, STEP_BYTES)?;
        }
        Ok(())
    }

    fn random_reads(&self, path: &str) -> io::Result<()> {
        let mut random = self.plan.random(&[3, self.copy]);
        let mut file = self.target.open(path, How::Read)?;
        let (size, mut buffer) = (file.size()?, vec![0; 2663]);
        for _ in 0..self.plan.count(1000, 50) {
            let length = random.between(1, 2663).min(size);
            let offset = random.below(size - length + 1);
            file.read_at(&mut buffer[..length as usize], offset)?;
        }
        file.close()
    }

    /// 2,000 writes that append the integers 1 to 2,000.
    fn small_writes(&self) -> io::Result<()> {
        let mut file = self.target.open(&self.scratch("numbers"), How::Create)?;
        let mut offset = 0;
        for number in 1..=self.plan.count(2000, 100) {
            let text = number.to_string();
            file.write_at(text.as_bytes(), offset)?;
            offset += text.len() as u64;
        }
        file.close()
    }

    /// The same with 1,000 integers, reading the entire file after each write.
    fn small_reads_and_writes(&self) -> io::Result<()> {
        let mut file = self.target.open(&self.scratch("reread"), How::Create)?;
        let mut written = Vec::new();
        for number in 1..=self.plan.count(1000, 50) {
            let text = number.to_string();
            file.write_at(text.as_bytes(), written.len() as u64)?;
            written.extend_from_slice(text.as_bytes());
            let mut buffer = vec![0; written.len()];
            file.read_at(&mut buffer, 0)?;
            if buffer != written {
                return Err(io::Error::other("what was written is not what is read"));
            }
        }
        file.close()
    }
}
