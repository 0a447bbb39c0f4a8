//! A comparison: runs workloads on systems in turns, for several rounds.
//!
//! Every round of a workload measures every system, each time beginning with another one, so that other load
//! of the machine affects all systems. Each measurement has its own files on the origin, so that no system
//! finds another's files. They are put there before the round's first measurement.
//!
//! A system with a cache runs twice: cold, and warm with the cache of the cold pass. A mount is mounted anew
//! between the two passes. For tasks that users repeat, a third pass measures the second run on one mount.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Url;
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupt;
use crate::report::{LeftOut, Machine, Measurement, Report, Subject};
use crate::system::{self, Error, Kind, Observation, Origin, System, TestBed};
use crate::target::Target;
use crate::workload::{Latencies, Meter, Metered, Phase, Plan, Run, Workload};

/// A cache asks the origin again for files younger than this, because it may not be able to distinguish the
/// next change by its timestamp. The files that people use on network file systems are seldom that young.
const AGE: Duration = Duration::from_millis(3200);

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The workloads, in this order.
    pub workloads: Vec<Workload>,
    /// The systems. If one cannot run here, it is left out and the report says why.
    pub systems: Vec<Kind>,
    /// Round trips to the origin. Every measurement is repeated for each of them.
    pub rtts: Vec<Duration>,
    /// Seed and scale.
    pub plan: Plan,
    /// Rounds for each measurement.
    pub rounds: usize,
    /// Prepare the files of all measurements first, and wait only once for them to age. For small workloads.
    pub together: bool,
    /// The user's server, used instead of one of ours.
    pub against: Option<Url>,
    /// The command line, to repeat the report.
    pub command: String,
}

/// Progress of a comparison, for the user.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// Measurements done.
    pub done: usize,
    /// Number of all measurements.
    pub of: usize,
    /// The current step.
    pub doing: &'p str,
}

/// Runs the comparison.
///
/// # Errors
/// The origin does not run, or [`TestBed::interrupt`] requests the end; then nothing is left behind. If one
/// measurement fails, the report contains the error and the others continue.
pub fn run(
    test_bed: &TestBed,
    options: &Options,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, Error> {
    let mut report = Report::new(Machine::this(), options, &test_bed.vers, &test_bed.network);
    let mut systems = Vec::new();
    for &kind in &options.systems {
        match system::missing(test_bed, kind, options.against.is_some()) {
            Some(why) => report.left_out.push(LeftOut { what: kind.name().to_owned(), why }),
            None => systems.push(kind),
        }
    }
    let origin = match &options.against {
        Some(url) => Origin::against(test_bed, url)?,
        None => Origin::serve(test_bed)?,
    };
    let systems_of = |workload: &Workload| systems.iter().filter(|kind| kind.takes(workload)).count();
    let of = options.workloads.iter().map(systems_of).sum::<usize>() * options.rounds * options.rtts.len();
    let mut done = 0;
    let test_beds = options.rtts.iter().map(|&rtt| {
        let mut test_bed = test_bed.clone();
        test_bed.network.rtt = rtt;
        test_bed
    });
    let test_beds: Vec<TestBed> = test_beds.collect();
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for workload in &options.workloads {
        for round in 0..options.rounds {
            turns.extend(test_beds.iter().map(|test_bed| Turn {
                test_bed,
                origin: &origin,
                options,
                workload,
                round,
            }));
        }
    }
    for together in turns.chunks(if options.together { turns.len().max(1) } else { 1 }) {
        progress(Progress { done, of, doing: &format!("{}: preparing", together[0]) });
        let prepared: Vec<Result<(), Error>> = together.iter().map(|turn| turn.prepare(&systems)).collect();
        if systems.iter().any(|kind| kind.caches()) {
            test_bed.interrupt.sleep(AGE);
        }
        for (turn, prepared) in together.iter().zip(prepared) {
            for kind in turn.order(&systems) {
                if test_bed.interrupt.is_told() {
                    break;
                }
                progress(Progress { done, of, doing: &format!("{turn}: {kind}") });
                let measured = match &prepared {
                    Ok(()) => turn.measure(kind, &mut report.measurements),
                    Err(error) => Err(error.to_string()),
                };
                if let Err(why) = measured {
                    report.left_out.push(LeftOut { what: format!("{turn}, {kind}"), why });
                }
                done += 1;
            }
            if let Err(error) = turn.clean(&systems) {
                report
                    .left_out
                    .push(LeftOut { what: format!("{turn}, removing its files"), why: error.to_string() });
            }
        }
        let complete = |source| Error::Io { what: "the comparison was not finished".to_owned(), source };
        test_bed.interrupt.check().map_err(complete)?;
    }
    progress(Progress { done, of, doing: "done" });
    Ok(report)
}

/// One round of one workload at one distance.
struct Turn<'t> {
    test_bed: &'t TestBed,
    origin: &'t Origin,
    options: &'t Options,
    workload: &'t Workload,
    round: usize,
}

impl std::fmt::Display for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rtt_ms = self.test_bed.network.rtt.as_secs_f64() * 1e3;
        write!(f, "{}, {rtt_ms} ms, round {}", self.workload.name, self.round + 1)
    }
}

impl Turn<'_> {
    /// Name of the measurement's directory on the origin, and of the system's own directory.
    fn name(&self, kind: Kind) -> String {
        let rtt = self.test_bed.network.rtt.as_micros();
        format!("leasehold-bench-{}-{}-{rtt}-{kind}", self.workload.name, self.round)
    }

    /// The order of the systems. Each round begins with another one.
    fn order(&self, systems: &[Kind]) -> Vec<Kind> {
        let mut order: Vec<Kind> = self.systems(systems).collect();
        let first = self.round % order.len().max(1);
        order.rotate_left(first);
        order
    }

    /// The systems that are measured with this workload.
    fn systems<'s>(&self, systems: &'s [Kind]) -> impl Iterator<Item = Kind> + use<'s> {
        let workload = *self.workload;
        systems.iter().copied().filter(move |kind| kind.takes(&workload))
    }

    fn prepare(&self, systems: &[Kind]) -> Result<(), Error> {
        for kind in self.systems(systems) {
            let name = self.name(kind);
            let target = system::preparer(self.test_bed, self.origin, kind, &name, &name)?;
            let target = Metered::new(target, Arc::new(Meter::new(&self.test_bed.interrupt)));
            let failed = Error::io(format!("cannot prepare {}", self.workload.name));
            (self.workload.prepare)(&self.options.plan, &target).map_err(failed)?;
        }
        Ok(())
    }

    fn clean(&self, systems: &[Kind]) -> Result<(), Error> {
        for kind in self.systems(systems) {
            let name = self.name(kind);
            system::clean(self.test_bed, self.origin, &name)?;
            let own = self.test_bed.directory.join(&name);
            if own.exists() {
                std::fs::remove_dir_all(&own)
                    .map_err(Error::io(format!("cannot remove {}", own.display())))?;
            }
        }
        Ok(())
    }

    /// Runs all passes of a system. An error is one line.
    fn measure(&self, kind: Kind, into: &mut Vec<Measurement>) -> Result<(), String> {
        let one_line = |error: Error| error.to_string();
        let (name, workload) = (self.name(kind), self.workload);
        let mut system =
            System::start(self.test_bed, self.origin, kind, &name, workload).map_err(one_line)?;
        let states: &[&str] = match kind {
            Kind::Mount if workload.again => &[" cold", " warm", " again"],
            _ if kind.caches() => &[" cold", " warm"],
            _ => &[""],
        };
        for (pass, &state) in (0..).zip(states) {
            if pass > 0 {
                system.next_pass(workload.restart).map_err(one_line)?;
            }
            if state == " again" {
                self.work(&mut system, pass + 1, &name, |_, _| ())?;
            }
            into.push(self.pass(&mut system, (kind, state), pass, &name)?);
        }
        Ok(())
    }

    fn pass(
        &self,
        system: &mut System<'_>,
        (kind, state): (Kind, &str),
        pass: u64,
        name: &str,
    ) -> Result<Measurement, String> {
        // Count while the clients still exist: calls of their shutdown are not part of the workload.
        let settled = |system: &mut System<'_>, before: &Observation| system.settled().since(before);
        let (passed, seen) = self.work(system, pass, name, settled)?;
        let (workload, rtt) = (self.workload, self.test_bed.network.rtt);
        let subject = Subject { workload, system: kind.name(), state, round: self.round, rtt };
        Ok(Measurement::new(subject, passed, seen))
    }

    /// Runs a pass, and then `then` with the observation made before the pass. The clients end only after
    /// that. Mounts stay, unless `then` ends them.
    fn work<T>(
        &self,
        system: &mut System<'_>,
        pass: u64,
        name: &str,
        then: impl FnOnce(&mut System<'_>, &Observation) -> T,
    ) -> Result<(Passed, T), String> {
        let one_line = |error: Error| error.to_string();
        let workload = self.workload;
        let local: PathBuf =
            self.test_bed.subdirectory(&format!("{name}/clients-{pass}")).map_err(one_line)?;
        let client = |number| system.client(number, name, workload.delegations);
        let clients = (0..workload.clients).map(client).collect::<Result<Vec<_>, _>>().map_err(one_line)?;
        let beside = if workload.conflicts { Some(system.beside(name).map_err(one_line)?) } else { None };
        let before = system.observe_first();
        let work = Pass {
            workload,
            plan: self.options.plan,
            clients: &clients,
            first_client: 0,
            beside: beside.as_ref().map(|beside| &*beside.client),
            pass,
            local: &local,
            calls: Some(&|| system.calls()),
        };
        let passed = work.run(&self.test_bed.interrupt).map_err(|error| error.to_string())?;
        Ok((passed, then(system, &before)))
    }
}

/// One pass of a workload.
pub struct Pass<'p> {
    /// The workload.
    pub workload: &'p Workload,
    /// Seed and scale.
    pub plan: Plan,
    /// The clients; at least one.
    pub clients: &'p [Arc<dyn Target>],
    /// Number of the first of these clients, if others run elsewhere.
    pub first_client: usize,
    /// A client that goes directly to the origin, if the workload needs one.
    pub beside: Option<&'p dyn Target>,
    /// Number of the pass; 0 is the cold one.
    pub pass: u64,
    /// A directory for the files that clients keep on their own disks.
    pub local: &'p Path,
    /// Returns the calls at the origin so far, if they are counted.
    pub calls: Option<&'p (dyn Fn() -> u64 + Sync)>,
}

/// The clients' view of a pass, wherever they ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Seconds for the entire pass.
    pub seconds: f64,
    /// The parts of the pass.
    pub phases: Vec<Phase>,
    /// System calls of the workload.
    pub operations: u64,
    /// Durations of these system calls, by kind.
    pub latencies: BTreeMap<String, Latencies>,
    /// CPU time of this process.
    pub cpu_seconds: f64,
}

impl Passed {
    /// Combines the results of two machines that began at the same time: sums of counts, and the longer of
    /// the times.
    #[must_use]
    pub fn and(mut self, other: &Passed) -> Passed {
        self.seconds = self.seconds.max(other.seconds);
        for (ours, theirs) in self.phases.iter_mut().zip(&other.phases) {
            ours.seconds = ours.seconds.max(theirs.seconds);
            ours.operations += theirs.operations;
        }
        self.operations += other.operations;
        for (kind, theirs) in &other.latencies {
            let ours = self.latencies.entry(kind.clone()).or_default();
            *ours = ours.and(theirs);
        }
        self.cpu_seconds += other.cpu_seconds;
        self
    }
}

impl Pass<'_> {
    /// Runs the pass.
    ///
    /// # Errors
    /// The workload failed, or it was interrupted.
    pub fn run(&self, interrupt: &Interrupt) -> io::Result<Passed> {
        let meter = Arc::new(Meter::new(interrupt));
        let first: &dyn Target =
            &**self.clients.first().ok_or_else(|| io::Error::other("a workload for no client"))?;
        let mut run = Run {
            plan: self.plan,
            clients: self.clients.iter().map(|client| Metered::new(client.clone(), meter.clone())).collect(),
            first_client: self.first_client,
            beside: self.beside.unwrap_or(first),
            pass: self.pass,
            local: self.local,
            meter: meter.clone(),
            calls: self.calls,
            phases: Vec::new(),
        };
        let (started, cpu_before) = (Instant::now(), own_cpu());
        (self.workload.run)(&mut run)?;
        let wall_seconds = started.elapsed().as_secs_f64();
        let phases = run.phases;
        // If phases are medians of single operations, or ran at the same time, their sum is meaningless: use
        // the wall clock.
        let sum = phases.iter().map(|phase| phase.seconds).sum();
        let seconds = if self.workload.phases_add_up() { sum } else { wall_seconds };
        Ok(Passed {
            seconds,
            phases,
            operations: meter.operations(),
            latencies: meter.latencies(),
            cpu_seconds: own_cpu().saturating_sub(cpu_before).as_secs_f64(),
        })
    }
}

fn own_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_summed_up_and_the_slowest_counts() {
        let latencies = |count, mean, p99| Latencies { count, mean, p50: mean, p90: mean, p99 };
        let passed = |seconds, latency| Passed {
            seconds,
            phases: vec![Phase { name: "build".to_owned(), seconds, operations: 10, calls: None }],
            operations: 10,
            latencies: BTreeMap::from([("read".to_owned(), latency)]),
            cpu_seconds: 0.5,
        };
        let both = passed(2.0, latencies(1, 4.0, 4.0)).and(&passed(3.0, latencies(3, 8.0, 9.0)));
        assert!((both.seconds - 3.0).abs() < 1e-9 && (both.phases[0].seconds - 3.0).abs() < 1e-9);
        assert_eq!((both.operations, both.phases[0].operations), (20, 20));
        assert_eq!(both.latencies["read"], Latencies { count: 4, mean: 7.0, p50: 8.0, p90: 8.0, p99: 9.0 });
    }
}
