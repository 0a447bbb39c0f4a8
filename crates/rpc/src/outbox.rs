//! What a connection has yet to send, and the sending.
//!
//! Messages are queued whole, in any number of segments, and leave in order. Small ones are gathered into one `writev`;
//! ranges of files leave by `sendfile`, behind headers that were sent with `MSG_MORE`. Sending never waits: it goes as
//! far as the socket takes it, under a lock that is held across non-blocking system calls only, and whoever owns the
//! connection goes on when the socket is writable again.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use xdr::{Message, Segment};

use crate::account::{Lease, Share};
use crate::record;

/// Segments given to one `writev`: well under IOV_MAX.
const GATHER_MAX: usize = 64;
/// `sendfile` in one call at most, so that one large reply does not keep a worker too long.
const SENDFILE_MAX_BYTES: usize = 1 << 20;

/// One queued message: its mark, then its segments.
#[derive(Debug)]
struct Queued {
    mark: [u8; 4],
    message: Message,
    /// Held until the message is sent whole.
    lease: Option<Lease>,
}

impl Queued {
    /// Bytes that nobody has been charged for.
    fn unleased_bytes(&self) -> usize {
        if self.lease.is_some() { 0 } else { memory_bytes(&self.message) }
    }

    /// Segment `index`, the mark being segment zero. `Err` is a range of a file.
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

/// Where sending stands: so many bytes of this segment of the first message are gone.
#[derive(Debug, Default)]
struct Progress {
    current: VecDeque<Queued>,
    segment: usize,
    sent: usize,
    /// For the messages without a lease of their own, while the socket takes no more.
    backlog: Option<Lease>,
}

/// How far a flush came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Everything is with the kernel, or another task is sending and will see to it.
    All,
    /// The socket takes no more now.
    Blocked,
}

/// What a queued message takes up beside its bytes.
const QUEUED_BYTES: usize = 128;

/// Memory that a queued message takes up. Ranges of files are not in memory.
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
    /// Memory of the messages that came without a lease.
    unleased: AtomicUsize,
    sent: AtomicU64,
    /// Who is charged for what the socket does not take.
    share: Option<Arc<Share>>,
}

impl Outbox {
    /// An empty queue; what it cannot send is charged to `share`.
    pub(crate) fn new(share: Option<Arc<Share>>) -> Outbox {
        Outbox { share, ..Outbox::default() }
    }

    /// Appends a message, and what was charged for it.
    pub(crate) fn push(&self, message: Message, lease: Option<Lease>) {
        let length = message.len();
        let queued = Queued { mark: record::mark(length), message, lease };
        self.bytes.fetch_add(4 + length, Ordering::Relaxed);
        self.unleased.fetch_add(queued.unleased_bytes(), Ordering::Relaxed);
        self.queue.lock().push(queued);
    }

    /// Memory of queued messages that came without a lease.
    pub(crate) fn unleased_bytes(&self) -> usize {
        self.unleased.load(Ordering::Relaxed)
    }

    /// Bytes sent since the beginning.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes queued and not yet sent, roughly.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Forgets what is queued: nobody will get it.
    pub(crate) fn clear(&self) {
        let queued = std::mem::take(&mut *self.queue.lock());
        let mut progress = self.progress.lock();
        for message in queued.iter().chain(&progress.current) {
            self.unleased.fetch_sub(message.unleased_bytes(), Ordering::Relaxed);
        }
        *progress = Progress::default();
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// As if another task were sending.
    #[cfg(test)]
    pub(crate) fn as_if_sending(&self) -> impl Sized + '_ {
        self.progress.lock()
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&self, stream: &TcpStream) -> io::Result<Flushed> {
        loop {
            let Some(mut progress) = self.progress.try_lock() else { return Ok(Flushed::All) };
            loop {
                progress.current.extend(self.queue.lock().drain(..));
                if progress.current.is_empty() {
                    progress.backlog = None;
                    break;
                }
                match self.step(&mut progress, stream) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.charge_backlog(&mut progress);
                        return Ok(Flushed::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            drop(progress);
            // A message pushed while we held the lock, by somebody who then found it taken, is ours to send.
            if self.queue.lock().is_empty() {
                return Ok(Flushed::All);
            }
        }
    }

    /// What the socket has not taken is charged from now on.
    fn charge_backlog(&self, progress: &mut Progress) {
        let (Some(share), bytes) = (&self.share, self.unleased_bytes()) else { return };
        match &mut progress.backlog {
            Some(lease) => lease.resize(bytes),
            None => progress.backlog = Some(share.charge(bytes)),
        }
    }

    /// One system call's worth of sending.
    fn step(&self, progress: &mut Progress, stream: &TcpStream) -> io::Result<()> {
        let Some(Err(range)) = progress.current.front().and_then(|first| first.segment(progress.segment))
        else {
            return self.step_gathered(progress, stream);
        };
        let left = range.length as usize - progress.sent;
        let mut offset = range.offset + progress.sent as u64;
        let sent = stream.try_io(Interest::WRITABLE, || {
            Ok(rustix::fs::sendfile(stream, &*range.file, Some(&mut offset), left.min(SENDFILE_MAX_BYTES))?)
        })?;
        if sent == 0 && left > 0 {
            // The file is shorter than when the header was written: nothing true can follow.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.advance(progress, sent);
        Ok(())
    }

    fn step_gathered(&self, progress: &mut Progress, stream: &TcpStream) -> io::Result<()> {
        let mut slices: [IoSlice<'_>; GATHER_MAX] = [IoSlice::new(&[]); GATHER_MAX];
        let mut count = 0;
        let mut flags = SendFlags::NOSIGNAL;
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
                        flags |= SendFlags::MORE;
                        break 'gather;
                    }
                }
            }
        }
        let sent = stream.try_io(Interest::WRITABLE, || {
            let mut control = SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(stream, &slices[..count], &mut control, flags)?)
        })?;
        self.advance(progress, sent);
        Ok(())
    }

    /// Notes that so many more bytes are gone, and lets go of what is sent whole.
    fn advance(&self, progress: &mut Progress, mut sent: usize) {
        self.bytes.fetch_sub(sent, Ordering::Relaxed);
        // Only who sends writes it, under the lock.
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
