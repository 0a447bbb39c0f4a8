//! What a connection does with the bytes that its peer sends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use tokio::sync::OwnedSemaphorePermit;
use xdr::Decoder;

use super::{Connection, reply_message};
use crate::account::Lease;
use crate::auth::Credential;
use crate::fair::{self, Busy, Turn, Turns};
use crate::intake::Intake;
use crate::message::{self, CallHeader, Incoming, Refusal};
use crate::outbox::{Flushed, memory_bytes};
use crate::server::{Checked, Dispatcher, Unanswered};
use crate::service::{Asked, Call, Outcome};
use crate::tls;

/// Memory of a call that has to wait, besides its record and its reply: its task, with the state of every
/// layer.
const CALL_BYTES: usize = 8 << 10;
/// A reply larger than this is charged separately.
const LARGE_REPLY_BYTES: usize = 8 << 10;
/// Replies are gathered up to this size before they are sent, even if more calls are at hand.
const GATHERED_BYTES: usize = 256 << 10;
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
        let mut slice = Slice::new();
        loop {
            self.take_records(intake, dispatcher, &mut slice).await?;
            self.send_gathered().await?;
            if let Some((share, bytes)) = intake.to_lease() {
                let lease = self.unless_closed(share.lease(bytes)).await?;
                intake.leased(lease);
                self.charged_record.store(intake.holds_lease(), Ordering::Relaxed);
            }
            if slice.is_over(self.turns()) {
                // More may have arrived meanwhile, again and again.
                slice.give_way(self.turns()).await;
            }
            if self.readable(&mut intake.assembler.buffer).await? {
                slice = Slice::new();
            }
            let space = intake.reserve();
            match self.wire.try_read(&mut intake.assembler.buffer, space) {
                Ok(0) => {
                    if let Some(dispatcher) = dispatcher.filter(|_| self.is_heard()) {
                        dispatcher.replies.heard(self.number);
                    }
                    return Ok(());
                }
                Ok(read) => {
                    self.note_received();
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

    /// Handles all records that have arrived.
    async fn take_records(
        self: &Arc<Connection>,
        intake: &mut Intake,
        dispatcher: Option<&Arc<Dispatcher>>,
        slice: &mut Slice,
    ) -> io::Result<()> {
        let invalid =
            |error: &dyn std::error::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
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
                    Box::pin(self.start_tls(dispatcher, &header, intake)).await?;
                }
                Incoming::Call(header, arguments) => match dispatcher {
                    None => self.queue(message::refuse(header.xid, Refusal::ProgramUnavailable), None),
                    Some(dispatcher) => self.answer(dispatcher, (header, arguments), lease).await?,
                },
            }
            if slice.is_over_after_record(self.turns()) || self.outbox.queued_bytes() > GATHERED_BYTES {
                self.send_gathered().await?;
                // One read may have brought hundreds of calls: let other connections run in between.
                slice.give_way(self.turns()).await;
            }
        }
        Ok(())
    }

    /// The turns of the peer of an accepted connection.
    fn turns(&self) -> Option<&Arc<Turns>> {
        self.share.as_ref().map(|share| share.turns())
    }

    /// Waits until a read may bring bytes. Returns whether the wait let other tasks run. An empty buffer may
    /// be given up meanwhile.
    async fn readable(&self, buffer: &mut BytesMut) -> io::Result<bool> {
        let mut readable = std::pin::pin!(self.wire.readable());
        let mut has_waited = false;
        std::future::poll_fn(|context| {
            let polled = readable.as_mut().poll(context);
            if polled.is_pending() && !has_waited {
                has_waited = true;
                if buffer.is_empty() {
                    *self.spare.lock() = std::mem::take(buffer);
                }
            }
            polled
        })
        .await?;
        if has_waited && buffer.is_empty() {
            *buffer = std::mem::take(&mut *self.spare.lock());
        }
        Ok(has_waited)
    }

    /// Bytes have been received.
    fn note_received(&self) {
        let now = tokio::time::Instant::now();
        let elapsed = now.saturating_duration_since(self.started).as_millis() as u64;
        self.last_received_ms.store(elapsed, Ordering::Relaxed);
        self.received.store(true, Ordering::Relaxed);
        if let Some(turns) = self.turns().filter(|_| self.is_admitted()) {
            turns.note(now);
        }
    }

    /// Sends the queued messages, then waits while more than the limit remains.
    pub(super) async fn send_gathered(&self) -> io::Result<()> {
        if self.outbox.queued_bytes() > 0 && self.outbox.flush(&self.wire)? != Flushed::All {
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
        let mut held = Held { lease, permit, expected_bytes: 0 };
        let call = match dispatcher.check(call, self.is_admitted()) {
            Checked::Call(call) => call,
            Checked::Answered(outcome) => {
                self.reply_now(xid, outcome, held);
                return Ok(());
            }
            Checked::Later(mut checking) => match poll_once(&mut checking) {
                Poll::Ready(Ok(call)) => call,
                Poll::Ready(Err(outcome)) => {
                    self.reply_now(xid, outcome, held);
                    return Ok(());
                }
                Poll::Pending => {
                    self.charge(&mut held, record_bytes + CALL_BYTES);
                    let (connection, dispatcher) = (self.clone(), dispatcher.clone());
                    tokio::spawn(async move {
                        match checking.await {
                            Ok(call) => connection.answer_late(&dispatcher, call, record_bytes, held).await,
                            Err(outcome) => connection.reply_late(xid, outcome, held),
                        }
                    });
                    return Ok(());
                }
            },
        };
        let asked = Asked::new(&call.call.header, &call.call.arguments);
        let turns = self.turns().filter(|_| self.is_admitted());
        if let Some(turns) = turns.filter(|turns| turns.must_wait(record_bytes)) {
            if !dispatcher.service.is_urgent(&asked) {
                self.answer_in_turn(dispatcher, call, &asked, record_bytes, held);
                return Ok(());
            }
            turns.begin_urgent(record_bytes);
        }
        let mut answering = dispatcher.answer(call, self.is_admitted());
        if let Poll::Ready(outcome) = poll_once(&mut answering) {
            self.reply_now(xid, outcome, held);
            return Ok(());
        }
        let turn = self.expect(&mut held, record_bytes, dispatcher.service.reply_bytes(&asked));
        drop(asked);
        let connection = self.clone();
        tokio::spawn(async move {
            let outcome = answering.await;
            drop(turn);
            connection.reply_late(xid, outcome, held);
        });
        Ok(())
    }

    /// Answers a call whose check took time, in a task of its own.
    async fn answer_late(
        self: &Arc<Connection>,
        dispatcher: &Arc<Dispatcher>,
        call: Unanswered,
        record_bytes: usize,
        mut held: Held,
    ) {
        let (xid, asked) = (call.call.header.xid, Asked::new(&call.call.header, &call.call.arguments));
        if let Some(turns) = self.turns().filter(|turns| turns.must_wait(record_bytes)) {
            if !dispatcher.service.is_urgent(&asked) {
                return self.answer_in_turn(dispatcher, call, &asked, record_bytes, held);
            }
            turns.begin_urgent(record_bytes);
        }
        let turn = self.expect(&mut held, record_bytes, dispatcher.service.reply_bytes(&asked));
        drop(asked);
        let outcome = dispatcher.answer(call, true).await;
        drop(turn);
        self.reply_late(xid, outcome, held);
    }

    /// Queues the reply to a call that did not have to wait.
    fn reply_now(&self, xid: u32, outcome: Outcome, held: Held) {
        drop(held);
        if let Some(message) = reply_message(xid, outcome) {
            let bytes = memory_bytes(&message);
            let share = self.share.as_ref().filter(|_| bytes > LARGE_REPLY_BYTES);
            let lease = share.map(|share| share.charge(bytes));
            let turns = self.turns().filter(|_| self.is_admitted());
            turns.into_iter().for_each(|turns| turns.moved(message.len() as i64));
            self.queue(message, lease);
        }
    }

    /// Answers a call when its turn comes. The connection reads on meanwhile.
    fn answer_in_turn(
        self: &Arc<Connection>,
        dispatcher: &Arc<Dispatcher>,
        call: Unanswered,
        asked: &Asked,
        record_bytes: usize,
        mut held: Held,
    ) {
        let Some(turns) = self.turns() else { return };
        let xid = call.call.header.xid;
        let reply_bytes = dispatcher.service.reply_bytes(asked);
        dispatcher.service.waits(self.peer);
        self.charge(&mut held, record_bytes + CALL_BYTES);
        let turn = turns.enter(record_bytes + reply_bytes);
        let (connection, dispatcher) = (self.clone(), dispatcher.clone());
        tokio::spawn(async move {
            // A call that has not begun is given up with its connection: the client sends it again.
            let Ok(Ok(turn)) = connection.unless_closed(turn).await else { return };
            connection.charge(&mut held, record_bytes + CALL_BYTES + reply_bytes);
            // Its turn has counted the reply.
            held.expected_bytes = reply_bytes as i64;
            let outcome = dispatcher.answer(call, true).await;
            drop(turn);
            connection.reply_late(xid, outcome, held);
        });
    }

    /// A call has to wait: charges its memory, and counts it as in progress.
    fn expect(&self, held: &mut Held, record_bytes: usize, reply_bytes: usize) -> Option<Turn> {
        self.charge(held, record_bytes + CALL_BYTES + reply_bytes);
        let turns = self.turns().filter(|_| self.is_admitted())?;
        self.count_expected(held, reply_bytes);
        Some(turns.count(record_bytes + reply_bytes))
    }

    /// Charges the memory of a call.
    fn charge(&self, held: &mut Held, bytes: usize) {
        let Some(share) = &self.share else { return };
        match &mut held.lease {
            Some(lease) => lease.resize(bytes),
            None => held.lease = Some(share.charge(bytes)),
        }
    }

    /// Counts the bytes of a reply before it is there.
    fn count_expected(&self, held: &mut Held, reply_bytes: usize) {
        if let Some(turns) = self.turns() {
            held.expected_bytes = reply_bytes as i64;
            turns.moved(held.expected_bytes);
        }
    }

    /// Sends the reply to a call that had to wait.
    fn reply_late(&self, xid: u32, outcome: Outcome, Held { mut lease, permit, expected_bytes }: Held) {
        let alone = self.calls() <= 1;
        let message = reply_message(xid, outcome);
        if let Some(turns) = self.turns() {
            let bytes = message.as_ref().map_or(0, |message| message.len() as i64);
            turns.moved(bytes - expected_bytes);
        }
        if let Some(message) = message {
            if let Some(lease) = &mut lease {
                lease.resize(memory_bytes(&message));
            }
            if alone {
                self.send_leased_alone(message, lease);
            } else {
                self.queue(message, lease);
                self.writer.notify_one();
            }
        }
        drop(permit);
    }
}

/// What a call holds until it is answered.
struct Held {
    lease: Option<Lease>,
    permit: OwnedSemaphorePermit,
    /// The bytes that the peer was charged for the reply.
    expected_bytes: i64,
}

/// The processor time that a connection takes until it lets others run.
struct Slice {
    began: std::time::Instant,
    records: usize,
    /// There was more at hand when the last slice was over.
    busy: Option<Busy>,
}

impl Slice {
    fn new() -> Slice {
        Slice { began: std::time::Instant::now(), records: 0, busy: None }
    }

    fn is_over(&self, turns: Option<&Arc<Turns>>) -> bool {
        self.began.elapsed() >= turns.map_or(fair::SLICE, |turns| turns.slice())
    }

    /// As [`Slice::is_over`], after one more record. Looks at the clock each time if there are other peers.
    fn is_over_after_record(&mut self, turns: Option<&Arc<Turns>>) -> bool {
        self.records += 1;
        let is_shared = turns.is_some_and(|turns| turns.is_shared());
        (is_shared || self.records.is_multiple_of(CALLS_PER_LOOK)) && self.is_over(turns)
    }

    /// Lets others run.
    async fn give_way(&mut self, turns: Option<&Arc<Turns>>) {
        if self.busy.is_none() {
            self.busy = turns.map(Turns::busy);
        }
        tokio::task::yield_now().await;
        self.began = std::time::Instant::now();
    }
}

/// Polls with a no-op waker. The task that continues with the future polls it again with a real one.
fn poll_once<T>(answering: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    Pin::new(answering).poll(&mut Context::from_waker(Waker::noop()))
}
