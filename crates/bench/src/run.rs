//! A comparison: workloads on systems, in turns, again and again.
//!
//! Of each workload every round measures every system, another one first each time, so that whatever else the machine
//! does meets all of them. Each measurement has files of its own on the origin, put there before all of them, so that no
//! system finds another's. Systems that keep something run twice: cold, and warm over what that left.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Url;

use crate::report::{LeftOut, Machine, Measurement, Report};
use crate::system::{self, Error, Ground, Kind, Origin, System};
use crate::target::Target;
use crate::workload::{Meter, Metered, Plan, Run, Workload};

/// What is younger than this is not sure to be told from its next change, and a cache asks again: the network file systems
/// that people use are not made of files of a second ago.
const AGE: Duration = Duration::from_millis(3200);

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// In this order.
    pub workloads: Vec<Workload>,
    /// Those that do not run here are left out, and the report says why.
    pub systems: Vec<Kind>,
    /// Round trips to the origin; everything is done for each of them.
    pub rtts: Vec<Duration>,
    /// Seed and scale.
    pub plan: Plan,
    /// How often each.
    pub rounds: usize,
    /// Put the files of all measurements there at first, and wait for them to age once: for small ones.
    pub together: bool,
    /// The user's server, instead of one of ours.
    pub against: Option<Url>,
    /// As typed, to make the report again.
    pub command: String,
}

/// Something that a user waits for.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// Measurements done.
    pub done: usize,
    /// Of how many.
    pub of: usize,
    /// What goes on now.
    pub doing: &'p str,
}

/// Compares.
///
/// # Errors
/// The origin does not run. What fails in one measurement is in the report, and the others go on.
pub fn run(
    ground: &Ground,
    options: &Options,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, Error> {
    let mut report = Report::new(Machine::this(), options, &ground.vers);
    let mut systems = Vec::new();
    for &kind in &options.systems {
        match system::missing(ground, kind, options.against.is_some()) {
            Some(why) => report.left_out.push(LeftOut { what: kind.name().to_owned(), why }),
            None => systems.push(kind),
        }
    }
    let origin = match &options.against {
        Some(url) => Origin::against(ground, url)?,
        None => Origin::serve(ground)?,
    };
    let of = options.workloads.len() * systems.len() * options.rounds * options.rtts.len();
    let mut done = 0;
    let grounds = options.rtts.iter().map(|&rtt| {
        let mut ground = ground.clone();
        ground.network.rtt = rtt;
        ground
    });
    let grounds: Vec<Ground> = grounds.collect();
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for workload in &options.workloads {
        for round in 0..options.rounds {
            turns.extend(grounds.iter().map(|ground| Turn {
                ground,
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
            std::thread::sleep(AGE);
        }
        for (turn, prepared) in together.iter().zip(prepared) {
            for kind in turn.order(&systems) {
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
            turn.clean(&systems)?;
        }
    }
    progress(Progress { done, of, doing: "done" });
    Ok(report)
}

/// One round of one workload at one distance.
struct Turn<'t> {
    ground: &'t Ground,
    origin: &'t Origin,
    options: &'t Options,
    workload: &'t Workload,
    round: usize,
}

impl std::fmt::Display for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rtt_ms = self.ground.network.rtt.as_secs_f64() * 1e3;
        write!(f, "{}, {rtt_ms} ms, round {}", self.workload.name, self.round + 1)
    }
}

impl Turn<'_> {
    /// The directory of a measurement: on the origin, and for the system's own.
    fn name(&self, kind: Kind) -> String {
        let rtt = self.ground.network.rtt.as_micros();
        format!("leasehold-bench-{}-{}-{rtt}-{kind}", self.workload.name, self.round)
    }

    /// Who is first changes with the rounds.
    fn order(&self, systems: &[Kind]) -> Vec<Kind> {
        let mut order = systems.to_vec();
        order.rotate_left(self.round % systems.len().max(1));
        order
    }

    fn prepare(&self, systems: &[Kind]) -> Result<(), Error> {
        for &kind in systems {
            let name = self.name(kind);
            let target = system::preparer(self.ground, self.origin, kind, &name, &name)?;
            let failed = Error::io(format!("cannot prepare {}", self.workload.name));
            (self.workload.prepare)(&self.options.plan, &*target).map_err(failed)?;
        }
        Ok(())
    }

    fn clean(&self, systems: &[Kind]) -> Result<(), Error> {
        for &kind in systems {
            let name = self.name(kind);
            system::clean(self.ground, self.origin, &name)?;
            let own = self.ground.directory.join(&name);
            if own.exists() {
                std::fs::remove_dir_all(&own)
                    .map_err(Error::io(format!("cannot remove {}", own.display())))?;
            }
        }
        Ok(())
    }

    /// All passes of a system; an error is one line.
    fn measure(&self, kind: Kind, into: &mut Vec<Measurement>) -> Result<(), String> {
        let one_line = |error: Error| error.to_string();
        let name = self.name(kind);
        let mut system = System::start(self.ground, self.origin, kind, &name).map_err(one_line)?;
        let passes: &[(u64, &str)] = if kind.caches() { &[(0, " cold"), (1, " warm")] } else { &[(0, "")] };
        for &(pass, state) in passes {
            if pass > 0 && self.workload.restart {
                system.restart().map_err(one_line)?;
            }
            let mut measured = self.pass(&system, pass, &name)?;
            measured.system = format!("{kind}{state}");
            into.push(measured);
        }
        Ok(())
    }

    fn pass(&self, system: &System<'_>, pass: u64, name: &str) -> Result<Measurement, String> {
        let one_line = |error: Error| error.to_string();
        let workload = self.workload;
        let meter = Arc::new(Meter::default());
        let local: PathBuf = self.ground.subdirectory(&format!("{name}/clients-{pass}")).map_err(one_line)?;
        let client = |_| system.client(name, workload.delegations);
        let targets = (0..workload.clients).map(client).collect::<Result<Vec<_>, _>>().map_err(one_line)?;
        let beside = if workload.conflicts { Some(system.beside(name).map_err(one_line)?) } else { None };
        let first: &dyn Target = &**targets.first().ok_or("a workload for no client")?;
        let mut run = Run {
            plan: self.options.plan,
            clients: targets.iter().map(|target| Metered::new(target.clone(), meter.clone())).collect(),
            beside: beside.as_ref().map_or(first, |(_, client)| &**client),
            pass,
            local: &local,
            meter: meter.clone(),
            phases: Vec::new(),
        };
        let (before, cpu_before) = (system.observe(), own_cpu());
        let started = Instant::now();
        (workload.run)(&mut run).map_err(|error| error.to_string())?;
        let wall_seconds = started.elapsed().as_secs_f64();
        let client_cpu_seconds = own_cpu().saturating_sub(cpu_before).as_secs_f64();
        system.settle();
        let seen = system.observe().since(&before);
        let phases = run.phases;
        // Medians of single operations do not add up to anything.
        let seconds =
            if workload.conflicts { wall_seconds } else { phases.iter().map(|phase| phase.seconds).sum() };
        Ok(Measurement {
            workload: workload.name.to_owned(),
            system: String::new(),
            round: self.round,
            rtt_ms: self.ground.network.rtt.as_secs_f64() * 1e3,
            clients: workload.clients,
            seconds,
            phases,
            operations: meter.operations(),
            latencies: meter.latencies(),
            calls: seen.calls,
            bytes_up: seen.traffic.up,
            bytes_down: seen.traffic.down,
            usage: seen.usage,
            client_cpu_seconds,
            hits: seen.hits,
        })
    }
}

fn own_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
