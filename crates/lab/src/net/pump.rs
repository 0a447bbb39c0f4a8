//! One direction of a relayed connection.

use super::{CallReader, Cut, Shared, State};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

/// Bytes moved at once.
const CHUNK_BYTES: usize = 256 << 10;
/// The most chunks in flight in one direction: 16 MiB, enough for 1 Gbit/s at 100 ms.
const CHUNKS_MAX: usize = 64;

/// Direction of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the target: calls.
    Up,
    /// From the target: replies.
    Down,
}

/// Moves bytes from one stream to another, each chunk with the delay.
pub(super) struct Pump<'a> {
    pub(super) shared: &'a Shared,
    pub(super) from: &'a TcpStream,
    pub(super) to: &'a TcpStream,
    pub(super) way: Way,
    /// Number of resets when the connection was made.
    pub(super) resets: u64,
}

type Chunk = (Instant, Vec<u8>);

impl Pump<'_> {
    /// Runs until either stream ends, and then ends the other.
    pub(super) fn run(&self) {
        let (queue, due) = sync_channel(CHUNKS_MAX);
        thread::scope(|scope| {
            scope.spawn(move || {
                self.write(&due);
                drop(due); // otherwise the reader could wait forever for capacity in the queue
            });
            self.read(&queue);
            drop(queue);
        });
    }

    fn read(&self, queue: &SyncSender<Chunk>) {
        let mut buffer = vec![0u8; CHUNK_BYTES];
        let mut from = self.from;
        while self.complete() {
            let count = match from.read(&mut buffer) {
                Ok(count) if count > 0 => count,
                _ => return,
            };
            let due = Instant::now() + self.shared.locked().delay;
            if queue.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    }

    fn write(&self, queue: &Receiver<Chunk>) {
        let mut to = self.to;
        let mut calls = CallReader::new();
        for (due, bytes) in queue {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let complete = self.complete();
            self.shared.bytes[usize::from(self.way == Way::Down)]
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            if self.way == Way::Up {
                self.shared.count(&calls.feed(&bytes));
            }
            if !complete || to.write_all(&bytes).is_err() {
                let _ = self.from.shutdown(Shutdown::Both);
                return;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Waits until the network is no black hole. Returns false if the connection was reset.
    fn complete(&self) -> bool {
        let dead = |state: &State| state.ended || state.resets != self.resets;
        let state = self.shared.wait_while(|state| state.cut == Some(Cut::BlackHole) && !dead(state));
        !dead(&state)
    }
}
