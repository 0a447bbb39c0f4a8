//! Notifications to the kernel: names, attributes and pages that it must not trust any longer.
//!
//! A notification is a `write` that returns when the kernel has carried it out. For that the kernel takes
//! locks. The holder of such a lock may be a process that waits for a reply of this mount. This causes no
//! deadlock, because **no task that the reply depends on waits for a notification without a bound**. The
//! locks (Linux, `fs/fuse`) and the waiters:
//!
//! | notification | kernel lock that it waits for | holder of that lock | waiter in the mount |
//! |---|---|---|---|
//! | a name | the directory's inode lock | a process that creates, removes, renames or (shared) looks up a name there, until the reply | a thread of its own; a recall, and an OPEN, which holds no such lock, for `PATIENCE`; a LOOKUP of a directory that was moved, with a bound (`ops::moved`); a task that notes that the name of a removed directory is gone (`ops::gone`) |
//! | doubted names | the same lock | the same; a process that asks for the directory's attributes before it changes a name | a blocking thread for each directory; a GETATTR of the directory, with a bound (`ops::doubt`) |
//! | pages | the page locks; for dirty mapped pages also a WRITE of their own | a process that reads or writes them, until the reply | a blocking thread for each; a lock (`data_gone`) and a direct WRITE (`range_gone`), both with a bound: the kernel holds no page locked for them |
//! | all names, attributes and pages (`all`) | those above | those above | a blocking thread; the begin of a recording, with a bound |
//! | attributes | the inode, while it is created or dropped | no process that waits for this mount: RELEASE holds the inode until its READs are over | the thread that sends it |
//! | any | `fc->killsb`, shared | an unmount in progress, which waits for the present holders: for pages, that means READs | an unmount, for its patience; then it aborts the connection |
//!
//! So the threads that read or answer requests send attribute notifications only, and only for the file of
//! a pending request. That request keeps the super block and the inode alive. A recall may concern a file
//! that no process has open: its notifications run on a blocking thread, with a bound. No lock of the mount
//! is held meanwhile. The compiler proves that: a guard of `parking_lot` is not `Send`, every future here
//! is, so no guard is held across an `await`.
//!
//! `tests/mounted/gated.rs` blocks calls at the origin and tries each row.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot};
use vfs::Name;

use crate::device::Device;
use crate::wire::reply;

/// Limit of queued names. Beyond it the oldest are dropped: an open by such a name asks the origin anyway.
const NAMES_MAX: usize = 1 << 16;
/// Limit of blocking threads that wait for pages made stale by direct writes. A READ that holds such a page
/// may need a blocking thread itself.
const RANGES_MAX: usize = 32;
/// Limit of directories whose doubted names are being invalidated at a time.
const TELLERS_MAX: usize = 32;
/// How long a caller waits for the kernel to finish a notification.
const PATIENCE: Duration = Duration::from_millis(300);

/// Sends notifications to the kernel.
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

    /// Invalidates the attributes of a node. Only for a thread that answers a request about this node.
    pub fn attributes(&self, node: u64) {
        tell(&self.device, &reply::inval_inode(node, -1, 0));
    }

    /// The same for any node. Waits at most `PATIENCE` for the kernel.
    pub async fn attributes_of_any(&self, node: u64) {
        let device = self.device.clone();
        let told = tokio::task::spawn_blocking(move || tell(&device, &reply::inval_inode(node, -1, 0)));
        let _ = tokio::time::timeout(PATIENCE, told).await;
    }

    /// The same for any node, without waiting.
    pub fn attributes_later(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, -1, 0));
        tokio::task::spawn_blocking(move || tell(&device, &message));
    }

    /// Invalidates the attributes and all data of a node, without waiting. The kernel waits for pages that
    /// are being read, so a thread that answers requests must not wait for this.
    pub fn data(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, 0, 0));
        tokio::task::spawn_blocking(move || device.notify(&message));
    }

    /// The same, and waits until the pages are gone.
    pub async fn data_gone(&self, node: u64) {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, 0, 0));
        let _ = tokio::task::spawn_blocking(move || device.notify(&message)).await;
    }

    /// Invalidates the pages of a range of bytes, and the attributes, and waits for the end of it.
    pub async fn range_gone(&self, node: u64, offset: u64, bytes: u64) {
        let Ok(permit) = self.ranges.clone().acquire_owned().await else { return };
        let start = i64::try_from(offset).unwrap_or(i64::MAX);
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        let (device, message) = (self.device.clone(), reply::inval_inode(node, start, length));
        // The caller may stop waiting; the permit is released when the kernel has finished.
        let told = tokio::task::spawn_blocking(move || {
            tell(&device, &message);
            drop(permit);
        });
        let _ = told.await;
    }

    /// Invalidates names. Waits at most `PATIENCE` for the kernel.
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

    /// Expires names in a directory and waits for the kernel. The kernel finishes when no process holds the
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

    /// Invalidates the attributes and pages of these nodes, and expires these names. One thread does so. No
    /// reply may depend on the end of it, because the kernel waits for pages that are being read.
    pub fn all(&self, nodes: Vec<u64>, names: Vec<(u64, Name)>) -> impl Future<Output = ()> + use<> {
        let device = self.device.clone();
        let told = tokio::task::spawn_blocking(move || {
            for (parent, name) in &names {
                tell(&device, &reply::expire_entry(*parent, name.as_bytes()));
            }
            nodes.iter().for_each(|node| tell(&device, &reply::inval_inode(*node, 0, 0)));
        });
        async move {
            let _ = told.await;
        }
    }

    /// Invalidates one name, and waits for the kernel without a bound: no reply may depend on that. False
    /// if the kernel was not told.
    pub fn name_gone(&self, parent: u64, name: &Name) -> impl Future<Output = bool> + use<> {
        let (told, heard) = oneshot::channel();
        self.queue.push((parent, name.clone()), told);
        async move { heard.await.is_ok() }
    }

    /// Invalidates one name. The caller waits with a bound, or lets a later request wait.
    pub fn name_dropped(&self, parent: u64, name: Name) -> oneshot::Receiver<()> {
        let (told, heard) = oneshot::channel();
        self.queue.push((parent, name), told);
        heard
    }

    /// Invalidates the attributes of a node, and names. The kernel is told whether or not the future is
    /// polled; it waits for the kernel without a bound, so no reply may depend on it.
    pub fn gone(&self, node: u64, names: Vec<(u64, Name)>) -> impl Future<Output = ()> + use<> {
        let (device, message) = (self.device.clone(), reply::inval_inode(node, -1, 0));
        let attributes = tokio::task::spawn_blocking(move || tell(&device, &message));
        let names: Vec<_> = names.into_iter().map(|(parent, name)| self.name_dropped(parent, name)).collect();
        async move {
            let _ = attributes.await;
            for told in names {
                let _ = told.await;
            }
        }
    }

    /// Invalidates one name, without waiting.
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
