//! The command line of `leasehold bench`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use client::Url;
use tokio::runtime::Handle as Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinError;

use crate::interrupt::Interrupt;
use crate::quick::{self, Baseline};
use crate::relay::{self, parse_rtt};
use crate::report::Report;
use crate::run::{self, Options, Progress};
use crate::system::{Kind, TestBed};
use crate::workload::{self, Plan, Workload};

/// Runs the papers' workloads on a direct connection, our proxy and mount, and the peers, and reports.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Workload to run; repeatable; `--list` shows the names [default: all]
    #[arg(long = "workload", value_name = "NAME", value_parser = workload::named)]
    pub workloads: Vec<Workload>,
    /// System to measure: local, direct, direct-sync (waits for each write), proxy, mount, ganesha,
    /// ganesha-proxy; repeatable [default: all that run on this machine]
    #[arg(long = "system", value_name = "NAME")]
    pub systems: Vec<Kind>,
    /// Round trip to the origin: lan (0.2 ms), metro (5), region (20), wan (75), far (200), or milliseconds;
    /// repeatable
    #[arg(long = "rtt", value_name = "RTT", value_parser = parse_rtt, default_value = "wan")]
    pub rtts: Vec<Duration>,
    /// The longest random delay added to a round trip, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub jitter_ms: u32,
    /// Bandwidth to and from the origin, in megabits per second
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub bandwidth: Option<u32>,
    /// Sizes and counts relative to those of the papers
    #[arg(long, value_name = "FACTOR", default_value = "0.02", value_parser = scale)]
    pub scale: f64,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Rounds for each measurement; the report gives medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// NFS version
    #[arg(long, value_name = "VERS", default_value = "4.2", value_parser = ["3", "4.1", "4.2"])]
    pub vers: String,
    /// Use this server as the origin: creates directories whose names begin with `leasehold-bench` in its
    /// export, and removes them. Without root, the export must be `insecure` and the URL needs `?noresvport`
    #[arg(long, value_name = "URL", value_parser = origin)]
    pub against: Option<Url>,
    /// Measure this directory instead, whatever is mounted there: creates directories whose names begin with
    /// `leasehold-bench`, and removes them; does not count calls
    #[arg(long, value_name = "DIR", conflicts_with_all = ["systems", "against", "quick"])]
    pub dir: Option<PathBuf>,
    /// Directory for temporary files: its file system must support file handles (overlayfs does not)
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the papers' tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Measure nothing; read the report from JSON files printed before; several files are joined
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "against"])]
    pub from: Vec<PathBuf>,
    /// List the workloads
    #[arg(long)]
    pub list: bool,
    /// Compare counts with this baseline, on a fixed set of workloads and systems; a higher count is a
    /// failure
    #[arg(long, value_name = "BASELINE")]
    pub quick: Option<PathBuf>,
    /// Make the result of `--quick` the new baseline
    #[arg(long, requires = "quick")]
    pub accept: bool,
}

/// Parses the URL of an origin. The only options allowed in it say how to reach the server.
fn origin(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let client::Options { port, mountport, resvport, .. } = url.options;
    if url.options != (client::Options { port, mountport, resvport, ..Default::default() }) {
        return Err("of the options of this URL, `port`, `mountport` and `noresvport` count here; the version is told by \
                    --vers"
            .to_owned());
    }
    Ok(url)
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| *scale > 0.0 && *scale <= 10.0);
    scale.ok_or_else(|| format!("`{text}` is no scale: write a number above 0 and at most 10"))
}

/// A directory that is removed when the value is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn make(under: &Path) -> Result<Scratch, String> {
        let path = under.join(format!("leasehold-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| {
            format!("cannot make {}: {error}; give --directory another place", path.display())
        })?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What every test bed needs.
struct Base<'b> {
    runtime: Runtime,
    leasehold: PathBuf,
    scratch: &'b Scratch,
    interrupt: Interrupt,
}

/// How long an orderly shutdown may take, and then a forced one.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The signals that end the benchmark.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

fn ended(worked: Result<Result<bool, String>, JoinError>) -> Result<bool, String> {
    worked.map_err(|error| format!("the benchmark ended before its time: {error}"))?
}

impl Arguments {
    /// Does what the arguments ask for, with servers of this program. Returns false if counts are above the
    /// baseline.
    ///
    /// # Errors
    /// One line.
    ///
    /// SIGINT and SIGTERM also give an error of one line, after every started program has ended and every
    /// created file is removed.
    pub async fn run(
        self,
        leasehold: PathBuf,
        progress: impl FnMut(Progress<'_>) + Send + 'static,
    ) -> Result<bool, String> {
        if self.list {
            print(&list())?;
            return Ok(true);
        }
        let (runtime, interrupt) = (Runtime::current(), Interrupt::default());
        let mut signals = Signals::listen()?;
        // Workloads block, as real programs do.
        let told = interrupt.clone();
        let mut working = tokio::task::spawn_blocking(move || self.work(runtime, leasehold, told, progress));
        let signal = tokio::select! {
            worked = &mut working => return ended(worked),
            signal = signals.next() => signal,
        };
        interrupt.tell();
        eprintln!("{signal}: ending what was started; once more ends it by force");
        tokio::select! {
            worked = &mut working => return ended(worked),
            () = tokio::time::sleep(END_PATIENCE) => {}
            _ = signals.next() => {}
        }
        interrupt.kill();
        match tokio::time::timeout(END_PATIENCE, working).await {
            Ok(worked) => ended(worked),
            Err(_) => Err(format!(
                "{signal}: something does not end; directories named leasehold-bench… may be left behind"
            )),
        }
    }

    fn work(
        self,
        runtime: Runtime,
        leasehold: PathBuf,
        interrupt: Interrupt,
        progress: impl FnMut(Progress<'_>),
    ) -> Result<bool, String> {
        self.can_write()?;
        if let Some(report) = self.measured_before()? {
            return self.tell(&report).map(|()| true);
        }
        let scratch = Scratch::make(&self.directory)?;
        if let Some(baseline) = &self.quick {
            let options = quick::options()?;
            let base = Base { runtime, leasehold, scratch: &scratch, interrupt };
            let test_bed = self.test_bed(base, options.plan.scale, Some(quick::ACTIMEO));
            let report = run::run(&test_bed, &options, progress).map_err(|error| error.to_string())?;
            return self.hold(&report, baseline);
        }
        let base = Base { runtime, leasehold, scratch: &scratch, interrupt };
        let test_bed = self.test_bed(base, self.scale, None);
        let report = run::run(&test_bed, &self.options(), progress).map_err(|error| error.to_string())?;
        self.tell(&report)?;
        match report.left_out.first() {
            Some(left) if report.measurements.is_empty() => {
                Err(format!("nothing was measured: {}: {}", left.what, left.why))
            }
            _ => Ok(true),
        }
    }

    /// Checks that the output files can be written, so that a mistyped name does not fail hours of
    /// measurement at the end.
    fn can_write(&self) -> Result<(), String> {
        for file in self.html.iter().chain(&self.markdown) {
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
            opened.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(())
    }

    /// The reports that `--from` names, joined.
    fn measured_before(&self) -> Result<Option<Report>, String> {
        let mut joined: Option<Report> = None;
        for file in &self.from {
            let report = serde_json::from_str::<Report>(&read(file)?)
                .map_err(|error| format!("{} is no report: {error}", file.display()))?;
            match &mut joined {
                None => joined = Some(report),
                Some(so_far) => {
                    so_far.join(report).map_err(|error| format!("{}: {error}", file.display()))?;
                }
            }
        }
        Ok(joined)
    }

    fn test_bed(&self, base: Base<'_>, scale: f64, actimeo: Option<Duration>) -> TestBed {
        let bytes_per_second =
            self.bandwidth.and_then(|mbit| std::num::NonZeroU64::new(u64::from(mbit) * 125_000));
        let jitter = Duration::from_millis(self.jitter_ms.into());
        let network =
            relay::Options { jitter, bytes_per_second, seed: self.seed, ..relay::Options::default() };
        TestBed {
            runtime: base.runtime,
            leasehold: base.leasehold,
            directory: base.scratch.0.clone(),
            vers: self.vers.clone(),
            network,
            actimeo,
            // Memory as small relative to the files as that of a machine of the papers: 64 MiB at their
            // sizes.
            memory_bytes: ((64 << 20) as f64 * scale).clamp((1 << 20) as f64, (64 << 20) as f64) as usize,
            mounted: self.dir.clone(),
            interrupt: base.interrupt,
        }
    }

    fn options(&self) -> Options {
        let all_if_none = |workloads: &[Workload]| match workloads {
            [] => workload::ALL.to_vec(),
            _ => workloads.to_vec(),
        };
        let command: Vec<String> = std::env::args().skip(1).collect();
        let systems = match (&self.dir, &self.systems[..]) {
            (Some(_), _) => vec![Kind::Dir],
            (None, []) => Kind::ALL.to_vec(),
            (None, some) => some.to_vec(),
        };
        Options {
            workloads: all_if_none(&self.workloads),
            systems,
            // This program does not control the distance of a directory that is already mounted.
            rtts: if self.dir.is_some() { vec![Duration::ZERO] } else { self.rtts.clone() },
            plan: Plan { seed: self.seed, scale: self.scale },
            rounds: self.rounds.into(),
            together: false,
            against: self.against.clone(),
            command: format!("leasehold {}", command.join(" ")),
        }
    }

    /// Prints first, and writes all output files that can be written: repeating the measurement would take
    /// long.
    fn tell(&self, report: &Report) -> Result<(), String> {
        print(&if self.json { format!("{}\n", report.json()) } else { report.table() })?;
        let html = self.html.as_ref().map_or(Ok(()), |file| write(file, &report.html()));
        let markdown = self.markdown.as_ref().map_or(Ok(()), |file| write(file, &report.markdown()));
        html.and(markdown)
    }

    fn hold(&self, report: &Report, file: &Path) -> Result<bool, String> {
        if !report.left_out.is_empty() {
            let what: Vec<String> =
                report.left_out.iter().map(|left| format!("{}: {}", left.what, left.why)).collect();
            return Err(format!("not everything could be measured: {}", what.join("; ")));
        }
        let measured = Baseline::of(report);
        print!("{}", report.table());
        if self.accept {
            write(file, &measured.json())?;
            return Ok(true);
        }
        let verdict = quick::compare(&measured, &Baseline::parse(&read(file)?)?);
        print(&format!("\n{verdict}"))?;
        Ok(verdict.passed())
    }
}

/// Prints on standard output. A reader that has closed its end (as `| head` does) is no error, because the
/// remaining work must still be done.
pub(crate) fn print(text: &str) -> Result<(), String> {
    match std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}; give it another place"))
        }
        _ => Ok(()),
    }
}

fn list() -> String {
    let line = |workload: &Workload| {
        format!("{:<20} {} ({}, {})\n", workload.name, workload.about, workload.paper, workload.section)
    };
    workload::ALL.iter().map(line).collect()
}

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        Line::try_parse_from(["bench"].into_iter().chain(words.split_whitespace())).map(|line| line.arguments)
    }

    #[test]
    fn everything_at_75_ms_unless_said_otherwise() {
        let options = parse("").unwrap().options();
        assert_eq!((options.workloads.len(), options.systems.len()), (workload::ALL.len(), Kind::ALL.len()));
        assert_eq!(options.rtts, [Duration::from_millis(75)]);
        let words = "--workload build --workload oltp --system proxy --rtt lan --rtt 12 --scale 0.5 --against nfs://h/x";
        let options = parse(words).unwrap().options();
        assert_eq!((options.workloads.len(), options.systems.as_slice()), (2, &[Kind::Proxy][..]));
        assert_eq!(options.rtts, [Duration::from_micros(200), Duration::from_millis(12)]);
        assert_eq!(parse("--dir /mnt").unwrap().options().systems, [Kind::Dir]);
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_measured() {
        for words in ["--html /nonexistent/x.html", "--markdown /nonexistent/x.md"] {
            let error = parse(words).unwrap().can_write().unwrap_err();
            assert!(error.starts_with("cannot write /nonexistent/x."), "{error}");
        }
    }

    #[test]
    fn what_there_is_not_is_told() {
        for words in [
            "--workload oltq",
            "--system prox",
            "--rtt moon",
            "--scale 0",
            "--vers 5",
            "--accept",
            "--dir /mnt --system local",
            "--against nfs://h/x?vers=3",
        ] {
            assert!(parse(words).is_err(), "{words}");
        }
        assert_eq!(list().lines().count(), workload::ALL.len());
    }
}
