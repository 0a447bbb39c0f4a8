//! What a connection does with the bytes that its peer sends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use xdr::Decoder;

use super::{Connection, reply_message};
use crate::account::Lease;
use crate::auth::Credential;
use crate::intake::Intake;
use crate::message::{self, CallHeader, Incoming, Refusal};
use crate::outbox::{Flushed, memory_bytes};
use crate::server::Dispatcher;
use crate::service::{Answering, Asked, Call, Outcome};
use crate::tls;

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

impl Connection {
    pub(super) async fn read_all(self: Arc<Connection>, dispatcher: Option<Arc<Dispatcher>>) {
        let mut intake = self.new_intake();
        if let Err(error) = self.read_loop(&mut intake, dispatcher.as_ref()).await {
            tracing::debug!(peer = %self.peer, %error, "connection ends");
            let inner = error.into_inner().map(<dyn std::error::Error + Send + Sync>::downcast::<tls::Error>);
            if let Some(Ok(failure)) = inner {
                let tls = dispatcher.as_ref().and_then(|dispatcher| dispatcher.tls.as_ref());
                if let Some(tls) = tls.filter(|_| failure.is_about_tls()) {
                    tls.failed(self.peer, &failure);
                }
                *self.failure.lock() = Some(*failure);
            }
        }
        self.close();
    }

    pub(super) fn new_intake(&self) -> Intake {
        Intake::new(self.limits().record_bytes, self.share.clone())
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
                    Incoming::Call(header, _) if header.credential == Credential::Tls => {
                        self.start_tls(dispatcher, &header, intake).await?;
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
            self.wire.readable().await?;
            match self.wire.try_read(&mut intake.assembler.buffer, space) {
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
                    if read >= space {
                        intake.filled();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.wire.is_pending() {
                // TLS has answered by itself, and the socket has not taken it.
                self.writer.notify_one();
            }
        }
    }

    /// Sends the queued messages, then waits while more than the limit remains.
    pub(super) async fn send_gathered(&self) -> io::Result<()> {
        if self.outbox.queued_bytes() > 0 && self.outbox.flush(&self.wire)? == Flushed::Blocked {
            self.writer.notify_one();
        }
        // The task that is sending, or that has sent since our check, notifies `drained` when it is done.
        while self.outbox.queued_bytes() > self.limits().outbox_bytes && !self.is_closed() {
            self.drained.notified().await;
        }
        Ok(())
    }

    /// Waits until the future completes or the connection ends.
    pub(super) async fn unless_closed<T>(&self, wait: impl Future<Output = T>) -> io::Result<T> {
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
        let call = Call {
            header,
            arguments,
            peer: self.peer,
            connection,
            datagrams: None,
            resent: false,
            groups: None,
        };
        // Acquire the permit before the first poll. Once a future has begun it must be polled on; otherwise
        // it keeps its resources for ever.
        let permit = self.may_begin(&mut lease).await?;
        self.called.store(true, Ordering::Relaxed);
        let mut answering = dispatcher.answer(call, self.is_admitted());
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

/// Polls with a no-op waker. The task that continues with the future polls it again with a real one.
fn poll_once(answering: &mut Answering) -> Poll<Outcome> {
    Pin::new(answering).poll(&mut Context::from_waker(Waker::noop()))
}
