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

mod reading;
mod securing;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use xdr::{Decoder, Encode, Encoder, Message};

use crate::account::{Lease, Share};
use crate::connections::{Activity, Occupant};
use crate::message::{self, CallHeader, Refusal};
use crate::outbox::{Flushed, Outbox};
use crate::pending::{Contents, Pending, Sending};
use crate::server::Dispatcher;
use crate::service::Outcome;
use crate::sys;
use crate::tls::{self, TransportSecurity};
use crate::wire::Wire;

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

/// The kernel probes a silent peer after this time, and then at the interval below.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;
/// A peer is considered gone if for this long it acknowledges no data, or has no buffer space for it.
const USER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a server knows about an accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The answer of [`crate::Service::admits`] for the peer in plain text.
    pub(crate) admitted: bool,
    /// The answer may be yes for this connection, if TLS protects it.
    pub(crate) listed: bool,
    /// The share that is charged for work in flight.
    pub(crate) share: Arc<Share>,
}

/// A connection and its two tasks, which end with it.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    peer: SocketAddr,
    local: SocketAddr,
    outbox: Outbox,
    pending: Arc<Pending>,
    writer: Notify,
    drained: Notify,
    closing: AtomicBool,
    closed: Notify,
    started: Instant,
    last_received_ms: AtomicU64,
    received: AtomicBool,
    /// A call has come, so the connection stays as it is.
    called: AtomicBool,
    /// Unique in the process.
    number: u64,
    /// The reply cache holds replies to calls that came on this connection.
    remembers: AtomicBool,
    /// The answer of [`crate::Service::admits`] for the peer. It is asked once more after the handshake of
    /// TLS.
    admitted: AtomicBool,
    /// Is a handshake of TLS offered to the peer?
    listed: bool,
    /// The limits once the peer is admitted.
    limits: Limits,
    /// One permit for each call that may be in flight.
    in_flight: Arc<Semaphore>,
    share: Option<Arc<Share>>,
    /// The record being received has been charged.
    charged_record: AtomicBool,
    /// The empty receive buffer, while the reader waits.
    spare: Mutex<BytesMut>,
    /// TLS has ended the connection for this reason.
    failure: Mutex<Option<tls::Error>>,
}

/// The number of the newest connection.
static LAST: AtomicU64 = AtomicU64::new(0);

impl Connection {
    /// Takes over a stream. Replies go to `pending` and calls to `dispatcher`; without a dispatcher, calls
    /// are refused. A peer that the service does not admit gets the limits of `STRANGER` instead of `limits`.
    /// For a connection that we made, `accepted` is `None`.
    pub(crate) fn start(
        wire: Wire,
        pending: Arc<Pending>,
        dispatcher: Option<Arc<Dispatcher>>,
        limits: Limits,
        accepted: Option<Accepted>,
    ) -> io::Result<Arc<Connection>> {
        let stream = wire.stream();
        stream.set_nodelay(true)?;
        if accepted.is_some() {
            watch_over(stream)?;
        }
        let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
        if peer.ip().is_loopback() || peer.ip() == local.ip() {
            socket2::SockRef::from(stream).set_send_buffer_size(LOCAL_SEND_BUFFER_BYTES)?;
        }
        let admitted = accepted.as_ref().is_none_or(|accepted| accepted.admitted);
        let listed = accepted.as_ref().is_some_and(|accepted| accepted.listed);
        let share = accepted.map(|accepted| accepted.share);
        let calls_in_flight = if admitted { limits } else { STRANGER }.calls_in_flight;
        let connection = Arc::new(Connection {
            peer,
            local,
            wire,
            outbox: Outbox::new(share.clone()),
            pending,
            writer: Notify::new(),
            drained: Notify::new(),
            closing: AtomicBool::new(false),
            closed: Notify::new(),
            started: Instant::now(),
            last_received_ms: AtomicU64::new(0),
            received: AtomicBool::new(false),
            called: AtomicBool::new(false),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            remembers: AtomicBool::new(false),
            admitted: AtomicBool::new(admitted),
            listed,
            limits,
            in_flight: Arc::new(Semaphore::new(calls_in_flight)),
            share,
            charged_record: AtomicBool::new(false),
            spare: Mutex::default(),
            failure: Mutex::default(),
        });
        tokio::spawn(connection.clone().write_all());
        tokio::spawn(connection.clone().read_all(dispatcher));
        Ok(connection)
    }

    /// The other end.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// This end.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What protects the connection.
    pub fn security(&self) -> TransportSecurity {
        self.wire.security()
    }

    /// Is the peer admitted?
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }

    /// Why TLS has ended the connection, if it has.
    pub(crate) fn take_failure(&self) -> Option<tls::Error> {
        self.failure.lock().take()
    }

    fn limits(&self) -> Limits {
        if self.is_admitted() { self.limits } else { STRANGER }
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
        if matches!(self.outbox.flush(&self.wire), Ok(Flushed::All)) {
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
        let contents = Contents::Plain(encode_call(&header, arguments));
        let mut ticket = self.pending.enter(header.xid, contents);
        if let Some(sending) = self.pending.sending(header.xid) {
            self.send_call(sending);
        }
        let closed = self.closed();
        let reply = tokio::select! {
            reply = &mut ticket.reply => reply.map_err(|_| io::ErrorKind::ConnectionReset)?,
            () = closed => return Err(io::ErrorKind::ConnectionReset.into()),
        };
        message::parse_reply(reply.rest).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Sends a call. False if there is nothing to send.
    pub(crate) fn send_call(&self, Sending { contents, alone }: Sending) -> bool {
        let Some(message) = contents.message() else { return false };
        if alone {
            self.send_alone(message);
        } else {
            self.send(message);
        }
        true
    }

    /// An xid for a call on this connection.
    pub fn xid(&self) -> u32 {
        self.pending.xid()
    }

    /// Ends the connection. Queued messages may be lost.
    pub fn close(&self) {
        if !self.closing.swap(true, Ordering::AcqRel) {
            // This makes both tasks fail at their next system call.
            self.wire.shut_down();
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
            && !self.wire.is_pending()
            && sys::unacknowledged_bytes(self.wire.stream()).is_ok_and(|bytes| bytes == 0)
    }

    /// Calls in flight.
    fn calls(&self) -> usize {
        self.limits().calls_in_flight.saturating_sub(self.in_flight.available_permits())
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
                match self.outbox.flush(&self.wire) {
                    Ok(Flushed::All) => break,
                    Ok(Flushed::Paused) => tokio::task::yield_now().await,
                    Ok(Flushed::Blocked) => {
                        if self.is_closed() || self.wire.writable().await.is_err() {
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

    fn rest(&self) -> usize {
        // Freed without the lock, for which the reader would wait.
        let spare = std::mem::take(&mut *self.spare.lock());
        spare.capacity()
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

/// The message to send for an outcome, if any.
pub(crate) fn reply_message(xid: u32, outcome: Outcome) -> Option<Message> {
    match outcome {
        Outcome::Reply(message) | Outcome::PutOff(message) => Some(message),
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
mod tests;
