//! Clients with random concurrent operations, in many orders. Nothing changes under a lease of another
//! client, and the change attribute of a lease is that of the file.
//!
//! Promise: exclusion-under-a-lease
//! Promise: directory-leases

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod below;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arbiter::{Arbiter, Options};
use below::{
    Believed, Below, ROOT, RW, anonymous, by_name, handle, name, random, request, settle, truncating,
};
use bytes::Bytes;
use parking_lot::Mutex;
use vfs::{
    AccessMask, Callback, Callbacks, Caller, DelayedAttributes, FileSystem, Lease, LeaseId, Leases, OpenId,
    Opens, SetAttributes, Share, Stability, StateidBasis, Status,
};

const FILES: u64 = 3;
const STEPS: u64 = 150;

/// The state of the front: recalls of leases that no reply has granted yet.
#[derive(Default)]
struct Front {
    recalled_early: HashSet<LeaseId>,
}

struct Client {
    me: Caller,
    below: Arc<Below>,
    arbiter: Arc<Arbiter>,
    front: Arc<Mutex<Front>>,
    opens: Vec<OpenId>,
    seed: u64,
}

fn file(number: u64) -> String {
    format!("file{number}")
}

impl Client {
    /// An OPEN, with the lease that it brings.
    async fn open(&mut self, number: u64, access: Share, truncate: bool, named: bool) -> Result<(), Status> {
        let request = match (named, truncate) {
            (true, false) => by_name(&self.me, &file(number), access),
            (true, true) => truncating(by_name(&self.me, &file(number), access)),
            (false, _) => request(&self.me, &handle(number as u8 + 1), access),
        };
        let opened = self.arbiter.open(&self.me, &request).await.map_err(|error| error.status)?;
        if !self.opens.contains(&opened.id) {
            self.opens.push(opened.id);
        }
        self.believe(opened.lease, opened.handle.as_bytes()[0], opened.attributes.change).await;
        Ok(())
    }

    /// Asks for a lease on the directory.
    async fn delegate(&self) -> Result<(), Status> {
        let delegated = self.arbiter.delegate(&self.me, &handle(ROOT), AccessMask::LOOKUP).await;
        let delegated = delegated.map_err(|error| error.status)?;
        self.believe(delegated.lease, ROOT, delegated.accessed.attributes.unwrap().change).await;
        Ok(())
    }

    async fn believe(&self, lease: Option<Lease>, file: u8, seen: u64) {
        let Some(lease) = lease else { return };
        if self.front.lock().recalled_early.remove(&lease.id) {
            self.arbiter.returned(&self.me, lease.id).await.unwrap();
            return;
        }
        let files = self.below.files.lock();
        let change = if file == ROOT { 1 + files.root_changes } else { files.by_id[&file].change };
        assert_eq!((lease.change, seen), (change, lease.change));
        let holder = self.me.holder.unwrap();
        self.below.believed.lock().push(Believed { holder, lease: lease.id, file, change });
    }

    async fn change(&self, what: u64, number: u64) -> Result<(), Status> {
        let (root, me) = (handle(ROOT), &self.me);
        let (of, named) = (handle(number as u8 + 1), name(&file(number)));
        let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let result = match what {
            0 => self.arbiter.setattr(me, &of, &size, None).await.map(|_| ()),
            1 => self.arbiter.link(me, &of, &root, &name("link")).await.map(|_| ()),
            2 => self.arbiter.create(me, &root, &named, vfs::CreateHow::Unchecked, &size).await.map(|_| ()),
            3 => self.arbiter.remove(me, &root, &name("link")).await.map(|_| ()),
            4 => self.arbiter.rename(me, &root, &name("link"), &root, &name("other")).await.map(|_| ()),
            5 => self.arbiter.setattr(me, &root, &SetAttributes::default(), None).await.map(|_| ()),
            _ => {
                let (by, data) = (StateidBasis::Anonymous, Bytes::from_static(b"x"));
                self.arbiter.write(me, &of, by, 0, data, Stability::FileSync).await.map(|_| ())
            }
        };
        result.map_err(|error| error.status)
    }

    async fn run(mut self) {
        for _ in 0..STEPS {
            let (what, number) = (random(&mut self.seed) % 19, random(&mut self.seed) % FILES);
            let named = random(&mut self.seed).is_multiple_of(2);
            let result = match what {
                0..4 if self.me.holder.is_some() => self.open(number, Share::READ, false, named).await,
                4..6 if self.me.holder.is_some() => self.open(number, RW, false, named).await,
                6 if self.me.holder.is_some() => self.open(number, RW, true, true).await,
                7..9 => match self.opens.pop() {
                    Some(open) => self.arbiter.close(&self.me, open).await.map_err(|error| error.status),
                    None => Ok(()),
                },
                9..11 => {
                    let getattr = self.arbiter.getattr(&self.me, &handle(number as u8 + 1)).await;
                    getattr.map(|_| ()).map_err(|error| error.status)
                }
                11..13 if self.me.holder.is_some() => self.delegate().await,
                what => self.change(what % 8, number).await,
            };
            // The operation `link` creates and removes its name; over a slow layer the patience may end.
            assert!(matches!(result, Ok(()) | Err(Status::NoEnt | Status::Delay)), "{result:?}");
        }
        for open in self.opens.drain(..) {
            self.arbiter.close(&self.me, open).await.unwrap();
        }
    }
}

/// The front of all clients: returns recalled leases, sooner or later, and answers questions for writers.
async fn attend(
    arbiter: Arc<Arbiter>,
    below: Arc<Below>,
    front: Arc<Mutex<Front>>,
    mut callbacks: Callbacks,
) {
    let mut seed = 7;
    while let Some(callback) = callbacks.recv().await {
        for _ in 0..random(&mut seed) % 4 {
            tokio::task::yield_now().await;
        }
        let known = |id| below.believed.lock().iter().any(|believed| believed.lease == id);
        match callback {
            Callback::Recall(recall) if known(recall.id) => {
                below.believed.lock().retain(|believed| believed.lease != recall.id);
                arbiter.returned(&Caller::machine(), recall.id).await.unwrap();
            }
            Callback::Recall(recall) => drop(front.lock().recalled_early.insert(recall.id)),
            Callback::Getattr(query) => {
                let file = below.files.lock().by_id[&query.handle.as_bytes()[0]].clone();
                let modified = file.change != query.change;
                let _ = query.answer.send(DelayedAttributes { modified, size: file.size, times: None });
            }
            Callback::Revoked { id, .. } => panic!("{id:?} was revoked"),
            Callback::RecallAny { .. } | Callback::NotifyLock { .. } => {}
        }
    }
}

async fn run(seed: u64, leases_max: usize) -> (u64, u64) {
    let below = Below::new(true);
    for number in 0..FILES {
        below.add(&file(number));
    }
    *below.jitter.lock() = Some(seed);
    let (quiet, idle_min) = (Duration::ZERO, Duration::ZERO);
    let options = Options { leases_max, quiet, idle_min, ..Options::default() };
    let arbiter = Arc::new(Arbiter::with_options(below.clone(), options));
    let front = Arc::new(Mutex::new(Front::default()));
    let callbacks = arbiter.callbacks().unwrap();
    let front_task = tokio::spawn(attend(arbiter.clone(), below.clone(), front.clone(), callbacks));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..5 {
        let me = if number < 3 { below::client(number) } else { anonymous() };
        let client = Client {
            me,
            below: below.clone(),
            arbiter: arbiter.clone(),
            front: front.clone(),
            opens: Vec::new(),
            seed: seed * 31 + number,
        };
        clients.spawn(client.run());
    }
    // The layer below recalls leases at arbitrary times.
    for round in 0..10 {
        settle().await;
        let recalled = below.files.lock().leases.iter().next().map(|(file, id)| (*file, *id));
        if let (Some((file, id)), true) = (recalled, round % 2 == 0) {
            below.recall(id, handle(file), Duration::from_secs(30)).await;
        }
    }
    clients.join_all().await;
    settle().await;
    let believed = std::mem::take(&mut *below.believed.lock());
    for believed in believed {
        arbiter.returned(&Caller::machine(), believed.lease).await.unwrap();
    }
    *below.jitter.lock() = None;
    settle().await;
    let held = arbiter.held();
    assert_eq!((held.opens, held.read_leases, held.write_leases, held.directory_leases), (0, 0, 0, 0));
    assert!(
        below.files.lock().opens.is_empty() && below.files.lock().leases.is_empty(),
        "nothing is left below"
    );
    assert!(!front_task.is_finished());
    front_task.abort();
    (held.granted, held.recalls)
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_under_the_lease_of_another() {
    let (mut granted, mut recalls) = (0, 0);
    for seed in 1..300 {
        let (more_granted, more_recalls) = run(seed, if seed % 3 == 0 { 2 } else { 100 }).await;
        (granted, recalls) = (granted + more_granted, recalls + more_recalls);
    }
    assert!(granted > 2000 && recalls > 1000, "{granted} granted, {recalls} recalled");
}
