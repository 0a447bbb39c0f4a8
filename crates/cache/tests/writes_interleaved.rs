//! Delayed writes of many files at once. A writer reads back what it wrote, at any moment. After fsync or
//! close, a reader at the origin finds exactly the same bytes, even if the origin crashes between WRITE and
//! COMMIT, or at that moment.
//!
//! Each file has one writer, which does everything in order, so that it knows what the file must contain.
//! The writers share the cache, its limits and the origin. The origin is slow at random, crashes, answers
//! DELAY, omits the state before a change, and recalls leases.
//!
//! Promise: local-visibility
//! Promise: order-at-the-origin
//! Promise: fsync-and-close
//! Promise: gaps-of-new-files
//! Promise: restart-of-the-origin-before-commit

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cache::{Cache, WriteBehind};
use origin::state::{Policy, unchecked};
use origin::{Bench, Origin, open_request, root, v4, v4_opener};
use vfs::{
    Caller, FileSystem, Handle, LeaseKind, OpenId, OpenRequest, Opens, SetAttributes, Share, Stability,
    StateidBasis, Status,
};

const SIZE: u64 = 12_000;

/// The writer of one file.
struct Writer {
    origin: Arc<Origin>,
    cache: Arc<Cache>,
    number: u64,
    leased: bool,
    file: Handle,
    opens: Vec<OpenId>,
    /// The contents that the file must have.
    model: Vec<u8>,
}

impl Writer {
    fn random(&self, below: u64) -> u64 {
        self.origin.random() % below
    }

    fn text(&self) -> String {
        format!("f{}", self.number)
    }

    fn user(&self) -> Caller {
        v4(0, self.number)
    }

    async fn act(&mut self) {
        match self.random(24) {
            0..9 => self.write(Stability::Unstable).await,
            9 => self.write(Stability::FileSync).await,
            10..14 => self.read().await,
            14 => self.stat().await,
            15 | 16 => self.cut().await,
            17 => self.sync().await,
            18 | 19 => self.open().await,
            20 | 21 => self.close().await,
            22 => tokio::time::sleep(Duration::from_millis(self.random(20_000))).await,
            _ => self.disturb(),
        }
    }

    async fn open(&mut self) {
        if self.opens.len() >= 3 {
            return;
        }
        let client = self.number * 100 + self.random(1 << 40);
        let truncate = self.random(4) == 0;
        let create = truncate.then(|| unchecked(Some(0)));
        let request = OpenRequest { create, ..open_request(&root(), &self.text(), client, Share::all()) };
        let opened = self.cache.open(&v4_opener(0, self.number), &request).await.unwrap();
        if truncate {
            self.model.clear();
        }
        assert_eq!(opened.handle, self.file);
        assert_eq!(opened.attributes.size, self.model.len() as u64, "{} at open", self.text());
        self.opens.push(opened.id);
    }

    async fn close(&mut self) {
        let Some(open) = self.opens.pop() else { return };
        self.cache.close(&self.user(), open).await.unwrap();
        self.check_origin(false).await;
    }

    async fn write(&mut self, stability: Stability) {
        let Some(open) = self.opens.last().copied() else { return };
        let append = self.random(2) == 0;
        let offset = if append { self.model.len() as u64 } else { self.random(SIZE) };
        if offset > 2 * SIZE {
            return;
        }
        let data = vec![self.random(255) as u8 + 1; self.random(3000) as usize + 1];
        let by = if self.random(4) == 0 { StateidBasis::Anonymous } else { StateidBasis::Open(open) };
        let bytes = Bytes::from(data.clone());
        let written = loop {
            let bytes = bytes.clone();
            match self.cache.write(&self.user(), &self.file, by, offset, bytes, stability).await {
                // After an error, WRITEs go through to the origin, and so does its DELAY: send it again.
                Err(error) if error.status == Status::Delay => {}
                written => break written.unwrap(),
            }
        };
        assert_eq!(written.count as usize, data.len());
        let end = offset as usize + data.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(&data);
        if stability != Stability::Unstable {
            self.origin.crash();
            assert_eq!(self.origin.contents(&self.file)[offset as usize..end], data);
        }
    }

    async fn read(&mut self) {
        let (offset, count) = (self.random(SIZE), self.random(SIZE) as u32 + 1);
        let read =
            self.cache.read(&self.user(), &self.file, StateidBasis::Anonymous, offset, count).await.unwrap();
        let bytes = read.data.to_bytes().unwrap();
        let size = self.model.len() as u64;
        let (start, end) = (offset.min(size), (offset + u64::from(count)).min(size));
        let expected = &self.model[start as usize..end as usize];
        assert!(bytes == expected, "{} at {offset}+{count} of {size}", self.text());
        let at_end = offset + u64::from(count) >= size;
        assert!(if read.eof { at_end } else { bytes.len() == count as usize }, "{} of {size}", self.text());
    }

    async fn stat(&mut self) {
        let attributes = self.cache.getattr(&v4_opener(0, self.number), &self.file).await.unwrap();
        assert_eq!(attributes.size, self.model.len() as u64, "{}", self.text());
    }

    async fn cut(&mut self) {
        let size = self.random(SIZE);
        let guard = (self.random(4) == 0).then(|| vfs::Timestamp::new(1, 1));
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        match self.cache.setattr(&self.user(), &self.file, &set, guard).await {
            Ok(_) => self.model.resize(size as usize, 0),
            Err(error) => assert_eq!(error.status, Status::NotSync),
        }
    }

    async fn sync(&mut self) {
        self.cache.commit(&self.user(), &self.file, 0, 0).await.unwrap();
        self.check_origin(true).await;
    }

    /// Checks the contents at the origin, now and after a crash.
    async fn check_origin(&self, synced: bool) {
        if self.leased && !synced {
            let look = |tree: &mut origin::Tree| self.is_model(&tree.get(&self.file).unwrap().data);
            return self.origin.others(&self.file, look).await;
        }
        self.is_model(&self.origin.contents(&self.file));
        if self.random(2) == 0 {
            self.origin.crash();
            self.is_model(&self.origin.contents(&self.file));
        }
    }

    fn is_model(&self, data: &[u8]) {
        let differs = data.iter().zip(&self.model).position(|(a, b)| a != b);
        let sizes = (data.len(), self.model.len());
        assert!(data == self.model, "{}: {sizes:?}, first difference at {differs:?}", self.text());
    }

    fn disturb(&self) {
        match self.random(4) {
            0 => self.origin.crash(),
            1 => self.origin.durability.refuse_writes.lock().push_back(Status::Delay),
            2 => self.origin.durability.refuse_commits.lock().push_back(Status::Delay),
            _ => self.origin.without_before.store(self.random(2) == 0, Ordering::Relaxed),
        }
    }

    async fn finish(&mut self) {
        while !self.opens.is_empty() {
            self.close().await;
        }
        self.sync().await;
    }
}

fn run(seed: u64, policy: Option<Policy>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let origin = policy.map_or_else(Origin::new, Origin::with_state);
        origin.seed.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        origin.tree().ticks = true;
        origin.tree().forgetful = true;
        origin.be_volatile();
        let behind = WriteBehind {
            wsize: 1024,
            file_max_bytes: 12 << 10,
            dirty_max_bytes: 24 << 10,
            in_flight_max: 5,
            ..WriteBehind::default()
        };
        let bench = Bench { behind: Some(behind), ..Bench::over(origin.clone()) };
        let leased = policy.is_some_and(|policy| policy != Policy::Never);
        let files: Vec<Handle> = (0..4).map(|n| origin.put(&root(), &format!("f{n}"), b"old")).collect();
        origin.pass(Duration::from_secs(10));
        let cache = bench.open_with(bench.eager()).await;
        origin.jitter.store(3000, Ordering::Relaxed);
        let mut tasks = tokio::task::JoinSet::new();
        for (number, file) in (0..).zip(files) {
            let (origin, cache) = (origin.clone(), cache.clone());
            let opens = Vec::new();
            let mut writer = Writer { origin, cache, number, leased, file, opens, model: b"old".to_vec() };
            tasks.spawn(async move {
                for _ in 0..60 {
                    writer.act().await;
                }
                writer.finish().await;
            });
        }
        while let Some(done) = tasks.join_next().await {
            assert!(done.is_ok(), "seed {seed}, {policy:?}: {done:?}");
        }
        assert_eq!(cache.stats().dirty_bytes, 0);
    });
}

/// Some seeds; `WRITES_SEEDS=FROM..TO` asks for others.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("WRITES_SEEDS").ok();
    let range = asked.as_deref().and_then(|text| text.split_once(".."));
    range.map_or(0..20, |(from, to)| from.parse().unwrap()..to.parse().unwrap())
}

#[test]
fn what_is_synced_is_there_without_state() {
    seeds().for_each(|seed| run(seed, None));
}

#[test]
fn what_is_synced_is_there_without_leases() {
    seeds().for_each(|seed| run(seed, Some(Policy::Never)));
}

#[test]
fn what_is_synced_or_recalled_is_there_under_leases() {
    seeds().for_each(|seed| run(seed, Some(Policy::Always(LeaseKind::Write))));
    seeds().for_each(|seed| run(seed, Some(Policy::Random)));
}
