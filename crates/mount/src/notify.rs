//! What the kernel is told without having asked: names, attributes and pages that it must not believe any longer.
//!
//! A notification is a `write` that returns when the kernel has done what it was told, and for that it takes locks which
//! a process may hold that waits for an answer of ours. That is no cycle, because **nobody whom that answer needs ever
//! waits for a notification without a bound**. Which locks those are (Linux, `fs/fuse`), and who waits:
//!
//! | notification | waits in the kernel for | who holds that | who waits for it here |
//! |---|---|---|---|
//! | a name | the directory's inode lock | whoever makes, removes, renames or (for reading) looks up a name there, until we answer | a thread of its own; a recall, and an OPEN, which holds no such lock, for `PATIENCE` |
//! | names that are doubted | the same lock | the same; a process that asks for the directory's attributes before it changes a name | a blocking thread for each directory; a GETATTR of the directory, with a bound (`ops::doubt`) |
//! | pages | the pages, and mapped ones that are written: a WRITE of their own | whoever reads or writes them, until we answer | a blocking thread for each; a lock (`data_gone`) and a direct WRITE (`range_gone`), both with a bound: the kernel holds no page locked for them |
//! | attributes | the inode, if it is being made or dropped | nobody who waits for us: RELEASE holds the inode until its READs are over | whoever tells |
//! | any | `fc->killsb`, for reading | an unmount that is being finished, which waits for those who hold it already: for pages, that is for READs | an unmount, for its patience, after which it breaks the connection |
//!
//! So the threads that read requests, and those that answer them, tell attributes alone, and only of a file that a request
//! of the kernel is about, which keeps its super block and inode. A recall is of a file that nobody need have open: it
//! tells from a blocking thread, and is bounded. No lock of ours is held meanwhile: a guard of `parking_lot` is not `Send`,
//! and every future here is, so that the compiler finds one that is held across an `await`.
//!
//! `tests/mounted/gated.rs` holds calls back at the origin and tries each row.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};
use vfs::Name;

use crate::device::Device;
use crate::wire::reply;

/// Names that wait to be told. Beyond it the oldest are given up: what is opened by them is asked of the origin anyway.
const NAMES_MAX: usize = 1 << 16;
/// Blocking threads that may wait at a time for pages that direct writes have made stale. A READ that holds such a page
/// may itself need a blocking thread.
const RANGES_MAX: usize = 32;
/// Directories of which the kernel is told at a time that their names are doubted.
const TELLERS_MAX: usize = 32;
/// How long it is waited for the kernel to have heard.
const PATIENCE: Duration = Duration::from_millis(300);

/// Tells the kernel.
#[derive(Debug)]
pub struct Notifier {
    device: Device,
    queue: Arc<Queue>,
    ranges: Arc<Semaphore>,
    tellers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Queue {
    names: Mutex<Names>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Names {
    order: VecDeque<(u64, Name)>,
    waiting: HashMap<(u64, Name), Vec<oneshot::Sender<()>>>,
    ended: bool,
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.queue.names.lock().ended = true;
        self.queue.wake.notify_all();
    }
}

impl Notifier {
    /// Starts the thread.
    pub fn start(device: Device) -> std::io::Result<Notifier> {
        let queue = Arc::<Queue>::default();
        let (theirs, to) = (queue.clone(), device.clone());
        std::thread::Builder::new().name("fuse-names".to_owned()).spawn(move || theirs.run(&to))?;
        let (ranges, tellers) = (Semaphore::new(RANGES_MAX), Semaphore::new(TELLERS_MAX));
        Ok(Notifier { device, queue, ranges: Arc::new(ranges), tellers: Arc::new(tellers) })
    }

    /// The attributes of a node are to be asked for again. For who answers a request that is about this node.
    pub fn attributes(&self, node: u64) {
        tell(&self.device, &reply::inval_inode(node, -1, 0));
    }

    /// The same of any node. Waits a moment for the kernel to have heard.
    pub async fn attributes_of_any(&self, node: u64) {
        let device = self.device.clone();
        let told = tokio::task::spawn_blocking(move || tell(&device, &reply::inval_inode(node, -1, 0)));
        let _ = tokio::time::timeout(PATIENCE, told).await;
    }

    /// The same of any node, and nobody waits.
    pub fn attributes_later(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, -1, 0));
        tokio::task::spawn_blocking(move || tell(&device, &message));
    }

    /// The attributes and all data of a node are. Waits for pages that are being read: not for those who answer.
    pub fn data(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, 0, 0));
        tokio::task::spawn_blocking(move || device.notify(&message));
    }

    /// The same, and waits until they have gone.
    pub async fn data_gone(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, 0, 0));
        let _ = tokio::task::spawn_blocking(move || device.notify(&message)).await;
    }

    /// Drops the pages of a range of bytes, and the attributes, and returns when that is done.
    pub async fn range_gone(&self, node: u64, offset: u64, bytes: u64) {
        let Ok(permit) = self.ranges.clone().acquire_owned().await else { return };
        let start = i64::try_from(offset).unwrap_or(i64::MAX);
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        let (device, message) = (self.device.clone(), reply::inval_inode(node, start, length));
        // The caller may stop to wait; the permit goes when the kernel has answered.
        let told = tokio::task::spawn_blocking(move || {
            tell(&device, &message);
            drop(permit);
        });
        let _ = told.await;
    }

    /// Names are to be looked up again. Waits a moment for the kernel to have heard.
    pub async fn names(&self, names: Vec<(u64, Name)>) {
        let push = |name| {
            let (told, heard) = oneshot::channel();
            self.queue.push(name, told);
            heard
        };
        let told: Vec<_> = names.into_iter().map(push).collect();
        let all = async {
            for told in told {
                let _ = told.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, all).await;
    }

    /// Names in a directory are to be looked up again; returns when the kernel has heard. It hears when nobody holds the
    /// directory's lock.
    pub fn names_in(&self, parent: u64, names: Vec<Name>) -> impl Future<Output = ()> + use<> {
        let (device, tellers) = (self.device.clone(), self.tellers.clone());
        async move {
            let Ok(permit) = tellers.acquire_owned().await else { return };
            let told = tokio::task::spawn_blocking(move || {
                names.iter().for_each(|name| tell(&device, &reply::expire_entry(parent, name.as_bytes())));
                drop(permit);
            });
            let _ = told.await;
        }
    }

    /// The same of one, and nobody waits.
    pub fn name_later(&self, parent: u64, name: &Name) {
        self.queue.push((parent, name.clone()), oneshot::channel().0);
    }
}

fn tell(device: &Device, message: &[u8]) {
    if let Err(errno) = device.notify(message) {
        tracing::debug!("the kernel does not listen: {errno}");
    }
}

impl Queue {
    fn push(&self, entry: (u64, Name), told: oneshot::Sender<()>) {
        let mut names = self.names.lock();
        if names.order.len() >= NAMES_MAX
            && let Some(oldest) = names.order.pop_front()
        {
            names.waiting.remove(&oldest);
        }
        let waiting = names.waiting.entry(entry.clone()).or_default();
        let new = waiting.is_empty();
        waiting.push(told);
        if new {
            names.order.push_back(entry);
        }
        self.wake.notify_one();
    }

    fn run(&self, device: &Device) {
        loop {
            let (entry, told) = {
                let mut names = self.names.lock();
                loop {
                    if names.ended {
                        return;
                    }
                    if let Some(entry) = names.order.pop_front() {
                        let told = names.waiting.remove(&entry).unwrap_or_default();
                        break (entry, told);
                    }
                    self.wake.wait(&mut names);
                }
            };
            tell(device, &reply::inval_entry(entry.0, entry.1.as_bytes()));
            for told in told {
                let _ = told.send(());
            }
        }
    }
}
