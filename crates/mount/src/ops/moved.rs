//! Directories that another client has moved.
//!
//! Linux has one name for a directory. If it learns another one, it moves the old one there. For this it
//! tries the lock of the old parent and the lock of renames between directories. If one of them is held, the
//! call gets ESTALE. Most calls then walk the path once more. mkdir(2), mknod(2), symlink(2) and link(2) do
//! not, and a notification of the old name holds the lock of the old parent.
//!
//! So the kernel drops the old name before the reply to the LOOKUP of the new one. rename(2) holds both locks
//! itself when it sends this LOOKUP. Then the kernel can drop the name only after the call has failed once,
//! and the first LOOKUP of the second walk waits for that.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::timeout;

use super::walks::{Thread, thread_of};
use crate::front::Front;
use crate::wire::request::Header;

/// How long the LOOKUP of a moved directory waits. A rename waits that long in vain.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long the next LOOKUP of the thread waits.
const PATIENCE_AGAIN: Duration = Duration::from_millis(300);
/// Limit of remembered threads. If the table is full, the kernel is told without a wait.
const THREADS_MAX: usize = 4096;

/// Threads whose LOOKUP was answered before the kernel had dropped the old name.
#[derive(Debug, Default)]
pub struct Moves {
    late: Mutex<HashMap<Thread, oneshot::Receiver<()>>>,
}

impl Moves {
    fn take(&self, thread: Thread) -> Option<oneshot::Receiver<()>> {
        let mut late = self.late.lock();
        if late.is_empty() { None } else { late.remove(&thread) }
    }

    fn keep(&self, thread: Thread, dropped: oneshot::Receiver<()>) {
        // Threads outside our name space have no number of their own.
        if thread.0 == 0 {
            return;
        }
        let mut late = self.late.lock();
        if late.len() >= THREADS_MAX {
            late.retain(|_, dropped| dropped.try_recv() == Err(TryRecvError::Empty));
        }
        if late.len() < THREADS_MAX {
            late.insert(thread, dropped);
        }
    }
}

impl Front {
    /// A LOOKUP of a thread arrives. If an earlier one found a moved directory, waits for the kernel.
    pub async fn await_old_name(&self, header: &Header) {
        if let Some(dropped) = self.moves.take(thread_of(header)) {
            let _ = timeout(PATIENCE_AGAIN, dropped).await;
        }
    }

    /// A LOOKUP has found this node. If it is a directory that was moved, the kernel drops its old name,
    /// unless that leads to another object by now. Returns whether the reply had to wait.
    pub async fn leave_old_name(&self, header: &Header, node: u64) -> bool {
        let Some(inode) = self.inodes.get(node) else { return false };
        let moved = inode.state.lock().directory.used().and_then(|part| part.moved_from.take());
        let Some((parent, name)) = moved else { return false };
        if self.inodes.named(parent, &name).is_some() {
            return false;
        }
        let mut dropped = self.notifier.name_dropped(parent, name);
        if timeout(PATIENCE, &mut dropped).await.is_err() {
            self.moves.keep(thread_of(header), dropped);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_once_and_finished_waits_give_way() {
        let moves = Moves::default();
        let thread = |number| (number, 0, 0);
        moves.keep(thread(0), oneshot::channel().1);
        assert!(moves.take(thread(0)).is_none(), "it may be any thread outside");
        let (end, dropped) = oneshot::channel();
        moves.keep(thread(1), dropped);
        assert!(moves.take(thread(2)).is_none() && moves.take(thread(1)).is_some());
        assert!(moves.take(thread(1)).is_none());
        drop(end);
        let ends: Vec<oneshot::Sender<()>> = (1..=1 + THREADS_MAX as u32)
            .map(|number| {
                let (end, dropped) = oneshot::channel();
                moves.keep(thread(number), dropped);
                end
            })
            .collect();
        assert!(moves.take(thread(1 + THREADS_MAX as u32)).is_none(), "the table was full");
        for end in ends {
            // The table did not take the last one.
            let _ = end.send(());
        }
        moves.keep(thread(0x7fff), oneshot::channel().1);
        assert!(moves.take(thread(1)).is_none(), "it has finished");
    }
}
