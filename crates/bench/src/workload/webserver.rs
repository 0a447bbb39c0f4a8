//! Filebench's web server, files chosen uniformly and by Zipf's law (Nache, section 6.3.1, figure 13).
//!
//! There are 500 files. Ten threads on each client open, read to the end and close ten of them, and then
//! write to a log. In the paper this ran for 100 seconds. Here each thread makes a fixed number of rounds, so
//! that the operations are the same for every system.

use std::io;

use parking_lot::Mutex;

use super::tree::FileSet;
use super::{Plan, Run, Workload, in_parallel, read_file};
use crate::random::Zipf;
use crate::target::{How, OpenFile, Target};

pub(super) const UNIFORM: Workload = Workload {
    name: "webserver",
    paper: "Nache",
    section: "6.3.1, figure 13",
    about: "filebench webserver: ten threads on each of four clients read whole files, chosen uniformly",
    clients: 4,
    restart: false,
    again: false,
    conflicts: false,
    delegations: true,
    synchronous: false,
    guesses: false,
    prepare,
    run: |run| serve(run, false),
};

pub(super) const ZIPF: Workload = Workload {
    name: "webserver-zipf",
    about: "filebench webserver, files chosen by Zipf's law",
    run: |run| serve(run, true),
    ..UNIFORM
};

const FILES: &str = "htdocs";
const THREADS: u64 = 10;
const LOG_BYTES: usize = 16 << 10;
const READ_FOR_EACH_LOG_ENTRY: u64 = 10;

fn set(plan: &Plan) -> FileSet {
    FileSet { files: plan.count(500, 20), mean_bytes: 16 << 10, width: 20 }
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    set(plan).put(target, FILES, &mut plan.random(&[1]))
}

fn serve(run: &mut Run<'_>, by_zipf: bool) -> io::Result<()> {
    let set = set(&run.plan);
    let zipf = Zipf::new(set.files as usize);
    let rounds = run.plan.count(100, 1);
    run.phase("serving", |run| {
        in_parallel(run.numbered(), |&(number, client)| {
            let log = Log::open(client, &format!("log-{}-{number}", run.pass))?;
            in_parallel(0..THREADS, |&thread| {
                let mut random = run.plan.random(&[2, run.pass, number as u64, thread]);
                for _ in 0..rounds {
                    for _ in 0..READ_FOR_EACH_LOG_ENTRY {
                        let file =
                            if by_zipf { zipf.choose(&mut random) as u64 } else { random.below(set.files) };
                        read_file(client, &set.path(FILES, file))?;
                    }
                    log.append()?;
                }
                Ok(())
            })?;
            let (file, _) = log.0.into_inner();
            file.close()
        })
    })
}

/// The log of a client, which stays open. Entries are appended in the order in which they are written.
struct Log<'l>(Mutex<(Box<dyn OpenFile + 'l>, u64)>);

impl<'l> Log<'l> {
    fn open(client: &'l dyn Target, path: &str) -> io::Result<Log<'l>> {
        Ok(Log(Mutex::new((client.open(path, How::Create)?, 0))))
    }

    fn append(&self) -> io::Result<()> {
        let (file, end) = &mut *self.0.lock();
        file.write_at(&[b'.'; LOG_BYTES], *end)?;
        *end += LOG_BYTES as u64;
        Ok(())
    }
}
