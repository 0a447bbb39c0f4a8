//! The body of the fuzz target `leases`: calls of several NQNFS clients and one v3 client to a server on
//! simulated time. They ask for leases, read, write, and return leases, at once and late.
//!
//! No client is served in conflict with a lease that another may still trust. A lease ends for its holder
//! `SKEW` after its term by the holder's clock, and a write lease `SLACK` after the last write under it. The
//! number of leases stays within its limit, every call ends, and nothing is left once all leases have ended.

use std::sync::Arc;
use std::time::Duration;

use arbiter::Options;
use arbiter::leases::Terms;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nqnfs::{
    Cachetype, EVERYTHING, GetleaseArgs, Handle, LeaseRequest, LeaseResult, Leased, Plain, Promise, ReadArgs,
    Reply, TERM_MAX, WriteArgs, call,
};
use protocol::{Reply as Reply3, nfs3};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use vfs::LeaseKind;
use xdr::Bulk;

use super::Nqnfs;
use super::stage::below::{Below, handle};
use super::stage::{Client, SKEW, SLACK, Stage};
use crate::exports::ExportId;

/// Fewer than are asked for.
const LEASES_MAX: usize = 3;
const CLIENTS: usize = 3;
const FILES: usize = 2;
const STEPS_MAX: usize = 256;
/// Calls in flight.
const RUNNING_MAX: usize = 8;
/// Terms that clients ask for, in seconds.
const TERMS: [u32; 8] = [0, 1, 2, 5, 10, 30, 60, u32::MAX];
/// Time after which no lease is left and every call has ended.
const ALL_IS_OVER: Duration = Duration::from_secs(300);

/// A lease that a client may trust.
#[derive(Debug)]
struct Belief {
    client: usize,
    file: usize,
    kind: LeaseKind,
    /// When the client learned of it.
    from: u64,
    /// The end of its term by the slowest clock.
    until: Instant,
    /// The last write of the client.
    wrote: Option<Instant>,
    /// The revision of the data that the client caches.
    rev: u64,
}

impl Belief {
    fn ends(&self) -> Instant {
        match self.kind {
            LeaseKind::Write => self.wrote.map_or(self.until, |wrote| wrote.max(self.until)) + SLACK,
            _ => self.until,
        }
    }
}

/// The beliefs of the clients.
#[derive(Default)]
struct Model {
    /// Counts the beginnings and ends of calls.
    events: u64,
    beliefs: Vec<Belief>,
    /// The highest revision that a WRITE has reported.
    written: [u64; FILES],
    running: usize,
    /// The last VACATED of each client, and how many have no reply yet.
    vacated: [u64; CLIENTS],
    vacating: [usize; CLIENTS],
}

/// A call in flight.
#[derive(Clone, Copy)]
struct Begun {
    client: usize,
    file: usize,
    event: u64,
    sent: Instant,
    /// No earlier revision may be reported.
    floor: u64,
}

struct World {
    stage: Stage,
    clients: Vec<Arc<Client>>,
    files: [(Handle, nfs3::Handle); FILES],
    model: Arc<Mutex<Model>>,
}

/// Three bytes are one step: the operation, its client, file and lease, and a time.
pub fn leases(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(run(input));
}

async fn run(input: &[u8]) {
    let mut world = World::new(input.first().copied().unwrap_or_default()).await;
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2]).await;
        world.check();
    }
    world.end().await;
}

impl World {
    async fn new(seed: u8) -> World {
        let terms =
            Terms { leases_max: LEASES_MAX, clock_skew: SKEW, write_slack: SLACK, ..Terms::default() };
        let options = Options { terms, quiet: Duration::from_secs(5), ..Options::default() };
        let below = Below::new(true);
        *below.jitter.lock() = Some(seed.into());
        let stage = Stage::over(&below, Nqnfs::default(), options);
        below.add("other");
        let (id, other) = (ExportId(1), handle(2));
        let handles = &stage.front.shared.handles;
        let other =
            (handles.v2(id, &other).expect("it is short"), handles.v3(id, &other).expect("it is short"));
        let mut clients = Vec::new();
        for machine in ["one", "two", "three", "of version 3"] {
            clients.push(Arc::new(stage.client(machine).await));
        }
        let files = [(stage.file, stage.v3), other];
        World { stage, clients, files, model: Arc::default() }
    }

    async fn step(&mut self, what: u8, bits: u8, which: u8) {
        let (client, file) = (usize::from(bits & 3), usize::from(bits >> 2 & 1));
        let (write, term) = (bits & 8 != 0, TERMS[usize::from(bits >> 4 & 7)]);
        let wanted = if write { LeaseRequest::Write(term) } else { LeaseRequest::Read(term) };
        let is_v3 = client == CLIENTS;
        let late = Duration::from_millis(u64::from(which) * 50);
        match what % 8 {
            5 => sleep(Duration::from_millis(u64::from(which) * 250)).await,
            0..4 | 6 if is_v3 => self.of_version_3(file, write),
            0 | 1 => self.getlease(client, file, wanted, true),
            2 => self.read(client, file, if write { LeaseRequest::None } else { wanted }),
            3 => self.write(client, file, if write { wanted } else { LeaseRequest::None }, Duration::ZERO),
            4 if !is_v3 => self.vacated(client, (!write).then_some(file)),
            6 => self.write(client, file, LeaseRequest::None, late),
            7 if !is_v3 => self.getlease(client, file, wanted, false),
            _ => {}
        }
        // The calls go on for a while, or until none can.
        for _ in 0..[0, 3, 100, 100][usize::from(what >> 3 & 3)] {
            yield_now().await;
        }
    }

    /// Starts a call of a client that may send one.
    fn start<F>(&self, client: usize, file: usize, call: impl FnOnce(Arc<Client>, Begun) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let begun = {
            let mut model = self.model.lock();
            // A client that waits for the reply to VACATED asks for nothing.
            if model.running == RUNNING_MAX || model.vacating.get(client).is_some_and(|waits| *waits > 0) {
                return;
            }
            model.running += 1;
            model.begin(client, file)
        };
        let (model, call) = (self.model.clone(), call(self.clients[client].clone(), begun));
        tokio::spawn(async move {
            call.await;
            model.lock().running -= 1;
        });
    }

    fn getlease(&self, client: usize, file: usize, wanted: LeaseRequest, arrives: bool) {
        let (rw, duration) = match wanted {
            LeaseRequest::None => (Cachetype::None, 0),
            LeaseRequest::Read(term) => (Cachetype::Read, term),
            LeaseRequest::Write(term) => (Cachetype::Write, term),
        };
        let args = GetleaseArgs { file: self.files[file].0, rw, duration };
        let model = self.model.clone();
        self.start(client, file, async move |client, begun| {
            // If the reply is lost, the client learns of no lease.
            if let Plain::Ok(ok) = client.call::<call::Getlease>(args).await
                && arrives
            {
                model.lock().has_read(begun, Some(ok.attributes.rev));
                model.lock().granted(begun, kind(wanted), ok.promise);
            }
        });
    }

    fn read(&self, client: usize, file: usize, lease: LeaseRequest) {
        let args = Leased { lease, args: ReadArgs { file: self.files[file].0, offset: 0, count: 100 } };
        let model = self.model.clone();
        self.start(client, file, async move |client, begun| {
            if let Reply::Ok(ok) = client.call::<call::Read>(args).await {
                model.lock().has_read(begun, Some(ok.results.attributes.rev));
                model.lock().told(begun, ok.lease);
            }
        });
    }

    fn write(&self, client: usize, file: usize, lease: LeaseRequest, late: Duration) {
        let data = Bulk::Bytes(Bytes::from_static(b"written"));
        let args = WriteArgs { file: self.files[file].0, offset: 0, append: false, data };
        let model = self.model.clone();
        self.start(client, file, async move |client, begun| {
            sleep(late).await;
            if let Reply::Ok(ok) = client.call::<call::Write>(Leased { lease, args }).await {
                model.lock().has_written(begun, Some(ok.results.rev));
                model.lock().told(begun, ok.lease);
            }
        });
    }

    /// The client gives up a lease, or all leases.
    fn vacated(&self, client: usize, file: Option<usize>) {
        let model = self.model.clone();
        let args = file.map_or(EVERYTHING, |file| self.files[file].0);
        self.start(client, file.unwrap_or(0), async move |rpc, begun| {
            {
                let mut model = model.lock();
                model.vacating[client] += 1;
                model.vacated[client] = begun.event;
                let goes = |of: &Belief| of.client == client && file.is_none_or(|file| file == of.file);
                model.beliefs.retain(|belief| !goes(belief));
            }
            rpc.call::<call::Vacated>(args).await;
            model.lock().vacating[client] -= 1;
        });
    }

    fn of_version_3(&self, file: usize, write: bool) {
        let (object, model) = (self.files[file].1, self.model.clone());
        self.start(CLIENTS, file, async move |client, begun| {
            if write {
                let data = Bulk::Bytes(Bytes::from_static(b"of version 3"));
                let args = nfs3::WriteArgs {
                    file: object,
                    offset: 0,
                    count: 12,
                    stable: nfs3::StableHow::FileSync,
                    data,
                };
                if let Reply3::Ok(_) = client.call::<nfs3::call::Write>(args).await {
                    model.lock().has_written(begun, None);
                }
            } else if let Reply3::Ok(_) =
                client.call::<nfs3::call::Getattr>(nfs3::GetattrArgs { object }).await
            {
                model.lock().has_read(begun, None);
            }
        });
    }

    fn check(&self) {
        let held = self.stage.arbiter.held();
        assert!(held.read_leases + held.write_leases <= LEASES_MAX && held.revoked == 0, "{held:?}");
        self.stage.front.nqnfs.nqnfs.leases.lock().check();
    }

    /// All leases end. After that, nothing is left and every client is served at once.
    async fn end(&self) {
        sleep(ALL_IS_OVER).await;
        assert_eq!(self.model.lock().running, 0, "a call that never ends");
        let held = self.stage.arbiter.held();
        assert_eq!((held.read_leases, held.write_leases, held.opens), (0, 0, 0));
        let before = Instant::now();
        for client in 0..=CLIENTS {
            let written = self.model.lock().events;
            if client == CLIENTS {
                self.of_version_3(0, true);
            } else {
                self.write(client, 0, LeaseRequest::None, Duration::ZERO);
            }
            while self.model.lock().running > 0 {
                yield_now().await;
            }
            assert!(self.model.lock().events >= written + 2, "client {client} is refused");
        }
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
}

impl Model {
    fn begin(&mut self, client: usize, file: usize) -> Begun {
        self.events += 1;
        Begun { client, file, event: self.events, sent: Instant::now(), floor: self.written[file] }
    }

    /// A successful call has ended: counts it, and forgets what no client trusts any more.
    fn ended(&mut self, begun: Begun, rev: Option<u64>) {
        self.events += 1;
        let now = Instant::now();
        self.beliefs.retain(|belief| belief.ends() > now);
        assert!(rev.is_none_or(|rev| rev >= begun.floor), "an old revision");
    }

    fn has_read(&mut self, begun: Begun, rev: Option<u64>) {
        self.ended(begun, rev);
        // A call that began before the lease may have been carried out before it.
        for belief in self.of_others(begun).filter(|belief| belief.from < begun.event) {
            assert!(belief.kind != LeaseKind::Write, "client {} has read under {belief:?}", begun.client);
        }
    }

    fn has_written(&mut self, begun: Begun, rev: Option<u64>) {
        self.ended(begun, rev);
        for belief in self.of_others(begun) {
            let knows = rev.map_or(belief.from > begun.event, |rev| belief.rev >= rev);
            assert!(knows, "client {} has written under {belief:?}", begun.client);
        }
        let rev = rev.unwrap_or(0);
        self.written[begun.file] = self.written[begun.file].max(rev);
        let own = |belief: &&mut Belief| (belief.client, belief.file) == (begun.client, begun.file);
        for belief in self.beliefs.iter_mut().filter(own) {
            (belief.rev, belief.wrote) = (belief.rev.max(rev), Some(Instant::now()));
        }
    }

    fn told(&mut self, begun: Begun, lease: LeaseResult) {
        match lease {
            LeaseResult::None => {}
            LeaseResult::Read(promise) => self.granted(begun, LeaseKind::Read, promise),
            LeaseResult::Write(promise) => self.granted(begun, LeaseKind::Write, promise),
        }
    }

    fn granted(&mut self, begun: Begun, kind: LeaseKind, promise: Promise) {
        // A client that has sent VACATED since its request cannot know which came first.
        if !promise.cachable || self.vacated[begun.client] > begun.event {
            return;
        }
        assert!((1..=TERM_MAX).contains(&promise.duration));
        self.events += 1;
        let until = begun.sent + Duration::from_secs(promise.duration.into()) + SKEW;
        for belief in self.of_others(begun) {
            let both_read = kind == LeaseKind::Read && belief.kind == LeaseKind::Read;
            assert!(both_read, "client {} has a lease beside {belief:?}", begun.client);
        }
        let (client, file, from, rev) = (begun.client, begun.file, self.events, promise.rev);
        self.beliefs.push(Belief { client, file, kind, from, until, wrote: None, rev });
    }

    fn of_others(&self, begun: Begun) -> impl Iterator<Item = &Belief> {
        self.beliefs.iter().filter(move |belief| belief.file == begun.file && belief.client != begun.client)
    }
}

fn kind(wanted: LeaseRequest) -> LeaseKind {
    if matches!(wanted, LeaseRequest::Write(_)) { LeaseKind::Write } else { LeaseKind::Read }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_is_served_in_conflict_with_a_lease_that_may_be_trusted() {
        protocol::fuzzing::over_corpus("leases", super::leases);
    }
}
