//! Macklem's measurements (*Not Quite NFS*, 1994, section 7) with `leasehold mount` in place of his clients.
//! The same cache runs over NFSv3 with close-to-open and over NQNFS with leases.
//!
//! Every client is a process with its own directory, its own cache and its own relay in front of
//! `leasehold serve`. The relay adds the distance and counts calls. The Modified Andrew Benchmark runs in
//! these directories with a real compiler. The load test may instead use a compiler that computes elsewhere
//! (`load`). Calls are counted until the client has ended, so that they include its delayed writes.

mod load;
mod storm;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::interrupt::Interrupt;
use crate::relay::{self, Calls, Relay, Station};
use crate::system::{Error, Program, free_port};
use crate::target::{Forgetting, Mounted};
use crate::workload::{Plan, andrew};

/// Number of the compile phase.
const COMPILE: usize = 4;
/// Table 1 of the paper, by row: NQNFS, NFS.
const TABLE_1: [(&str, u64, u64); 7] = [
    ("Getattr", 277, 1210),
    ("Read", 139, 506),
    ("Write", 306, 451),
    ("Lookup", 575, 489),
    ("Other", 294, 238),
    ("GetLease", 127, 0),
    ("Total", 1718, 2894),
];

/// What to measure, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// What to measure
    #[arg(value_enum)]
    what: What,
    /// The program `leasehold`
    #[arg(long, default_value = "target/release/leasehold")]
    program: PathBuf,
    /// Size relative to the benchmark's own 71 files
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Rounds for each measurement
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// `delay`: round trips, in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [5, 40, 80, 120, 160, 200])]
    rtt_ms: Vec<u64>,
    /// `load`: numbers of clients
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 6, 8, 10])]
    clients: Vec<usize>,
    /// `load`: the round trip, in milliseconds
    #[arg(long, default_value_t = 1)]
    load_rtt_ms: u64,
    /// `load`: the transport
    #[arg(long, default_value = "tcp", value_parser = ["tcp", "udp"])]
    load_proto: String,
    /// `load`: where compilers compute
    #[arg(long, value_enum, default_value = "here")]
    compilers: Compilers,
    /// `load`: with `--compilers asleep`, how long each unit takes, in milliseconds [default: the time of
    /// `cc`, measured just before]
    #[arg(long)]
    unit_ms: Option<u64>,
    /// `load`: the server handles one call at a time, each for this many microseconds; 0: as fast as it can
    /// [default: 5000 with `--compilers asleep`, else 0]
    #[arg(long)]
    service_us: Option<u64>,
}

/// A table or figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// Table 1: calls of one client by kind
    Counts,
    /// Figure 5: the compile phase of several clients at once
    Load,
    /// Table 4: the compile phase over long distances, TCP and UDP
    Delay,
    /// Section 4.1: the server is killed while ten clients write under leases
    Storm,
}

/// On which processor the compilers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Compilers {
    /// This machine's: one `cc` at a time for each client
    Here,
    /// An emulated one per client: the compiler's file operations are made, and it sleeps instead of
    /// computing
    Asleep,
}

/// Protocol and transport of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    vers: &'static str,
    proto: &'static str,
}

impl Variant {
    fn name(self) -> String {
        let protocol = if self.vers == "3" { "NFS" } else { "Leases" };
        format!("{protocol}, {}", self.proto.to_uppercase())
    }
}

const BOTH: [&str; 2] = ["3", "nqnfs"];

/// A mounted client process.
struct Client {
    relay: Relay,
    program: Program,
    mounted: PathBuf,
}

impl Client {
    /// Ends the client in order, so that it sends its delayed writes. Returns all calls that it has made to
    /// the server.
    fn end(self) -> Calls {
        let Client { relay, program, mounted } = self;
        program.end();
        // This fails if the program has already unmounted.
        let _ = Command::new("umount").arg("-l").arg(mounted).stderr(std::process::Stdio::null()).status();
        relay.calls()
    }
}

/// One server, and one directory for all files.
struct Site<'a> {
    arguments: &'a Arguments,
    directory: PathBuf,
    server: Program,
    listen: SocketAddr,
    plan: Plan,
    clients: usize,
}

impl Arguments {
    /// Measures, and returns the table as Markdown. Needs root and a Tokio runtime that keeps running.
    ///
    /// # Errors
    /// One line: the program that did not start, or the file operation that failed.
    pub async fn run(self) -> Result<String, String> {
        let runtime = tokio::runtime::Handle::current();
        let measuring = tokio::task::spawn_blocking(move || {
            let _entered = runtime.enter();
            let directory = std::env::temp_dir().join(format!("leasehold-macklem-{}", std::process::id()));
            let measured = self.measure(&directory);
            let _ = std::fs::remove_dir_all(&directory);
            measured
        });
        measuring.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    fn measure(&self, directory: &Path) -> Result<String, String> {
        let mut site = Site::start(self, directory).map_err(|error| error.to_string())?;
        match self.what {
            What::Counts => site.counts(),
            What::Load => site.load(),
            What::Delay => site.delay(),
            What::Storm => site.storm(),
        }
    }
}

/// Adds the arguments that make `leasehold` the server.
fn serve_words(process: &mut Command, directory: &Path, listen: SocketAddr) {
    process.arg("serve").arg(directory.join("export")).args(["--export", "/export", "--state"]);
    process.arg(directory.join("state")).args(["--listen", &listen.to_string(), "--insecure"]);
    process.args(["--no-root-squash", "--no-rpcbind"]);
}

impl<'a> Site<'a> {
    fn start(arguments: &'a Arguments, directory: &Path) -> Result<Site<'a>, Error> {
        for name in ["export", "state"] {
            let path = directory.join(name);
            std::fs::create_dir_all(&path).map_err(Error::io(format!("cannot make {}", path.display())))?;
        }
        let plan = Plan { seed: 1, scale: arguments.scale };
        let listen = free_port()?;
        let server = Site::serve(arguments, directory, listen)?;
        Ok(Site { arguments, directory: directory.to_owned(), server, listen, plan, clients: 0 })
    }

    fn serve(arguments: &Arguments, directory: &Path, listen: SocketAddr) -> Result<Program, Error> {
        let mut process = Command::new(&arguments.program);
        serve_words(&mut process, directory, listen);
        Program::start(&Interrupt::default(), "serve", process, listen, &directory.join("serve.log"))
    }

    /// Prepares another start of the same server: a shell starts it as soon as the file `go` exists. A caller
    /// needs this if it has files of this server open. A new process has copies of their descriptors until
    /// exec closes each of them, and that close would wait for the server.
    fn serve_later(&self, go: &Path) -> Result<Program, Error> {
        let mut process = Command::new("sh");
        process.args(["-c", r#"until [ -e "$0" ]; do sleep 0.05; done; exec "$@""#]).arg(go);
        process.arg(&self.arguments.program);
        serve_words(&mut process, &self.directory, self.listen);
        let log = self.directory.join("serve-again.log");
        Program::spawn(&Interrupt::default(), "serve", process, self.listen, &log)
    }

    /// Creates the source tree of each client, and waits until the files are no longer new.
    fn prepare(&self, names: &[String]) -> Result<(), String> {
        for name in names {
            let there = self.directory.join("export").join(name);
            std::fs::create_dir_all(&there).map_err(|error| error.to_string())?;
            (andrew::WORKLOAD.prepare)(&self.plan, &Mounted::new(there, Forgetting::Everything))
                .map_err(|error| error.to_string())?;
        }
        std::thread::sleep(Duration::from_millis(3200));
        Ok(())
    }

    fn client(
        &mut self,
        variant: Variant,
        station: Option<Arc<Station>>,
        rtt: Duration,
    ) -> Result<Client, Error> {
        self.clients += 1;
        let own = self.directory.join(format!("client-{}", self.clients));
        let mounted = own.join("mounted");
        std::fs::create_dir_all(&mounted).map_err(Error::io(format!("cannot make {}", mounted.display())))?;
        let options = relay::Options { udp: true, ..relay::Options::rtt(rtt) };
        let relay = Relay::start_before(station, self.listen, options)
            .map_err(Error::io("cannot start the relay"))?;
        let port = relay.local_addr().port();
        let Variant { vers, proto } = variant;
        let url = format!("nfs://127.0.0.1:{port}/export?vers={vers}&proto={proto}&mountport={port}");
        let mut process = Command::new(&self.arguments.program);
        process.arg("mount").arg(format!("{url}&noresvport&nolock")).arg(&mounted);
        process.arg("-o").arg(format!("cache={}", own.join("cache").display())).arg("--foreground");
        let device = |path: &Path| {
            use std::os::unix::fs::MetadataExt;
            path.metadata().map(|metadata| metadata.dev()).ok()
        };
        let is_mounted = || device(&mounted).is_some_and(|inside| Some(inside) != device(&own));
        let program =
            Program::start_until(&Interrupt::default(), "mount", process, &own.join("log"), is_mounted)?;
        Ok(Client { relay, program, mounted })
    }

    /// Runs phases as a client. Ends the client. Returns the times of these phases, and the client's calls
    /// from the first of them on.
    fn run(&self, client: Client, name: &str, phases: &[usize]) -> Result<(Vec<f64>, Calls), String> {
        let target = Mounted::new(client.mounted.join(name), Forgetting::Everything);
        let mut times = Vec::new();
        let mut before = client.relay.calls();
        for number in 0..=COMPILE {
            if Some(&number) == phases.first() {
                before = client.relay.calls();
            }
            let started = Instant::now();
            andrew::phase(&target, &self.plan, number, "copy").map_err(|error| format!("{name}: {error}"))?;
            if phases.contains(&number) {
                times.push(started.elapsed().as_secs_f64());
            }
        }
        Ok((times, client.end().since(&before)))
    }

    /// Table 1.
    fn counts(&mut self) -> Result<String, String> {
        let mut rows: Vec<BTreeMap<&str, u64>> = Vec::new();
        let mut kinds = String::new();
        for vers in BOTH {
            let name = format!("counts-{vers}");
            self.prepare(std::slice::from_ref(&name))?;
            let variant = Variant { vers, proto: "udp" };
            let client = self.client(variant, None, Duration::ZERO).map_err(|error| error.to_string())?;
            let (_, calls) = self.run(client, &name, &[0, 1, 2, 3, 4])?;
            let all: Vec<String> = calls.work().map(|(name, count)| format!("{count} {name}")).collect();
            let _ = writeln!(kinds, "- {}: {}", variant.name(), all.join(", "));
            rows.push(by_row(&calls));
        }
        let mut text = String::from(
            "| calls | NFS (v3) | leases | ratio | the paper's ratio |\n|---|---|---|---|---|\n",
        );
        for (row, nqnfs, nfs) in TABLE_1 {
            let of = |at: usize| rows.get(at).and_then(|rows| rows.get(row)).copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "| {row} | {} | {} | {} | {} |",
                of(0),
                of(1),
                ratio(of(1), of(0)),
                ratio(nqnfs, nfs)
            );
        }
        Ok(format!("{text}\n{kinds}"))
    }

    /// Table 4. The variants take turns.
    fn delay(&mut self) -> Result<String, String> {
        let variants: Vec<Variant> =
            BOTH.into_iter().flat_map(|vers| ["udp", "tcp"].map(|proto| Variant { vers, proto })).collect();
        let mut text = String::from("| round trip, ms |");
        variants.iter().for_each(|variant| {
            let _ = write!(text, " {}, s | spread |", variant.name());
        });
        let _ = writeln!(text, "\n|{}", "---|".repeat(1 + 2 * variants.len()));
        for rtt_ms in self.arguments.rtt_ms.clone() {
            let _ = write!(text, "| {rtt_ms} |");
            let mut times = vec![Vec::new(); variants.len()];
            for round in 0..self.arguments.rounds {
                for (variant, times) in variants.iter().zip(&mut times) {
                    let name = format!("delay-{rtt_ms}-{}-{}-{round}", variant.vers, variant.proto);
                    self.prepare(std::slice::from_ref(&name))?;
                    let client = self.client(*variant, None, Duration::from_millis(rtt_ms));
                    let client = client.map_err(|error| error.to_string())?;
                    let (seconds, _) = self.run(client, &name, &[COMPILE])?;
                    times.extend(seconds);
                }
            }
            for times in &times {
                let _ = write!(text, " {:.2} | {:.2} |", mean(times), deviation(times));
            }
            text.push('\n');
        }
        Ok(text)
    }
}

/// Sorts calls by their names on the wire into the rows of table 1. Calls that mount belong to no row.
fn by_row(calls: &Calls) -> BTreeMap<&'static str, u64> {
    let mut rows: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (name, count) in calls.work() {
        let row = match name.as_str() {
            "GETATTR" => "Getattr",
            "READ" => "Read",
            "WRITE" => "Write",
            "LOOKUP" => "Lookup",
            "GETLEASE" | "VACATED" => "GetLease",
            _ => "Other",
        };
        *rows.entry(row).or_default() += count;
        *rows.entry("Total").or_default() += count;
    }
    rows
}

fn ratio(part: u64, complete: u64) -> String {
    if complete == 0 { "–".to_owned() } else { format!("{:.0} %", 100.0 * part as f64 / complete as f64) }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// Standard deviation of a sample.
fn deviation(times: &[f64]) -> f64 {
    let mean = mean(times);
    let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
    (squares / times.len().saturating_sub(1).max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_paper_and_add_up() {
        let counts =
            [("GETATTR", 3), ("READ", 2), ("GETLEASE", 4), ("VACATED", 1), ("ACCESS", 5), ("NULL", 9)];
        let mut calls = Calls::default();
        calls.calls.extend(counts.map(|(name, count)| (name.to_owned(), count)));
        let rows = by_row(&calls);
        let of = |row: &str| rows.get(row).copied().unwrap_or(0);
        assert_eq!(["Getattr", "Read", "Write", "GetLease", "Other", "Total"].map(of), [3, 2, 0, 5, 5, 15]);
        let sum = TABLE_1.iter().take(6).fold((0, 0), |sum, row| (sum.0 + row.1, sum.1 + row.2));
        assert_eq!(sum, (TABLE_1[6].1, TABLE_1[6].2));
    }

    #[test]
    fn spreads_are_of_samples() {
        assert_eq!((mean(&[1.0, 3.0]), deviation(&[5.0])), (2.0, 0.0));
        assert!((deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) - 2.138).abs() < 0.001);
    }
}
