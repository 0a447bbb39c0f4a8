//! Filebench's varmail: a mail server (Nache, section 6.1, figures 9 and 10).
//!
//! 16 threads repeat four steps. They remove a message. They create one, append, sync and close. They open
//! one, read it, append, sync and close. They open one, read it and close.
//!
//! Each client has its own spool, like each machine of a mail system, and each thread its own messages.

use std::io;

use super::tree::FileSet;
use super::{Plan, Run, Workload, in_parallel, read_file, read_open, write_open};
use crate::target::{How, Target};

pub(super) const WORKLOAD: Workload = Workload {
    name: "varmail",
    paper: "Nache",
    section: "6.1, figures 9 and 10",
    about: "filebench varmail: 16 threads remove, write, append to and read messages",
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

const THREADS: u64 = 16;
const APPENDED_BYTES: u64 = 16 << 10;

fn set(plan: &Plan) -> FileSet {
    FileSet { files: plan.count(1000, 2 * THREADS), mean_bytes: 16 << 10, width: 1_000_000 }
}

fn prepare(plan: &Plan, target: &dyn Target) -> io::Result<()> {
    // A pass changes its spool, so each pass has its own.
    (0..2).try_for_each(|pass| set(plan).put(target, &format!("mail-{pass}"), &mut plan.random(&[1, pass])))
}

fn run(run: &mut Run<'_>) -> io::Result<()> {
    let (set, spool) = (set(&run.plan), format!("mail-{}", run.pass % 2));
    let rounds = run.plan.count(100, 2);
    run.phase("mail", |run| {
        in_parallel(0..THREADS, |&thread| {
            let mut random = run.plan.random(&[2, run.pass, thread]);
            // The messages of this thread: every sixteenth.
            let own = set.files / THREADS;
            let mut any = move || random.below(own) * THREADS + thread;
            let client: &dyn Target = run.client();
            for _ in 0..rounds {
                let path = set.path(&spool, any());
                client.remove(&path)?;
                write_and_sync(client, &path, 0)?;
                let path = set.path(&spool, any());
                let size = read_file(client, &path)?.len() as u64;
                write_and_sync(client, &path, size)?;
                read_file(client, &set.path(&spool, any()))?;
            }
            Ok(())
        })
    })
}

/// Creates a message (`at` is 0), or reads it and appends to it.
fn write_and_sync(client: &dyn Target, path: &str, at: u64) -> io::Result<()> {
    let mut file = client.open(path, if at == 0 { How::Create } else { How::Append })?;
    if at > 0 {
        read_open(&mut *file)?;
    }
    write_open(&mut *file, &[b'm'; APPENDED_BYTES as usize], at, APPENDED_BYTES as usize)?;
    file.sync()?;
    file.close()
}
