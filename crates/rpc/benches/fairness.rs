//! Measures the latency of a quiet client beside a noisy one, with and without the turns of `rpc::fair`:
//!
//!     cargo bench -p rpc --bench fairness
#![allow(clippy::unwrap_used, reason = "a measurement ends at the first surprise")]

#[path = "../tests/fairness/wire.rs"]
mod wire;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rpc::fair::Sharing;
use rpc::service::{Answering, Outcome, Remember};
use rpc::{Call, ReplyCache, Server, ServerOptions, Service};
use tokio::sync::oneshot;
use wire::{NOISY, QUIET, Wire};

/// Answers at once, after some computing.
const HIT: u32 = 10;
/// A job for the threads of the back end.
const JOB: u32 = 11;
const HIT_TIME: Duration = Duration::from_micros(5);
const JOB_TIME: Duration = Duration::from_micros(30);
const MEASURED: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(3);

/// A back end with two threads and one queue for all.
struct Threads(Mutex<Sender<oneshot::Sender<()>>>);

fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {}
}

impl Threads {
    fn start() -> Arc<Threads> {
        let (jobs, queue) = channel::<oneshot::Sender<()>>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..2 {
            let queue: Arc<Mutex<Receiver<_>>> = queue.clone();
            std::thread::spawn(move || {
                loop {
                    let Ok(job) = queue.lock().recv() else { return };
                    compute(JOB_TIME);
                    let _ = job.send(());
                }
            });
        }
        Arc::new(Threads(Mutex::new(jobs)))
    }
}

impl Service for Threads {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move {
            if call.header.procedure == HIT {
                compute(HIT_TIME);
            } else {
                let (done, job) = oneshot::channel();
                self.0.lock().send(done).unwrap();
                let _ = job.await;
            }
            Outcome::Reply(call.reply().finish())
        })
    }

    fn remember(&self, _: &Call) -> Remember {
        Remember::No
    }
}

/// Keeps 32 calls in flight on each of eight connections.
fn make_noise(server: &Server, procedure: u32, stop: &Arc<AtomicBool>) -> Vec<std::thread::JoinHandle<()>> {
    let noisy = (0..8).map(|_| {
        let (mut wire, stop) = (Wire::connect(NOISY, server), stop.clone());
        std::thread::spawn(move || {
            wire.send(procedure, 32);
            while !stop.load(Ordering::Relaxed) {
                wire.hear_one();
                wire.send(procedure, 1);
            }
        })
    });
    noisy.collect()
}

/// The p50 and p99 of a quiet client.
fn measure(sharing: Sharing, procedure: u32, noisy: bool) -> [Duration; 2] {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let options = ServerOptions { sharing, ..ServerOptions::new((Ipv4Addr::LOCALHOST, 0).into()) };
    let server = runtime.block_on(Server::start(options, Threads::start(), ReplyCache::volatile())).unwrap();
    let stop = Arc::<AtomicBool>::default();
    let noise = if noisy { make_noise(&server, procedure, &stop) } else { Vec::new() };
    let mut quiet = Wire::connect(QUIET, &server);
    let (begun, mut latencies) = (Instant::now(), Vec::new());
    while begun.elapsed() < MEASURED {
        let sent = Instant::now();
        quiet.send(procedure, 1);
        quiet.hear_one();
        latencies.push(sent.elapsed());
        std::thread::sleep(PAUSE);
    }
    stop.store(true, Ordering::Relaxed);
    noise.into_iter().for_each(|thread| thread.join().unwrap());
    latencies.sort();
    [50, 99].map(|percent| latencies[latencies.len() * percent / 100])
}

fn main() {
    // No two clients are ever active at once.
    let off = Sharing { active: Duration::ZERO, ..Sharing::default() };
    for (name, procedure) in [("calls answered at once", HIT), ("calls on threads", JOB)] {
        let alone = measure(Sharing::default(), procedure, false);
        let (without, with) = (measure(off, procedure, true), measure(Sharing::default(), procedure, true));
        eprintln!("{name}: p50 and p99 {alone:?} alone, {without:?} without turns, {with:?} with turns");
    }
}
