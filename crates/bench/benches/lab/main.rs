//! Compares the Linux kernel's clients and caches with ours in the lab: same workloads, same origin, same
//! distance.
//!
//! Each client of a workload is a kernel in a guest of its own. All guests have the same size, and each
//! mounts anew for each pass. The origin is `leasehold serve` on the host, Linux's server in a guest, or
//! nfs-ganesha. The comparison varies what stands between the clients and the origin:
//!
//! - nothing;
//! - the kernel's own cache on the client's disk (`fsc`);
//! - a guest that mounts with `fsc` and re-exports its mount;
//! - `leasehold proxy` on the host.
//!
//! A relay in front of the origin adds the distance and counts the calls to the origin. System calls are slow
//! in a guest. Compare its times only with those of other guests, not with those of processes on the host.
//! Counts compare with any other counts.

mod guests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::interrupt::Interrupt;
use bench::relay::{self, parse_rtt};
use bench::report::{LeftOut, Machine, Measurement, Report, Subject};
use bench::run::Options;
use bench::system::{self, Kind, Origin, System, TestBed};
use bench::workload::{self, Plan, Workload};
use clap::Parser;
use client::Url;
use guests::{Guests, Mounting};
use lab::{Ganesha, Knfsd, Lab};
use tokio::signal::unix::{SignalKind, signal};

/// As in [`bench::run`]: a client may revalidate files that are younger than this.
const AGE: Duration = Duration::from_millis(3200);
/// How long an orderly shutdown may take.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// Measures the kernel's clients, alone and behind caches.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench lab")]
struct Arguments {
    /// Workload to run; repeatable [default: all that need no second client beside them]
    #[arg(long = "workload", value_name = "NAME", value_parser = workload::named)]
    workloads: Vec<Workload>,
    /// System to measure: kernel, kernel-fscache, kernel-reexport, kernel-proxy; repeatable [default: all]
    #[arg(long = "system", value_name = "NAME", value_parser = Peer::named)]
    peers: Vec<Peer>,
    /// Round trip to the origin, in the form that `leasehold bench` accepts
    #[arg(long, value_name = "RTT", value_parser = parse_rtt, default_value = "wan")]
    rtt: Duration,
    /// Sizes and counts relative to those of the papers
    #[arg(long, value_name = "FACTOR", default_value_t = 0.004)]
    scale: f64,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Rounds for each measurement; the report gives medians
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: usize,
    /// The origin
    #[arg(long, value_name = "NAME", default_value = "serve", value_parser = ["serve", "knfsd", "ganesha"])]
    origin: String,
    /// NFS version
    #[arg(long, value_name = "VERS", default_value = "4.2", value_parser = ["4.1", "4.2"])]
    vers: String,
    /// Print the report as JSON; `leasehold bench --from` joins it with other reports
    #[arg(long)]
    json: bool,
    /// Accepted because cargo adds it
    #[arg(long, hide = true)]
    bench: bool,
}

/// What stands between a kernel client and the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Kernel,
    Fscache,
    Reexport,
    Proxy,
}

impl Peer {
    const ALL: [Peer; 4] = [Peer::Kernel, Peer::Fscache, Peer::Reexport, Peer::Proxy];

    fn name(self) -> &'static str {
        match self {
            Peer::Kernel => "kernel",
            Peer::Fscache => "kernel-fscache",
            Peer::Reexport => "kernel-reexport",
            Peer::Proxy => "kernel-proxy",
        }
    }

    fn named(name: &str) -> Result<Peer, String> {
        Peer::ALL.into_iter().find(|peer| peer.name() == name).ok_or_else(|| {
            let known = Peer::ALL.map(Peer::name).join(", ");
            format!("`{name}` is no system of the lab: known are {known}")
        })
    }

    /// The kind of system that runs on the host.
    fn kind(self) -> Kind {
        if self == Peer::Proxy { Kind::Proxy } else { Kind::Direct }
    }

    fn passes(self) -> &'static [(u64, &'static str)] {
        if self == Peer::Kernel { &[(0, "")] } else { &[(0, " cold"), (1, " warm")] }
    }

    fn wants_fscache(self) -> bool {
        matches!(self, Peer::Fscache | Peer::Reexport)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.run() {
        Ok(report) => {
            if arguments.json {
                println!("{}", report.json());
            } else {
                print!("{}", report.table());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn run(&self) -> Result<Report, String> {
        let Some(lab) = Lab::enter("bench") else { return Err("the lab is left out".to_owned()) };
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        let interrupt = Interrupt::default();
        runtime.spawn(end_with_signals(interrupt.clone()));
        let programs = programs()?;
        let test_bed = TestBed {
            runtime: runtime.handle().clone(),
            leasehold: programs.join("leasehold"),
            directory: lab.subdirectory("systems"),
            vers: self.vers.clone(),
            network: relay::Options {
                rtt: self.rtt,
                listen: (lab.address(), 0).into(),
                ..relay::Options::default()
            },
            actimeo: None,
            memory_bytes: 64 << 20,
            mounted: None,
            interrupt,
        };
        let (mut workloads, mut peers) = (self.workloads.clone(), self.peers.clone());
        if workloads.is_empty() {
            workloads = workload::ALL.iter().filter(|workload| !workload.conflicts).copied().collect();
        }
        if peers.is_empty() {
            peers = Peer::ALL.to_vec();
        }
        let foreign = Foreign::start(&lab, &self.origin);
        let options = self.options(&workloads, foreign.as_ref())?;
        let mut report = Report::new(Machine::this(), &options, &self.vers, &test_bed.network);
        if guests::cachefilesd_is_missing() {
            let why = "not installed: apt-get install cachefilesd".to_owned();
            let without = peers.iter().filter(|peer| peer.wants_fscache());
            report
                .left_out
                .extend(without.map(|peer| LeftOut { what: peer.name().to_owned(), why: why.clone() }));
            peers.retain(|peer| !peer.wants_fscache());
        }
        let clients = workloads.iter().map(|workload| workload.clients).max().unwrap_or(1);
        let guests = Guests::boot(&lab, &programs.join("bench"), clients, peers.contains(&Peer::Reexport))?;
        let origin = match &options.against {
            Some(url) => Origin::against(&test_bed, url),
            None => Origin::serve(&test_bed),
        };
        let origin = origin.map_err(|error| error.to_string())?;
        let comparison =
            Comparison { arguments: self, test_bed: &test_bed, origin: &origin, guests: &guests };
        for workload in &workloads {
            for round in 0..self.rounds {
                comparison.round(workload, &peers, round, &mut report);
            }
        }
        if test_bed.interrupt.is_told() {
            // The measurements took long: keep those that are done.
            let why = "interrupted".to_owned();
            report.left_out.push(LeftOut { what: "what would have come then".to_owned(), why });
        }
        Ok(report)
    }

    fn plan(&self) -> Plan {
        Plan { seed: self.seed, scale: self.scale }
    }

    fn options(&self, workloads: &[Workload], origin: Option<&Foreign>) -> Result<Options, String> {
        let command: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
        let url = origin.map(|origin| Url::parse(&format!("{}&noresvport", origin.at().url())));
        Ok(Options {
            workloads: workloads.to_vec(),
            systems: Vec::new(),
            rtts: vec![self.rtt],
            plan: self.plan(),
            rounds: self.rounds,
            together: false,
            against: url.transpose().map_err(|error| error.to_string())?,
            command: format!("cargo xtask bench lab {}", command.join(" ")),
        })
    }
}

/// An origin that is not ours.
enum Foreign {
    Knfsd(Knfsd),
    Ganesha(Ganesha),
}

impl Foreign {
    fn start(lab: &Lab, name: &str) -> Option<Foreign> {
        match name {
            "knfsd" => Some(Foreign::Knfsd(Knfsd::start(lab))),
            "ganesha" => Some(Foreign::Ganesha(Ganesha::start(lab))),
            _ => None,
        }
    }

    fn at(&self) -> lab::Origin {
        match self {
            Foreign::Knfsd(server) => server.origin_v4(),
            Foreign::Ganesha(server) => server.origin(),
        }
    }
}

/// The directory with the programs `leasehold` and `bench`, built with the same profile as this program.
fn programs() -> Result<PathBuf, String> {
    let ours = std::env::current_exe().map_err(|error| error.to_string())?;
    let directory = ours.parent().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    match ["leasehold", "bench"].into_iter().find(|name| !directory.join(name).exists()) {
        None => Ok(directory),
        Some(name) => {
            Err(format!("no {}: run it with cargo xtask bench lab", directory.join(name).display()))
        }
    }
}

/// Ends the servers on a signal. After this process has ended, the lab's guard removes everything of the lab,
/// but not the servers.
async fn end_with_signals(interrupt: Interrupt) {
    let (Ok(mut one), Ok(mut other)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
    eprintln!("bench: ending what was started");
    interrupt.tell();
    tokio::time::sleep(END_PATIENCE).await;
    interrupt.kill();
    std::process::exit(1);
}

struct Comparison<'c> {
    arguments: &'c Arguments,
    test_bed: &'c TestBed,
    origin: &'c Origin,
    guests: &'c Guests,
}

impl Comparison<'_> {
    /// Measures all peers. Each round begins with another peer.
    fn round(&self, workload: &Workload, peers: &[Peer], round: usize, report: &mut Report) {
        if self.test_bed.interrupt.is_told() {
            return;
        }
        let mut order = peers.to_vec();
        order.rotate_left(round % peers.len().max(1));
        let name = |peer: Peer| format!("leasehold-bench-{}-{round}-{}", workload.name, peer.name());
        let prepared: Vec<Result<(), String>> =
            order.iter().map(|peer| self.prepare(workload, &name(*peer))).collect();
        std::thread::sleep(AGE);
        for (peer, prepared) in order.into_iter().zip(prepared) {
            if self.test_bed.interrupt.is_told() {
                return;
            }
            eprintln!("{}, round {}: {}", workload.name, round + 1, peer.name());
            let measured = prepared
                .and_then(|()| self.measure(workload, peer, round, &name(peer), &mut report.measurements));
            let cleaned =
                system::clean(self.test_bed, self.origin, &name(peer)).map_err(|error| error.to_string());
            if let Err(why) = measured.and(cleaned) {
                eprintln!("  {why}");
                let what = format!("{}, round {}, {}", workload.name, round + 1, peer.name());
                report.left_out.push(LeftOut { what, why });
            }
        }
    }

    fn prepare(&self, workload: &Workload, name: &str) -> Result<(), String> {
        let target = system::preparer(self.test_bed, self.origin, Kind::Direct, name, name);
        let target = target.map_err(|error| error.to_string())?;
        (workload.prepare)(&self.arguments.plan(), &*target).map_err(|error| error.to_string())
    }

    /// Measures all passes of a workload behind one peer.
    fn measure(
        &self,
        workload: &Workload,
        peer: Peer,
        round: usize,
        name: &str,
        into: &mut Vec<Measurement>,
    ) -> Result<(), String> {
        let one_line = |error: system::Error| error.to_string();
        let mut system =
            System::start(self.test_bed, self.origin, peer.kind(), name, workload).map_err(one_line)?;
        let measured = self.passes(workload, peer, (round, name), &mut system, into);
        let ended = if peer == Peer::Reexport { self.guests.end_reexport() } else { Ok(()) };
        measured.and(ended)
    }

    fn passes(
        &self,
        workload: &Workload,
        peer: Peer,
        (round, name): (usize, &str),
        system: &mut System<'_>,
        into: &mut Vec<Measurement>,
    ) -> Result<(), String> {
        let one_line = |error: system::Error| error.to_string();
        for &(pass, state) in peer.passes() {
            if pass > 0 && workload.restart {
                system.restart().map_err(one_line)?;
            }
            let restarted = pass == 0 || workload.restart;
            let mounting = self.mounting(peer, system, restarted)?;
            let before = system.observe();
            let work = guests::Work { workload, plan: self.arguments.plan(), pass, name };
            let passed = self.guests.run(&mounting, &work)?;
            let seen = system.settled().since(&before);
            let (system, rtt) = (peer.name(), self.arguments.rtt);
            into.push(Measurement::new(Subject { workload, system, state, round, rtt }, passed, seen));
        }
        Ok(())
    }

    /// The server, export and options that the clients' kernels mount.
    fn mounting(&self, peer: Peer, system: &System<'_>, restarted: bool) -> Result<Mounting, String> {
        let front = system.front();
        let near = |server| self.test_bed.near(server).map_err(|error| error.to_string());
        let mut options = format!("vers={},proto=tcp,hard", self.arguments.vers);
        let (relay, export) = match peer {
            Peer::Kernel | Peer::Fscache => (None, front.export.clone()),
            Peer::Proxy => (Some(near(front.server)?), front.export.clone()),
            Peer::Reexport => {
                let server = self.guests.reexport(front, &options, restarted)?;
                (Some(near(server)?), "/".to_owned())
            }
        };
        if peer == Peer::Fscache {
            options.push_str(",fsc");
        }
        let server = relay.as_ref().map_or(front.server, relay::Relay::local_addr);
        Ok(Mounting { server, export, options, _relay: relay })
    }
}
