//! Section 4.1's recovery storm with real processes: the server is killed while clients write under leases.
//!
//! Each client counts in its own file, without fsync, before, during and after the outage. Then a client that
//! knows nothing of the others reads all files. Each file must have the last number whose write returned
//! success to its writer. The server serves this client when its recovery is over. By the paper's rules that
//! is the later of two times: the longest term, the clock skew and `write_slack` after the restart, or
//! `write_slack` after the last write of the recovery.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Site, Variant};
use crate::system::Program;

/// Number of writers.
const WRITERS: usize = 10;
/// How long the clients write before the kill, how long the server is down, and how long the clients write
/// afterwards.
const BEFORE: Duration = Duration::from_secs(5);
const DOWN: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(20);
/// Pause between two writes of a client.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest term plus the clock skew, and `write_slack`: the values of `leasehold serve`.
const TERMS: Duration = Duration::from_secs(63);
const SLACK: Duration = Duration::from_secs(5);
/// A client that gets "try later" retries within two seconds; the rest is margin for a loaded machine.
const GRACE: Duration = Duration::from_secs(7);

const LEASES: Variant = Variant { vers: "nqnfs", proto: "tcp" };

fn name(writer: usize) -> String {
    format!("counter-{writer}")
}

/// Counts in a file until `stop` is set.
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
    /// See the module. Returns one line with the result.
    ///
    /// # Errors
    /// A number was lost, or recovery took longer than the rules allow.
    pub(super) fn storm(&mut self) -> Result<String, String> {
        let one_line = |error: crate::system::Error| error.to_string();
        let io = |error: std::io::Error| error.to_string();
        let clients =
            (0..WRITERS).map(|_| self.client(LEASES, None, Duration::ZERO)).collect::<Result<Vec<_>, _>>();
        let clients = clients.map_err(one_line)?;
        // From here on no process may be started while files are open (see `serve_later`).
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

    /// All writers count while the server is killed and started again. Returns when the server was back, and
    /// the total count at the kill.
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

    /// Kills the server with SIGKILL and starts the next one. Returns when it was back.
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
