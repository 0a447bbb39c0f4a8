//! One TCP connection, on which both ends may call.
//!
//! A reader task takes records off the stream. It polls each call once on the spot. If the answer needs no
//! waiting, it is queued at once, and all answers to one read of the socket leave together. A call that has
//! to wait becomes a task. A writer task sends what the reader could not send, and the replies of those
//! tasks. A message that no other is likely to follow is sent on the spot: waking a task to send it takes
//! longer than sending it.
//!
//! On an accepted connection, the peer is charged for work in flight ([`crate::account`]). A call is charged
//! once it has to wait, and a large record before it is read. A reply is charged if it is large or if the
//! socket does not take it. If the peer already holds its share, its calls wait where they are, and the
//! connection reads nothing more.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use xdr::{Decoder, Encode, Encoder, Message};

use crate::account::{Lease, Share};
use crate::connections::{Activity, Occupant};
use crate::intake::Intake;
use crate::message::{self, CallHeader, Incoming, Refusal};
use crate::outbox::{Flushed, Outbox, memory_bytes};
use crate::pending::{Pending, Sending};
use crate::server::Dispatcher;
use crate::service::{Answering, Asked, Call, Outcome};
use crate::sys;

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest message taken, in bytes.
    pub record_bytes: usize,
    /// Calls that may wait for their answer at once. At this limit the connection reads nothing more.
    pub calls_in_flight: usize,
    /// Bytes of unsent replies. Above this limit the connection reads nothing more.
    pub outbox_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { record_bytes: crate::RECORD_MAX_BYTES, calls_in_flight: 512, outbox_bytes: 8 << 20 }
    }
}

/// The limits of a peer that is not admitted: enough for one call at a time that gets an error.
const STRANGER: Limits = Limits { record_bytes: 4 << 10, calls_in_flight: 1, outbox_bytes: 4 << 10 };

/// The send buffer of a connection within this machine, in bytes; the kernel doubles it. By itself the kernel
/// grows it to megabytes, and two cores fight over the queue: sending and receiving 1 MiB each take twice as
/// long. Over a network, the kernel must size the buffer by bandwidth and delay.
const LOCAL_SEND_BUFFER_BYTES: usize = 128 << 10;

/// Memory of a call that has to wait, besides its record and its reply: its task, with the state of every
/// layer.
const CALL_BYTES: usize = 8 << 10;
/// A reply larger than this is charged separately.
const LARGE_REPLY_BYTES: usize = 8 << 10;
/// Replies are gathered up to this size before they are sent, even if more calls are at hand.
const GATHERED_BYTES: usize = 256 << 10;
/// How long one connection may have its calls answered before other connections get their turn.
const SLICE: Duration = Duration::from_micros(500);
/// Number of calls answered between two looks at the clock.
const CALLS_PER_LOOK: usize = 8;

/// The kernel probes a silent peer after this time, and then at the interval below.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// A peer is considered gone if for this long it acknowledges no data, or has no buffer space for it.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server knows about an accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The answer of [`crate::Service::admits`] for the peer.
    pub(crate) admitted: bool,
    /// The share that is charged for work in flight.
    pub(crate) share: Arc<Share>,
}

/// A connection and its two tasks, which end with it.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    outbox: Outbox,
    pending: Arc<Pending>,
    writer: Notify,
    drained: Notify,
    closing: AtomicBool,
    closed: Notify,
    started: Instant,
    last_received_ms: AtomicU64,
    received: AtomicBool,
    /// Unique in the process.
    number: u64,
    /// The reply cache holds replies to calls that came on this connection.
    remembers: AtomicBool,
    /// The answer of [`crate::Service::admits`] for the peer, asked once.
    admitted: bool,
    limits: Limits,
    /// One permit for each call that may be in flight.
    in_flight: Arc<Semaphore>,
    share: Option<Arc<Share>>,
    /// The record being received has been charged.
    charged_record: AtomicBool,
}

/// The number of the newest connection.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Connection {
    /// Takes over a stream. Replies go to `pending` and calls to `dispatcher`; without a dispatcher, calls
    /// are refused. A peer that the service does not admit gets the limits of `STRANGER` instead of `limits`.
    /// For a connection that we made, `accepted` is `None`.
    pub(crate) fn start(
        stream: TcpStream,
        pending: Arc<Pending>,
        dispatcher: Option<Arc<Dispatcher>>,
        limits: Limits,
        accepted: Option<Accepted>,
    ) -> io::Result<Arc<Connection>> {
        stream.set_nodelay(true)?;
        if accepted.is_some() {
            watch_over(&stream)?;
        }
        let peer = stream.peer_addr()?;
        if peer.ip().is_loopback() || peer.ip() == stream.local_addr()?.ip() {
            socket2::SockRef::from(&stream).set_send_buffer_size(LOCAL_SEND_BUFFER_BYTES)?;
        }
        let admitted = accepted.as_ref().is_none_or(|accepted| accepted.admitted);
        let share = accepted.map(|accepted| accepted.share);
        let limits = if admitted { limits } else { STRANGER };
        let connection = Arc::new(Connection {
            peer,
            stream,
            outbox: Outbox::new(share.clone()),
            pending,
            writer: Notify::new(),
            drained: Notify::new(),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            started: Instant::now(),
            last_received_ms: AtomicU64::new(0),
            received: AtomicBool::new(false),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            remembers: AtomicBool::new(false),
            admitted,
            limits,
            in_flight: Arc::new(Semaphore::new(limits.calls_in_flight)),
            share,
            charged_record: AtomicBool::new(false),
        });
        tokio::spawn(connection.clone().write_all());
        tokio::spawn(connection.clone().read_all(dispatcher));
        Ok(connection)
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Queues a message. It leaves together with the messages that other ready tasks queue.
    pub fn send(&self, message: Message) {
        self.queue(message, None);
        self.writer.notify_one();
    }

    /// Queues a message with its lease. Does nothing if the connection has ended.
    fn queue(&self, message: Message, lease: Option<Lease>) {
        if !self.is_closed() {
            self.outbox.push(message, lease);
        }
    }

    /// Sends a message as far as the socket takes it. Meant for a message that no other is likely to follow
    /// at once.
    pub(crate) fn send_alone(&self, message: Message) {
        self.send_leased_alone(message, None);
    }

    fn send_leased_alone(&self, message: Message, lease: Option<Lease>) {
        self.queue(message, lease);
        if matches!(self.outbox.flush(&self.stream), Ok(Flushed::All)) {
            // The reader may have found us sending and wait for us: wake it.
            self.drained.notify_one();
        } else {
            // The writer waits until the socket takes the rest, or meets the same error and ends the
            // connection.
            self.writer.notify_one();
        }
    }

    /// Calls the other end. Fails when the connection ends. The caller must bound the wait.
    pub async fn call(&self, header: CallHeader, arguments: Message) -> io::Result<Result<Decoder, Refusal>> {
        let message = encode_call(&header, arguments);
        let mut ticket = self.pending.enter(header.xid, message);
        if let Some(Sending { message, alone }) = self.pending.sending(header.xid) {
            if alone { self.send_alone(message) } else { self.send(message) }
        }
        let closed = self.closed();
        let reply = tokio::select! {
            reply = &mut ticket.reply => reply.map_err(|_| io::ErrorKind::ConnectionReset)?,
            () = closed => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        message::parse_reply(reply.rest).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// An xid for a call on this connection.
    pub fn xid(&self) -> u32 {
        self.pending.xid()
    }

    /// Ends the connection. Queued messages may be lost.
    pub fn close(&self) {
        if !self.closing.swap(true, Ordering::AcqRel) {
            // This makes both tasks fail at their next system call. An error means that the stream is gone
            // already.
            let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
            self.writer.notify_one();
            self.drained.notify_one();
            self.closed.notify_waiters();
            // Free the queue now: calls in flight may hold the connection for long.
            self.outbox.clear();
        }
    }

    /// Waits for the end of the connection.
    pub async fn closed(&self) {
        loop {
            let closed = self.closed.notified();
            if self.is_closed() {
                return;
            }
            closed.await;
        }
    }

    /// Has the connection ended?
    pub fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The number of the connection. Notes that a call came on it whose reply the cache remembers.
    pub(crate) fn number_of_one_that_remembers(&self) -> u64 {
        self.remembers.store(true, Ordering::Relaxed);
        self.number
    }

    /// Has the client, which closed its end, acknowledged all replies?
    fn is_heard(&self) -> bool {
        self.remembers.load(Ordering::Relaxed)
            && self.calls() == 0
            && self.outbox.queued_bytes() == 0
            && sys::unacknowledged_bytes(&self.stream).is_ok_and(|bytes| bytes == 0)
    }

    /// Calls in flight.
    fn calls(&self) -> usize {
        self.limits.calls_in_flight - self.in_flight.available_permits()
    }

    /// Has anything been received?
    pub(crate) fn has_received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }

    /// When bytes were received last.
    pub fn last_received(&self) -> Instant {
        self.started + std::time::Duration::from_millis(self.last_received_ms.load(Ordering::Relaxed))
    }

    async fn write_all(self: Arc<Connection>) {
        loop {
            self.writer.notified().await;
            // Let the tasks that are ready queue their replies first, so that all leave in one system call.
            tokio::task::yield_now().await;
            loop {
                match self.outbox.flush(&self.stream) {
                    Ok(Flushed::All) => break,
                    Ok(Flushed::Blocked) => {
                        if self.is_closed() || self.stream.writable().await.is_err() {
                            return self.close();
                        }
                    }
                    Err(error) => {
                        tracing::debug!(peer = %self.peer, %error, "sending failed");
                        return self.close();
                    }
                }
            }
            self.drained.notify_one();
            if self.is_closed() {
                return;
            }
        }
    }

    async fn read_all(self: Arc<Connection>, dispatcher: Option<Arc<Dispatcher>>) {
        let mut intake = Intake::new(self.limits.record_bytes, self.share.clone());
        if let Err(error) = self.read_loop(&mut intake, dispatcher.as_ref()).await {
            tracing::debug!(peer = %self.peer, %error, "connection ends");
        }
        self.close();
    }

    async fn read_loop(
        self: &Arc<Connection>,
        intake: &mut Intake,
        dispatcher: Option<&Arc<Dispatcher>>,
    ) -> io::Result<()> {
        let invalid =
            |error: &dyn std::error::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            let (mut slice, mut records) = (std::time::Instant::now(), 0usize);
            while let Some((record, lease)) = intake.take().map_err(|error| invalid(&error))? {
                if lease.is_some() {
                    self.charged_record.store(false, Ordering::Relaxed);
                }
                match Incoming::parse(record).map_err(|error| invalid(&error))? {
                    Incoming::Reply { xid, rest } => self.pending.complete(xid, rest),
                    Incoming::Mismatch { xid } => {
                        self.queue(message::refuse(xid, Refusal::RpcMismatch), None);
                    }
                    Incoming::BadCredential { xid } => {
                        self.queue(message::refuse(xid, Refusal::Auth(message::AUTH_BADCRED)), None);
                    }
                    Incoming::Call(header, arguments) => match dispatcher {
                        None => self.queue(message::refuse(header.xid, Refusal::ProgramUnavailable), None),
                        Some(dispatcher) => self.answer(dispatcher, (header, arguments), lease).await?,
                    },
                }
                records += 1;
                let is_over = records.is_multiple_of(CALLS_PER_LOOK) && slice.elapsed() >= SLICE;
                if is_over || self.outbox.queued_bytes() > GATHERED_BYTES {
                    self.send_gathered().await?;
                    // One read may have brought hundreds of calls: let other connections run in between.
                    tokio::task::yield_now().await;
                    slice = std::time::Instant::now();
                }
            }
            self.send_gathered().await?;
            if let Some((share, bytes)) = intake.to_lease() {
                let lease = self.unless_closed(share.lease(bytes)).await?;
                intake.leased(lease);
                self.charged_record.store(intake.holds_lease(), Ordering::Relaxed);
            }
            let space = intake.reserve();
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut intake.assembler.buffer) {
                Ok(0) => {
                    if let Some(dispatcher) = dispatcher.filter(|_| self.is_heard()) {
                        dispatcher.replies.heard(self.number);
                    }
                    return Ok(());
                }
                Ok(read) => {
                    let elapsed = self.started.elapsed().as_millis() as u64;
                    self.last_received_ms.store(elapsed, Ordering::Relaxed);
                    self.received.store(true, Ordering::Relaxed);
                    if read == space {
                        intake.filled();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the queued messages, then waits while more than the limit remains.
    async fn send_gathered(&self) -> io::Result<()> {
        if self.outbox.queued_bytes() > 0 && self.outbox.flush(&self.stream)? == Flushed::Blocked {
            self.writer.notify_one();
        }
        // The task that is sending, or that has sent since our check, notifies `drained` when it is done.
        while self.outbox.queued_bytes() > self.limits.outbox_bytes && !self.is_closed() {
            self.drained.notified().await;
        }
        Ok(())
    }

    /// Waits until the future completes or the connection ends.
    async fn unless_closed<T>(&self, wait: impl Future<Output = T>) -> io::Result<T> {
        tokio::select! {
            biased;
            result = wait => Ok(result),
            () = self.closed() => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// Waits until a call may begin. It needs a permit, and its peer must hold less than its share or have
    /// been charged for the call.
    async fn may_begin(&self, lease: &mut Option<Lease>) -> io::Result<tokio::sync::OwnedSemaphorePermit> {
        let share = self.share.as_ref().filter(|share| lease.is_none() && !share.is_open());
        if self.in_flight.available_permits() == 0 || share.is_some() {
            self.writer.notify_one(); // send the answers so far; they need not wait with us
        }
        if let Some(share) = share {
            *lease = Some(self.unless_closed(share.lease(CALL_BYTES)).await?);
        }
        // The semaphore is never closed.
        let permit = self.in_flight.clone().acquire_owned().await;
        permit.map_err(|_| io::ErrorKind::ConnectionReset.into())
    }

    async fn answer(
        self: &Arc<Connection>,
        dispatcher: &Arc<Dispatcher>,
        (header, arguments): (CallHeader, Decoder),
        mut lease: Option<Lease>,
    ) -> io::Result<()> {
        let (xid, record_bytes) = (header.xid, arguments.remaining());
        let asked = Asked::new(&header, &arguments);
        let connection = Some(self.clone());
        let call = Call { header, arguments, peer: self.peer, connection, datagrams: None, resent: false };
        // Acquire the permit before the first poll. Once a future has begun it must be polled on; otherwise
        // it keeps its resources for ever.
        let permit = self.may_begin(&mut lease).await?;
        let mut answering = dispatcher.answer(call, self.admitted);
        if let Poll::Ready(outcome) = poll_once(&mut answering) {
            drop(lease);
            if let Some(message) = reply_message(xid, outcome) {
                let bytes = memory_bytes(&message);
                let share = self.share.as_ref().filter(|_| bytes > LARGE_REPLY_BYTES);
                let lease = share.map(|share| share.charge(bytes));
                self.queue(message, lease);
            }
            return Ok(());
        }
        if let Some(share) = &self.share {
            let bytes = record_bytes + CALL_BYTES + dispatcher.service.reply_bytes(&asked);
            match &mut lease {
                Some(lease) => lease.resize(bytes),
                None => lease = Some(share.charge(bytes)),
            }
        }
        drop(asked);
        let connection = self.clone();
        tokio::spawn(async move {
            let outcome = answering.await;
            let alone = connection.calls() <= 1;
            if let Some(message) = reply_message(xid, outcome) {
                if let Some(lease) = &mut lease {
                    lease.resize(memory_bytes(&message));
                }
                if alone {
                    connection.send_leased_alone(message, lease);
                } else {
                    connection.queue(message, lease);
                    connection.writer.notify_one();
                }
            }
            drop(permit);
        });
        Ok(())
    }
}

impl Occupant for Connection {
    fn activity(&self) -> Activity {
        Activity {
            received: self.last_received(),
            sent: self.outbox.sent_bytes(),
            unsent: self.outbox.queued_bytes(),
            calls: self.calls(),
            charged_record: self.charged_record.load(Ordering::Relaxed),
        }
    }

    fn end(&self) {
        tracing::debug!(peer = %self.peer, "the connection gives way");
        self.close();
    }
}

/// Makes the kernel end the connection of a peer that is gone or takes no data.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT.as_millis() as u32)?)
}

/// Polls with a no-op waker. The task that continues with the future polls it again with a real one.
fn poll_once(answering: &mut Answering) -> Poll<Outcome> {
    Pin::new(answering).poll(&mut Context::from_waker(Waker::noop()))
}

/// The message to send for an outcome, if any.
pub(crate) fn reply_message(xid: u32, outcome: Outcome) -> Option<Message> {
    match outcome {
        Outcome::Reply(message) => Some(message),
        Outcome::Refuse(refusal) => Some(message::refuse(xid, refusal)),
        Outcome::Drop => None,
    }
}

/// Encodes a call: header and arguments.
pub(crate) fn encode_call(header: &CallHeader, arguments: Message) -> Message {
    let mut encoder = Encoder::with_capacity(128 + arguments.first.len());
    header.encode(&mut encoder);
    encoder.message(arguments);
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::auth::Credential;
    use crate::replay::ReplyCache;
    use crate::service::{Remember, Service};

    const REPLY_BYTES: usize = 16 << 10;

    /// Answers at once, with a large reply.
    struct Talkative;

    impl Service for Talkative {
        fn call(self: Arc<Self>, call: Call) -> Answering {
            let mut reply = call.reply();
            reply.raw(&[0; REPLY_BYTES]);
            Box::pin(std::future::ready(Outcome::Reply(reply.finish())))
        }

        fn remember(&self, _: &Call) -> Remember {
            Remember::No
        }
    }

    async fn ask(connection: Arc<Connection>) -> usize {
        let header = CallHeader {
            xid: connection.xid(),
            program: 1,
            version: 1,
            procedure: 1,
            credential: Credential::None,
        };
        connection.call(header, Encoder::new().finish()).await.unwrap().unwrap().remaining()
    }

    #[tokio::test]
    async fn the_reader_goes_on_when_another_task_has_sent_what_it_waits_for() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let dispatcher =
            Arc::new(Dispatcher { service: Arc::new(Talkative), replies: ReplyCache::volatile() });
        let limits = Limits { outbox_bytes: REPLY_BYTES / 2, ..Limits::default() };
        let server =
            Connection::start(far.unwrap().0, Arc::default(), Some(dispatcher), limits, None).unwrap();
        let client = Connection::start(near.unwrap(), Arc::default(), None, Limits::default(), None).unwrap();

        let sending = server.outbox.as_if_sending();
        let first = tokio::spawn(ask(client.clone()));
        // The test has one thread, so by now the reader has found another sender and waits.
        while server.outbox.queued_bytes() <= limits.outbox_bytes {
            tokio::task::yield_now().await;
        }
        drop(sending);
        server.send_alone(message::refuse(0, Refusal::ProgramUnavailable));
        assert_eq!(first.await.unwrap(), REPLY_BYTES);
        let second = timeout(Duration::from_secs(10), ask(client)).await;
        assert_eq!(second, Ok(REPLY_BYTES), "the reader hangs");
    }
}
