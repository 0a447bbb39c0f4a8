//! Delayed writes of several clients that share a cache. Each keeps what it wrote unstably until a COMMIT
//! returns the verifier of the WRITE, and writes it again if the verifier is another. Then nothing that was
//! committed is missing, whatever is killed or crashes. A change attribute never stands for two states of a
//! file.
//!
//! Each client writes into its own part of a file, so that it is known what the file must contain.
//!
//! Promise: delayed-writes-of-a-proxy

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cache::{Cache, Fsync, WriteBehind};
use origin::behind::BOTH;
use origin::state::Policy;
use origin::{Bench, Origin, name, open_handle, open_request, root, v4, v4_opener};
use vfs::{
    Attributes, Caller, FileSystem, Handle, LeaseKind, Leases, OpenId, Opens, SetAttributes, Stability,
    StateidBasis, Status, Verifier,
};

const FILES: usize = 2;
const CLIENTS: usize = 3;
/// The part of a file that one client writes. The last part is that of clients of the origin.
const PART: u64 = 5000;
const SECOND: Duration = Duration::from_secs(1);

/// What a client has written unstably, and must have committed.
struct Unstable {
    file: usize,
    offset: u64,
    length: usize,
    verifier: Verifier,
}

#[derive(Default)]
struct Client {
    opens: [Option<OpenId>; FILES],
    unstable: Vec<Unstable>,
    /// How many times it had to write something again.
    again: u64,
}

struct World {
    bench: Bench,
    cache: Option<Arc<Cache>>,
    clients: [Client; CLIENTS],
    files: [Handle; FILES],
    model: [Vec<u8>; FILES],
    modes: [u32; FILES],
    /// What each change attribute stands for.
    seen: [HashMap<u64, (Vec<u8>, u32)>; FILES],
    kills: u64,
    fsync: Fsync,
    /// Clients still have to write again what was lost.
    recovering: bool,
}

fn caller(client: usize) -> Caller {
    v4(0, client as u64)
}

impl World {
    fn new(seed: u64, policy: Option<Policy>, fsync: Fsync) -> World {
        let origin = policy.map_or_else(Origin::new, Origin::with_state);
        origin.seed.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        // Otherwise leases are gone after a kill, and what was on its way then looks like another's change.
        origin.state.lock().resumes = fsync == Fsync::Journal || seed.is_multiple_of(2);
        origin.tree().ticks = true;
        origin.be_volatile();
        let behind = WriteBehind {
            wsize: 1024,
            file_max_bytes: 24 << 10,
            dirty_max_bytes: 48 << 10,
            in_flight_max: 5,
            fsync,
            shared: true,
            ..WriteBehind::default()
        };
        let old = vec![b'o'; (PART * (CLIENTS as u64 + 1)) as usize];
        let files = [0, 1].map(|file| origin.put(&root(), &format!("f{file}"), &old));
        origin.pass(10 * SECOND);
        let bench = Bench { behind: Some(behind), ..Bench::over(origin.clone()) };
        origin.jitter.store(3000, Ordering::Relaxed);
        let mode = origin.tree().get(&files[0]).unwrap().attributes.mode;
        World {
            bench,
            cache: None,
            clients: Default::default(),
            files,
            model: [old.clone(), old],
            modes: [mode; FILES],
            seen: Default::default(),
            kills: 0,
            fsync,
            recovering: false,
        }
    }

    fn cache(&self) -> Arc<Cache> {
        self.cache.clone().unwrap()
    }

    fn random(&self, below: u64) -> u64 {
        self.bench.origin.random() % below
    }

    async fn act(&mut self) {
        let client = self.random(CLIENTS as u64) as usize;
        let file = self.random(FILES as u64) as usize;
        match self.random(19) {
            0..7 => self.write(client, file).await,
            7..10 => self.look(client, file).await,
            10 | 11 => self.commit(client, file).await,
            12 => self.open(client, file).await,
            13 => self.close(client, file).await,
            14 => self.others_write(file).await,
            15 => self.set(client, file).await,
            16 => self.bench.origin.crash(),
            17 if self.fsync == Fsync::Origin => self.lose().await,
            _ => {
                let time = Duration::from_millis(self.random(20_000));
                self.bench.origin.pass(time);
                tokio::time::sleep(time).await;
            }
        }
    }

    /// A reply has shown this state of a file.
    fn is_shown(&mut self, file: usize, attributes: &Attributes) {
        if self.recovering {
            return;
        }
        assert_eq!(attributes.size, self.model[file].len() as u64);
        assert_eq!(attributes.mode & 0o7777, self.modes[file] & 0o7777);
        let now = (self.model[file].clone(), self.modes[file]);
        let then = self.seen[file].entry(attributes.change).or_insert_with(|| now.clone());
        assert!(*then == now, "change attribute {} of f{file} stands for two states", attributes.change);
    }

    async fn write(&mut self, client: usize, file: usize) {
        let offset = self.random(PART);
        let length = self.random(PART - offset) + 1;
        let offset = client as u64 * PART + offset.min(PART - length);
        let data = Bytes::from(vec![self.random(255) as u8 + 1; length as usize]);
        let stable = self.random(8) == 0;
        let stability = if stable { Stability::FileSync } else { Stability::Unstable };
        self.model[file][offset as usize..(offset + length) as usize].copy_from_slice(&data);
        self.send(client, file, offset, data, stability).await;
    }

    async fn send(&mut self, client: usize, file: usize, offset: u64, data: Bytes, stability: Stability) {
        let by = self.clients[client].opens[file].map_or(StateidBasis::Anonymous, StateidBasis::Open);
        let handle = self.files[file];
        let written = loop {
            match self.cache().write(&caller(client), &handle, by, offset, data.clone(), stability).await {
                // The origin refuses it now, or may have refused it before.
                Err(error) if matches!(error.status, Status::NoSpc | Status::Delay) => {}
                written => break written.unwrap(),
            }
        };
        assert_eq!(written.count as usize, data.len());
        let unstable = &mut self.clients[client].unstable;
        if written.stability == Stability::Unstable {
            let (length, verifier) = (data.len(), written.verifier);
            unstable.push(Unstable { file, offset, length, verifier });
        }
        if let Some(after) = written.wcc.after {
            self.is_shown(file, &after);
        }
    }

    /// COMMIT, until it has the verifier of all that the client has written.
    async fn commit(&mut self, client: usize, file: usize) {
        loop {
            let handle = self.files[file];
            let commit = self.cache().commit(&caller(client), &handle, 0, 0).await.unwrap();
            if let Some(after) = commit.wcc.after {
                self.is_shown(file, &after);
            }
            let unstable = std::mem::take(&mut self.clients[client].unstable);
            let (here, elsewhere): (Vec<_>, Vec<_>) = unstable.into_iter().partition(|it| it.file == file);
            self.clients[client].unstable = elsewhere;
            let lost: Vec<_> = here.into_iter().filter(|it| it.verifier != commit.verifier).collect();
            if lost.is_empty() {
                return;
            }
            for Unstable { offset, length, .. } in lost {
                self.clients[client].again += 1;
                // What its page cache has by now.
                let page = &self.model[file][offset as usize..][..length];
                let data = Bytes::copy_from_slice(page);
                self.send(client, file, offset, data, Stability::Unstable).await;
            }
        }
    }

    async fn look(&mut self, client: usize, file: usize) {
        let handle = self.files[file];
        let attributes = self.cache().getattr(&caller(client), &handle).await.unwrap();
        self.is_shown(file, &attributes);
        let (by, count) = (StateidBasis::Anonymous, 1 << 20);
        let read = self.cache().read(&caller(client), &handle, by, 0, count).await.unwrap();
        let bytes = read.data.to_bytes().unwrap();
        let differs = bytes.iter().zip(&self.model[file]).position(|(a, b)| a != b);
        let lengths = (bytes.len(), self.model[file].len());
        assert!(bytes == self.model[file], "f{file}: {lengths:?}, first difference at {differs:?}");
        assert!(read.eof);
    }

    async fn open(&mut self, client: usize, file: usize) {
        if self.clients[client].opens[file].is_some() {
            return;
        }
        let request = open_request(&root(), &format!("f{file}"), client as u64, BOTH);
        let opened = self.cache().open(&v4_opener(0, client as u64), &request).await.unwrap();
        self.is_shown(file, &opened.attributes);
        self.clients[client].opens[file] = Some(opened.id);
    }

    /// A client commits before it closes.
    async fn close(&mut self, client: usize, file: usize) {
        if let Some(open) = self.clients[client].opens[file].take() {
            self.commit(client, file).await;
            self.cache().close(&caller(client), open).await.unwrap();
        }
    }

    async fn set(&mut self, client: usize, file: usize) {
        let (longer, mode) = (self.random(3000), [0o644, 0o600, 0o640][self.random(3) as usize]);
        let size = PART * (CLIENTS as u64 + 1) + longer;
        let set = if self.random(2) == 0 {
            self.model[file].resize(size as usize, 0);
            SetAttributes { size: Some(size), ..SetAttributes::default() }
        } else {
            self.modes[file] = mode;
            SetAttributes { mode: Some(mode), ..SetAttributes::default() }
        };
        let wcc = self.cache().setattr(&caller(client), &self.files[file], &set, None).await.unwrap();
        if let Some(after) = wcc.after {
            self.is_shown(file, &after);
        }
    }

    /// A client of the origin writes. Over an origin without leases, it is seen after an open.
    async fn others_write(&mut self, file: usize) {
        let offset = PART * CLIENTS as u64 + self.random(1000);
        let data = vec![self.random(255) as u8 + 1; 500];
        self.bench.origin.pass(10 * SECOND);
        self.bench.origin.others_write(&self.files[file], offset, &data).await;
        self.bench.origin.pass(10 * SECOND);
        tokio::time::sleep(100 * SECOND).await;
        self.model[file][offset as usize..offset as usize + data.len()].copy_from_slice(&data);
    }

    /// The origin refuses a WRITE, so bytes of some client are lost.
    async fn lose(&mut self) {
        self.bench.origin.durability.refuse_writes.lock().push_back(Status::NoSpc);
        self.commit_all().await;
        self.bench.origin.durability.refuse_writes.lock().clear();
    }

    /// All clients commit all they have, and write again what was lost.
    async fn commit_all(&mut self) {
        self.recovering = true;
        for client in 0..CLIENTS {
            for file in 0..FILES {
                self.commit(client, file).await;
            }
        }
        self.recovering = false;
    }

    /// A process begins. If an earlier one was killed, its clients open their files again, and commit what
    /// they have.
    async fn begin(&mut self) {
        self.cache = Some(self.bench.open_with(self.bench.options()).await);
        self.cache().settle_restored().await.unwrap();
        self.clients.iter_mut().for_each(|client| client.opens = Default::default());
        self.commit_all().await;
        self.cache().end_reclaim().await;
    }

    /// A process runs. False if it is killed: its tasks end with the runtime.
    async fn live(&mut self, steps: &mut u32) -> bool {
        self.begin().await;
        while *steps > 0 {
            *steps -= 1;
            if self.random(20) == 0 {
                self.bench = self.bench.killed();
                self.kills += 1;
                return false;
            }
            self.act().await;
        }
        self.finish().await;
        true
    }

    async fn finish(&mut self) {
        for client in 0..CLIENTS {
            for file in 0..FILES {
                self.commit(client, file).await;
                self.close(client, file).await;
            }
        }
        self.cache().shutdown().await;
        self.bench.origin.crash();
        for file in 0..FILES {
            assert!(
                self.bench.origin.contents(&self.files[file]) == self.model[file],
                "f{file} at the origin"
            );
        }
    }
}

/// Returns how many times clients wrote something again, and how many kills there were.
fn run(seed: u64, policy: Option<Policy>, fsync: Fsync) -> (u64, u64) {
    let mut world = World::new(seed, policy, fsync);
    let mut steps = 60;
    loop {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        if runtime.block_on(world.live(&mut steps)) {
            return (world.clients.iter().map(|client| client.again).sum(), world.kills);
        }
        world.cache = None;
    }
}

/// A client writes under a write lease, and the cache is killed.
fn survives(fsync: Fsync, others: bool) -> (u64, u64) {
    let mut world = World::new(0, Some(Policy::Always(LeaseKind::Write)), fsync);
    world.bench.origin.state.lock().resumes = true;
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime().block_on(async {
        world.begin().await;
        world.open(0, 0).await;
        for offset in [0, 3000, 1000] {
            let data = Bytes::from_static(&[b'x'; 1500]);
            world.model[0][offset..offset + 1500].copy_from_slice(&data);
            world.send(0, 0, offset as u64, data, Stability::Unstable).await;
        }
        if others {
            // Without an open there is no lease, so only the process has these bytes.
            world.send(1, 1, PART, Bytes::from_static(&[b'o'; 10]), Stability::Unstable).await;
        }
        world.bench = world.bench.killed();
    });
    world.cache = None;
    let mut steps = 0;
    assert!(runtime().block_on(world.live(&mut steps)));
    (world.clients[0].again, world.clients[1].again)
}

#[test]
fn no_client_writes_again_what_the_journal_has() {
    for fsync in [Fsync::Origin, Fsync::Journal] {
        assert_eq!(survives(fsync, false), (0, 0), "{fsync:?}");
        // There is one verifier for all files.
        assert_eq!(survives(fsync, true), (3, 1), "{fsync:?}");
    }
}

/// A file is removed before its bytes were sent. A client that still has its handle must not find an empty
/// file.
#[tokio::test]
async fn a_removed_file_is_stale_and_not_empty() {
    let mut world = World::new(0, Some(Policy::Always(LeaseKind::Write)), Fsync::Journal);
    world.begin().await;
    world.open(0, 0).await;
    world.write(0, 0).await;
    world.close(0, 0).await;
    let (cache, file) = (world.cache(), world.files[0]);
    assert!(cache.stats().dirty_bytes > 0, "the journal has answered");
    cache.remove(&caller(1), &root(), &name("f0")).await.unwrap();
    let stale = |status: Option<Status>| assert_eq!(status, Some(Status::Stale));
    stale(cache.getattr(&caller(0), &file).await.err().map(|error| error.status));
    stale(cache.open(&caller(0), &open_handle(&file, 0, BOTH)).await.err().map(|error| error.status));
    let read = cache.read(&caller(0), &file, StateidBasis::Anonymous, 0, 100).await;
    stale(read.err().map(|error| error.status));
    let (by, data) = (StateidBasis::Anonymous, Bytes::from_static(b"x"));
    let written = cache.write(&caller(0), &file, by, 0, data, Stability::Unstable).await;
    stale(written.err().map(|error| error.status));
    cache.shutdown().await;
}

/// Some seeds; `WRITES_SEEDS=FROM..TO` asks for others.
fn each_seed(policy: Option<Policy>, fsync: Fsync) {
    let asked = std::env::var("WRITES_SEEDS").ok();
    let range = asked.as_deref().and_then(|text| text.split_once(".."));
    let seeds = range.map_or(0..20, |(from, to)| from.parse().unwrap()..to.parse().unwrap());
    for seed in seeds {
        let told = std::panic::catch_unwind(|| run(seed, policy, fsync));
        assert!(told.is_ok(), "seed {seed}, {policy:?}, {fsync:?}");
    }
}

#[test]
fn what_is_committed_is_there_without_leases() {
    each_seed(None, Fsync::Origin);
    each_seed(Some(Policy::Never), Fsync::Origin);
}

#[test]
fn what_is_committed_is_there_under_leases() {
    each_seed(Some(Policy::Always(LeaseKind::Write)), Fsync::Origin);
    each_seed(Some(Policy::Random), Fsync::Origin);
}

#[test]
fn what_is_committed_is_there_with_commits_answered_from_the_journal() {
    each_seed(Some(Policy::Always(LeaseKind::Write)), Fsync::Journal);
    each_seed(Some(Policy::Random), Fsync::Journal);
}
