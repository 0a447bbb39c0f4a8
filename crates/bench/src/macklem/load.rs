//! Figure 5: several clients of one server run the compile phase at once.
//!
//! In the paper each client had its own processor, and all waited for one server of about 10 MIPS. If clients
//! and server share the processors of one machine, the measurement soon shows nothing but the real compilers
//! (`--compilers here`). So both can be emulated:
//!
//! - **A server of limited capacity** (`--service-us`): a [`Station`] in front of the real server, shared by
//!   all clients.
//! - **A processor for each client** (`--compilers asleep`): real system calls make the compiler's file
//!   operations through the mount, in the compiler's order. The computing is a sleep. It lasts as long as
//!   `cc` took for the same unit, measured just before: one at a time, in a directory of the same disk.
//!   `make`'s checks of dates and the linker's reads and writes are made too. Two things are left out:
//!   lookups of names that do not exist (precompiled headers, the C library's under `include/`), and the
//!   linker's chmod.
//!
//! The client itself is not emulated: its mount computes on this machine at this machine's speed.
//!
//! Each client makes, copies, scans and reads at its own pace; all clients begin to compile together. As in
//! the paper, the time of a client is that of the compile phase. With leases, a client sends delayed writes
//! after that phase. The table therefore also gives the time until each client has ended and all data is at
//! the server.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{BOTH, COMPILE, Client, Compilers, Site, Variant, deviation, mean};
use crate::relay::{Calls, MACKLEM, Served, Station};
use crate::target::{Forgetting, Mounted};
use crate::workload::andrew::{self, Compiler};

/// Results of one protocol.
#[derive(Debug, Default)]
struct Side {
    /// Seconds of the compile phase, for each client of each round.
    compiled: Vec<f64>,
    /// Seconds from the beginning of the phase until all data was at the server, for each round.
    there: Vec<f64>,
    /// Calls from the beginning of the phase on.
    calls: Calls,
    /// The calls among these that were made after the phase.
    late: u64,
    /// Counters of the station, until all data was at the server.
    served: Served,
}

/// Results of one client.
struct Shown {
    seconds: f64,
    there: Instant,
    calls: Calls,
    late: u64,
}

impl Site<'_> {
    /// See the module. The two protocols, and the compiler alone in a directory of this machine, take turns.
    pub(super) fn load(&mut self) -> Result<String, String> {
        let mut text = String::from(
            "| clients | compiler alone, s | NFS, s | spread | leases, s | spread | faster by | all there: NFS, s | leases, s | \
             busy: NFS | leases | NFS, calls a client | leases, calls a client |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let mut kinds = String::new();
        for count in self.arguments.clients.clone() {
            let (mut alone, mut sides) = (Vec::new(), [Side::default(), Side::default()]);
            for round in 0..self.arguments.rounds {
                let names = |side: &str| -> Vec<String> {
                    (0..count).map(|it| format!("load-{count}-{side}-{round}-{it}")).collect()
                };
                let computing = self.computing(&names("local"), &mut alone)?;
                for (side, vers) in sides.iter_mut().zip(BOTH) {
                    let proto = if self.arguments.load_proto == "udp" { "udp" } else { "tcp" };
                    self.at_once(Variant { vers, proto }, &names(vers), computing.as_deref(), side)?;
                }
            }
            let clients = (count * self.arguments.rounds).max(1) as u64;
            self.row(&mut text, count, mean(&alone), &sides, clients);
            for (name, side) in ["NFS", "leases"].into_iter().zip(&sides) {
                let of =
                    |(name, calls): (&String, &u64)| format!("{:.1} {name}", *calls as f64 / clients as f64);
                let all: Vec<String> = side.calls.work().map(of).collect();
                let late = side.late as f64 / clients as f64;
                let wait = side.served.waiting.as_secs_f64() * 1e3 / (side.served.calls.max(1) as f64);
                let _ = writeln!(
                    kinds,
                    "- {count} clients, {name}: {}; {late:.1} of them after the phase; a call waited \
                     {wait:.1} ms for the server",
                    all.join(", ")
                );
            }
        }
        Ok(format!("{text}\n{kinds}"))
    }

    fn row(&self, text: &mut String, count: usize, alone: f64, sides: &[Side; 2], clients: u64) {
        let [nfs, leases] = sides;
        let [nfs_s, leases_s] = [nfs, leases].map(|side| mean(&side.compiled));
        let [nfs_spread, leases_spread] = [nfs, leases].map(|side| deviation(&side.compiled));
        let [nfs_there, leases_there] = [nfs, leases].map(|side| mean(&side.there));
        let [nfs_busy, leases_busy] = [nfs, leases].map(|side| {
            let busy = self.service().as_secs_f64() * side.served.calls as f64;
            format!("{:.0} %", 100.0 * busy / side.there.iter().sum::<f64>().max(1e-9))
        });
        let [nfs_calls, lease_calls] = [nfs, leases].map(|side| side.calls.total_of_work() / clients);
        let faster = nfs_s / leases_s.max(1e-9);
        let _ = writeln!(
            text,
            "| {count} | {alone:.2} | {nfs_s:.2} | {nfs_spread:.2} | {leases_s:.2} | {leases_spread:.2} | {faster:.2} | \
             {nfs_there:.2} | {leases_there:.2} | {nfs_busy} | {leases_busy} | {nfs_calls} | {lease_calls} |"
        );
    }

    fn service(&self) -> Duration {
        let default = if self.arguments.compilers == Compilers::Asleep { MACKLEM } else { Duration::ZERO };
        self.arguments.service_us.map_or(default, Duration::from_micros)
    }

    /// Runs the compiler without our file system, as many times at once as there will be clients, and adds
    /// the times to `alone`. With `--compilers asleep`, runs it only once, and returns how long the emulated
    /// compiler must sleep at each step.
    fn computing(&self, names: &[String], alone: &mut Vec<f64>) -> Result<Option<Vec<Duration>>, String> {
        if self.arguments.compilers == Compilers::Here {
            self.prepare(names)?;
            let steps = in_threads(names, |name| self.locally(name))?;
            alone.extend(steps.iter().map(|steps| steps.iter().sum::<Duration>().as_secs_f64()));
            return Ok(None);
        }
        // Each emulated client has its own processor: measure one compiler at a time.
        let name = names.first().map_or("local", String::as_str);
        self.prepare(&[name.to_owned()])?;
        let mut steps = self.locally(name)?;
        if let Some(unit) = self.arguments.unit_ms {
            steps.fill(Duration::from_millis(unit));
        }
        alone.push(steps.iter().sum::<Duration>().as_secs_f64());
        Ok(Some(steps))
    }

    fn locally(&self, name: &str) -> Result<Vec<Duration>, String> {
        let target = Mounted::new(self.directory.join("export").join(name), Forgetting::Everything);
        let failed = |error: std::io::Error| format!("{name}: {error}");
        for number in 0..COMPILE {
            andrew::phase(&target, &self.plan, number, "copy").map_err(failed)?;
        }
        andrew::compile(&target, &self.plan, "copy", Compiler::Here).map_err(failed)
    }

    /// Compiles as several clients at once, and adds the results to `side`.
    fn at_once(
        &mut self,
        variant: Variant,
        names: &[String],
        computing: Option<&[Duration]>,
        side: &mut Side,
    ) -> Result<(), String> {
        self.prepare(names)?;
        let rtt = Duration::from_millis(self.arguments.load_rtt_ms);
        let station = Arc::new(Station::new(self.service()));
        let before = (!station.service().is_zero()).then(|| station.clone());
        let clients = names.iter().map(|_| self.client(variant, before.clone(), rtt));
        let clients = clients.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let clients: Vec<(Client, &String)> = clients.into_iter().zip(names).collect();
        let target =
            |client: &Client, name: &str| Mounted::new(client.mounted.join(name), Forgetting::Everything);
        in_threads(&clients, |(client, name)| {
            let target = target(client, name);
            (0..COMPILE)
                .try_for_each(|number| andrew::phase(&target, &self.plan, number, "copy"))
                .map_err(|error| format!("{name}: {error}"))
        })?;
        let compiler = computing.map_or(Compiler::Here, Compiler::Asleep);
        let (served, started) = (station.served(), Instant::now());
        let shown = in_threads(clients, |(client, name)| {
            let before = client.relay.calls();
            andrew::compile(&target(&client, name), &self.plan, "copy", compiler)
                .map_err(|error| format!("{name}: {error}"))?;
            let seconds = started.elapsed().as_secs_f64();
            let in_phase = client.relay.calls().since(&before).total_of_work();
            let calls = client.end().since(&before);
            let late = calls.total_of_work().saturating_sub(in_phase);
            Ok(Shown { seconds, there: Instant::now(), calls, late })
        })?;
        let there = shown.iter().map(|shown| shown.there).max().unwrap_or(started);
        side.there.push((there - started).as_secs_f64());
        let served = station.served().since(&served);
        side.served.calls += served.calls;
        side.served.waiting += served.waiting;
        for shown in shown {
            side.compiled.push(shown.seconds);
            side.calls.add(&shown.calls);
            side.late += shown.late;
        }
        Ok(())
    }
}

/// Runs `work` in one thread per part. Returns the results in the order of the parts, or the first error.
fn in_threads<I: Send, T: Send>(
    parts: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || work(part))).collect();
        let panicked = |_| Err("a client panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}
