//! Section 4.1's recovery storm, with real processes: the server is killed in the middle of clients that write under leases.
//!
//! Each client counts in a file of its own, without fsync, before, during and after the outage. Then a client that
//! knows nothing of them reads all files: each must have the last number that its writer was told is written. It is served when the
//! server's recovery is over, which the paper's rules put at the longest term, the skew of clocks and `write_slack` after the
//! restart, or `write_slack` after the last push.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Site, Variant};
use crate::system::Program;

/// How many write.
const WRITERS: usize = 10;
/// How long they write before the server is killed, how long it is down, and how long they write on.
const BEFORE: Duration = Duration::from_secs(5);
const DOWN: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(20);
/// Between two writes of a client.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest term and the skew of clocks, and `write_slack`: what `leasehold serve` has.
const TERMS: Duration = Duration::from_secs(63);
const SLACK: Duration = Duration::from_secs(5);
/// A client that is told to try later asks again after two seconds at most; the rest is for a loaded machine.
const GRACE: Duration = Duration::from_secs(7);

const LEASES: Variant = Variant { vers: "nqnfs", proto: "tcp" };

fn name(writer: usize) -> String {
    format!("counter-{writer}")
}

/// Counts in a file until it is told to stop.
fn count(file: &File, number: &AtomicU64, stop: &AtomicBool) -> std::io::Result<()> {
    while !stop.load(Ordering::Acquire) {
        let next = number.load(Ordering::Acquire) + 1;
        file.write_all_at(&next.to_be_bytes(), 0)?;
        number.store(next, Ordering::Release);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn counted(path: &Path) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(u64::from_be_bytes(bytes))
}

impl Site<'_> {
    /// See the module. One line that tells what was seen.
    ///
    /// # Errors
    /// A number was lost, or the storm lasted longer than it may.
    pub(super) fn storm(&mut self) -> Result<String, String> {
        let one_line = |error: crate::system::Error| error.to_string();
        let io = |error: std::io::Error| error.to_string();
        let clients =
            (0..WRITERS).map(|_| self.client(LEASES, None, Duration::ZERO)).collect::<Result<Vec<_>, _>>();
        let clients = clients.map_err(one_line)?;
        // No process is started while files are open (see `serve_later`).
        let auditor = self.client(LEASES, None, Duration::ZERO).map_err(one_line)?;
        let go = self.directory.join("go");
        let again = self.serve_later(&go).map_err(one_line)?;
        let mut files = Vec::new();
        for (writer, client) in clients.iter().enumerate() {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            files.push(options.open(client.mounted.join(name(writer))).map_err(io)?);
        }
        let numbers: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
        let total = || -> u64 { numbers.iter().map(|number| number.load(Ordering::Acquire)).sum() };
        let next = (again, go.as_path());
        let (restarted, at_kill) = self.count_through_a_kill(&files, &numbers, total, next)?;
        let mut lost = Vec::new();
        for (writer, number) in numbers.iter().enumerate() {
            let told = number.load(Ordering::Acquire);
            let found = counted(&auditor.mounted.join(name(writer))).map_err(io)?;
            if found != told {
                lost.push(format!("{}: {told} was told to be written, {found} is there", name(writer)));
            }
        }
        let over = restarted.elapsed();
        drop(files);
        for client in clients.into_iter().chain([auditor]) {
            client.end();
        }
        let most = TERMS + SLACK + GRACE;
        if !lost.is_empty() {
            return Err(lost.join("; "));
        }
        let told = format!(
            "{WRITERS} writers, {} writes, {at_kill} of them before the kill, none lost; all files read {:.1} s after the \
             restart, by the rules {} to {} s",
            total(),
            over.as_secs_f64(),
            (TERMS + SLACK).as_secs(),
            most.as_secs(),
        );
        if over > most { Err(told) } else { Ok(told) }
    }

    /// All count while the server is killed and started again. Gives when it was back, and how far they were at the kill.
    fn count_through_a_kill(
        &mut self,
        files: &[File],
        numbers: &[AtomicU64],
        total: impl Fn() -> u64,
        next: (Program, &Path),
    ) -> Result<(Instant, u64), String> {
        let stop = AtomicBool::new(false);
        let stop = &stop;
        std::thread::scope(|scope| {
            let counting: Vec<_> = files
                .iter()
                .zip(numbers)
                .map(|(file, number)| scope.spawn(move || count(file, number, stop)))
                .collect();
            std::thread::sleep(BEFORE);
            let at_kill = total();
            let back = self.kill_and_restart(next);
            std::thread::sleep(AFTER);
            stop.store(true, Ordering::Release);
            let panicked = || Err(std::io::Error::other("a writer panicked"));
            for thread in counting {
                thread.join().unwrap_or_else(|_| panicked()).map_err(|error| error.to_string())?;
            }
            Ok((back?, at_kill))
        })
    }

    /// With SIGKILL; gives when it was back.
    fn kill_and_restart(&mut self, (mut next, go): (Program, &Path)) -> Result<Instant, String> {
        self.server.kill();
        std::thread::sleep(DOWN);
        File::create(go).map_err(|error| error.to_string())?;
        let answered = next.wait_for_answer();
        self.server = next;
        answered.map_err(|error| error.to_string())?;
        Ok(Instant::now())
    }
}
