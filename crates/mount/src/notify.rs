//! What the kernel is told without having asked: names and attributes that it must not believe any longer.
//!
//! Telling it of **attributes** waits for nothing in the kernel and is done at once, by whoever knows. Telling it of a
//! **name** waits for the lock of the directory, which a process may hold that waits for an answer of ours. So names
//! have a thread of their own, which holds no lock of ours, and nobody waits for it for longer than a moment.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use vfs::Name;

use crate::device::Device;
use crate::wire::reply;

/// Names that wait to be told. Beyond it the oldest are given up: what is opened by them is asked of the origin anyway.
const NAMES_MAX: usize = 1 << 16;
/// How long somebody waits for a name to be told.
const PATIENCE: Duration = Duration::from_millis(300);

/// Tells the kernel.
#[derive(Debug)]
pub struct Notifier {
    device: Device,
    queue: Arc<Queue>,
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
        Ok(Notifier { device, queue })
    }

    /// The attributes of a node are to be asked for again.
    pub fn attributes(&self, node: u64) {
        self.tell(&reply::inval_inode(node, -1, 0));
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

    fn tell(&self, message: &[u8]) {
        if let Err(errno) = self.device.notify(message) {
            tracing::debug!("the kernel does not listen: {errno}");
        }
    }

    /// A name is to be looked up again. Waits a moment for the kernel to have heard.
    pub async fn name(&self, parent: u64, name: &Name) {
        let (told, heard) = oneshot::channel();
        self.queue.push((parent, name.clone()), told);
        let _ = tokio::time::timeout(PATIENCE, heard).await;
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
            if let Err(errno) = device.notify(&reply::inval_entry(entry.0, entry.1.as_bytes())) {
                tracing::debug!("the kernel does not listen: {errno}");
            }
            for told in told {
                let _ = told.send(());
            }
        }
    }
}
