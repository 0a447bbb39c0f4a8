//! The send queue of a connection.
//!
//! The outbox queues complete messages of any number of segments, and sends them in order. One `writev`
//! gathers small messages. A range of a file leaves by `sendfile`, after headers that were sent with
//! `MSG_MORE`; under TLS it is read and encrypted ([`crate::wire`]). Sending never waits: it goes as far as the
//! socket takes it, or until other peers should run ([`crate::fair`]). It holds a lock only across
//! non-blocking system calls. When the socket is writable again, the owner of the connection continues.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use xdr::{Message, Segment};

use crate::account::{Lease, Share};
use crate::record;
use crate::wire::Wire;

/// Most segments in one `writev`; well under IOV_MAX.
const GATHER_MAX: usize = 64;

/// One queued message: its record mark, then its segments.
#[derive(Debug)]
struct Queued {
    mark: [u8; 4],
    message: Message,
    /// Held until the complete message is sent.
    lease: Option<Lease>,
}

impl Queued {
    /// Bytes that are charged to no lease.
    fn unleased_bytes(&self) -> usize {
        if self.lease.is_some() { 0 } else { memory_bytes(&self.message) }
    }

    /// Returns segment `index`; the mark is segment zero. `Err` is a range of a file.
    fn segment(&self, index: usize) -> Option<Result<&[u8], &xdr::FileRange>> {
        match index {
            0 => Some(Ok(&self.mark)),
            1 => Some(Ok(&self.message.first)),
            _ => self.message.more.get(index - 2).map(|segment| match segment {
                Segment::Bytes(bytes) => Ok(&bytes[..]),
                Segment::File(range) => Err(range),
            }),
        }
    }
}

/// Progress of sending: this many bytes of this segment of the first message are sent.
#[derive(Debug, Default)]
struct Progress {
    current: VecDeque<Queued>,
    segment: usize,
    sent: usize,
    /// Charge for the messages without a lease of their own, while the socket takes no more.
    backlog: Option<Lease>,
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// The kernel has everything, or another task is sending and takes over what is left.
    All,
    /// The socket takes no more now.
    Blocked,
    /// So much was sent that others must run before the rest.
    Paused,
}

/// Memory of a queued message besides its bytes.
const QUEUED_BYTES: usize = 128;

/// Memory of a queued message. Ranges of files are not in memory.
pub(crate) fn memory_bytes(message: &Message) -> usize {
    let in_memory = |segment: &Segment| match segment {
        Segment::Bytes(bytes) => bytes.len(),
        Segment::File(_) => 0,
    };
    QUEUED_BYTES + message.first.len() + message.more.iter().map(in_memory).sum::<usize>()
}

/// The queue of a connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Vec<Queued>>,
    progress: Mutex<Progress>,
    bytes: AtomicUsize,
    /// Memory of the messages without a lease.
    unleased: AtomicUsize,
    sent: AtomicU64,
    /// The share charged for bytes that the socket does not take.
    share: Option<Arc<Share>>,
}

impl Outbox {
    /// An empty queue. Bytes that it cannot send are charged to `share`.
    pub(crate) fn new(share: Option<Arc<Share>>) -> Outbox {
        Outbox { share, ..Outbox::default() }
    }

    /// Appends a message and its lease.
    pub(crate) fn push(&self, message: Message, lease: Option<Lease>) {
        let length = message.len();
        let queued = Queued { mark: record::mark(length), message, lease };
        self.bytes.fetch_add(4 + length, Ordering::Relaxed);
        self.unleased.fetch_add(queued.unleased_bytes(), Ordering::Relaxed);
        self.queue.lock().push(queued);
    }

    /// Memory of queued messages without a lease.
    pub(crate) fn unleased_bytes(&self) -> usize {
        self.unleased.load(Ordering::Relaxed)
    }

    /// Bytes sent since the connection began.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes queued and not sent yet, approximately.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Drops the queue: no peer will receive it.
    pub(crate) fn clear(&self) {
        let queued = std::mem::take(&mut *self.queue.lock());
        let mut progress = self.progress.lock();
        for message in queued.iter().chain(&progress.current) {
            self.unleased.fetch_sub(message.unleased_bytes(), Ordering::Relaxed);
        }
        *progress = Progress::default();
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Takes the lock of sending, as if another task were sending.
    #[cfg(test)]
    pub(crate) fn as_if_sending(&self) -> impl Sized + '_ {
        self.progress.lock()
    }

    /// Sends what the socket takes, up to a bound.
    pub(crate) fn flush(&self, wire: &Wire) -> io::Result<Flushed> {
        let most = self.share.as_ref().map_or(u64::MAX, |share| share.turns().send_bytes());
        let until = self.sent_bytes().saturating_add(most);
        loop {
            let Some(mut progress) = self.progress.try_lock() else { return Ok(Flushed::All) };
            loop {
                progress.current.extend(self.queue.lock().drain(..));
                let is_done = progress.current.is_empty();
                if !is_done {
                    crate::term::check();
                }
                match if is_done { wire.settle() } else { self.step(&mut progress, wire) } {
                    Ok(()) if is_done => {
                        progress.backlog = None;
                        break;
                    }
                    Ok(()) if self.sent_bytes() >= until && !progress.current.is_empty() => {
                        return Ok(Flushed::Paused);
                    }
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.charge_backlog(&mut progress, wire);
                        return Ok(Flushed::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            drop(progress);
            // A task may have pushed a message while we held the lock, and then failed to take it. We send
            // that message.
            if self.queue.lock().is_empty() {
                return Ok(Flushed::All);
            }
        }
    }

    /// Charges the bytes that the socket has not taken.
    fn charge_backlog(&self, progress: &mut Progress, wire: &Wire) {
        let (Some(share), bytes) = (&self.share, self.unleased_bytes() + wire.held_bytes()) else { return };
        match &mut progress.backlog {
            Some(lease) => lease.resize(bytes),
            None => progress.backlog = Some(share.charge(bytes)),
        }
    }

    /// Sends with one system call.
    fn step(&self, progress: &mut Progress, wire: &Wire) -> io::Result<()> {
        let Some(Err(range)) = progress.current.front().and_then(|first| first.segment(progress.segment))
        else {
            return self.step_gathered(progress, wire);
        };
        let left = range.length as usize - progress.sent;
        let sent = wire.send_file(range, range.offset + progress.sent as u64, left)?;
        if sent == 0 && left > 0 {
            // The file is shorter than the header says, so no correct data can follow.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.advance(progress, sent);
        Ok(())
    }

    fn step_gathered(&self, progress: &mut Progress, wire: &Wire) -> io::Result<()> {
        let mut slices: [IoSlice<'_>; GATHER_MAX] = [IoSlice::new(&[]); GATHER_MAX];
        let mut count = 0;
        let mut more = false;
        let mut skip = progress.sent;
        'gather: for (index, queued) in progress.current.iter().enumerate() {
            let start = if index == 0 { progress.segment } else { 0 };
            for segment in start.. {
                match queued.segment(segment) {
                    None => break,
                    Some(Ok(bytes)) => {
                        if count == GATHER_MAX {
                            break 'gather;
                        }
                        slices[count] = IoSlice::new(&bytes[skip..]);
                        count += 1;
                        skip = 0;
                    }
                    Some(Err(_)) => {
                        more = true;
                        break 'gather;
                    }
                }
            }
        }
        let sent = wire.send(&slices[..count], more)?;
        self.advance(progress, sent);
        Ok(())
    }

    /// Counts `sent` more bytes as sent, and drops the messages that are complete.
    fn advance(&self, progress: &mut Progress, mut sent: usize) {
        self.bytes.fetch_sub(sent, Ordering::Relaxed);
        // Only the sender writes this counter, under the lock.
        self.sent.store(self.sent_bytes() + sent as u64, Ordering::Relaxed);
        while let Some(first) = progress.current.front() {
            let Some(segment) = first.segment(progress.segment) else {
                self.unleased.fetch_sub(first.unleased_bytes(), Ordering::Relaxed);
                progress.current.pop_front();
                progress.segment = 0;
                continue;
            };
            let length = match segment {
                Ok(bytes) => bytes.len(),
                Err(range) => range.length as usize,
            };
            let left = length - progress.sent;
            if sent < left {
                progress.sent += sent;
                return;
            }
            sent -= left;
            progress.sent = 0;
            progress.segment += 1;
        }
    }
}
