//! The calls: WRITEs in flight, COMMITs, and their waiters.
//!
//! Each WRITE and COMMIT runs as a task of its own. If one fsync is abandoned, the other callers that wait
//! for the same call lose nothing.
//!
//! If the origin answers DELAY or GRACE, the task waits and sends the call again. If the origin does not
//! answer, the NFS client below retries: for ever on a `hard` mount. Neither case holds up other files. A
//! WRITE that the origin put off has no slot until it is sent again, and one file never has all slots.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use vfs::{Caller, Commit, Error, Freshness, Result, SetAttributes, Status, Wcc, Written};

use super::Delayed;
use super::file::{Progress, WriteAnswer, WriteInFlight, Writes};
use super::pending::Pending;
use super::refused::Refused;
use crate::changes::{Change, OwnWrite};
use crate::core::Core;
use crate::object::{Landing, ObjectState, Opening};
use crate::table::Object;

/// How long the task waits after a DELAY or GRACE, at first and at most. Each further wait is twice as
/// long.
pub(super) const PATIENCE_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// The least that a COMMIT without a waiter makes durable. It makes the origin wait for its disk.
const COMMIT_MIN_BYTES: u64 = 64 << 20;

/// Most replies to WRITEs that are remembered of one file: each with a smaller end than the one before.
const LANDINGS_MAX: usize = 64;

/// How far a flush brings delayed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The bytes are at the origin.
    Sent,
    /// The bytes are durable there.
    Durable,
    /// The bytes are durable, and the attributes that waited for that are set.
    Stable,
}

impl Core {
    /// Runs `work` on the delayed writes of a file and updates the accounts. None if nothing is delayed.
    pub fn writes<T>(&self, object: &Arc<Object>, work: impl FnOnce(&mut Writes) -> T) -> Option<T> {
        self.writes_of(object, |_| (), |writes, ()| work(writes))
    }

    /// The same. `look` reads the file's state under the same lock.
    pub fn writes_of<P, T>(
        &self,
        object: &Arc<Object>,
        look: impl FnOnce(&ObjectState) -> P,
        work: impl FnOnce(&mut Writes, P) -> T,
    ) -> Option<T> {
        let delayed = self.delayed.as_ref()?;
        let account = |writes: &Writes| (writes.cost(), writes.bytes());
        let (result, queue, cleaned) = self.with(object, |state| {
            let seen = look(state);
            let writes = state.delayed.writes.as_mut()?;
            let before = account(writes);
            let (was_lost, losses) = (writes.is_lost(), writes.losses());
            let result = work(writes, seen);
            let after = account(writes);
            delayed.account(before, after);
            delayed.losses.count_untold(was_lost, writes.is_lost());
            if writes.losses() != losses {
                // Before any COMMIT learns that nothing waits any more.
                delayed.verifier.lost();
            }
            if let Some((fsid, before, after)) = writes.settle_claim() {
                delayed.spaces.adjust(fsid, before, after);
            }
            let cleaned = before.0 > 0 && writes.is_clean();
            // A new write frees nothing, and a file may have many runs to look at.
            if after.0 < before.0 || writes.is_clean() {
                delayed.release_journaled(writes);
            }
            if after.0 > 0 && !writes.outlast_process() {
                delayed.verifier.unentered();
            }
            let queue = if writes.queued { None } else { writes.oldest() };
            writes.queued |= queue.is_some();
            if writes.is_idle() {
                state.delayed.writes = None;
            }
            Some((result, queue, cleaned))
        })?;
        if let Some(since) = queue {
            delayed.enqueue(since, object.clone());
        }
        if cleaned {
            delayed.verifier.all_entered(|| delayed.is_clean());
            self.settle_soon(object);
            self.sync_journal_soon(delayed);
        }
        Some(result)
    }

    /// Starts a task that sends what is due, if none is running.
    pub fn kick(&self, object: &Arc<Object>) {
        if self.writes(object, Writes::begin_draining) != Some(true) {
            return;
        }
        let Some(core) = self.share() else { return };
        let object = object.clone();
        tokio::spawn(async move { core.drain(&object).await });
    }

    async fn drain(self: Arc<Core>, object: &Arc<Object>) {
        let Some(delayed) = &self.delayed else { return };
        loop {
            let Ok(permit) = delayed.slots.clone().acquire_owned().await else { return };
            let next = self.writes(object, |writes| writes.next(delayed.file_in_flight_max()));
            let Some(write) = next.flatten() else { return };
            let (core, object) = (self.clone(), object.clone());
            tokio::spawn(async move {
                core.carry_out(&object, &write, permit).await;
                core.kick(&object);
            });
        }
    }

    /// Sends one WRITE and records its reply.
    async fn carry_out(&self, object: &Arc<Object>, write: &WriteInFlight, slot: OwnedSemaphorePermit) {
        let mut slot = Some(slot);
        let answered = match self.send_one(object, write, &mut slot).await {
            Ok(None) => {
                self.writes(object, |writes| writes.put_off(write.ticket));
                return object.written.notify_waiters();
            }
            Ok(Some(written)) => {
                self.delayed.iter().for_each(Delayed::heard);
                let (count, stability, verifier) = (written.count, written.stability, written.verifier);
                self.counters.flushed_bytes.add(u64::from(count));
                let window = self.link.on_written(count.into());
                let chunk = self.write_chunk_bytes();
                self.delayed.iter().for_each(|delayed| delayed.resize(window, chunk));
                if count == 0 {
                    WriteAnswer::Refused(Status::Io)
                } else {
                    WriteAnswer::Taken { count, stability, verifier }
                }
            }
            Err(error) => WriteAnswer::Refused(error.status),
        };
        if let WriteAnswer::Refused(status) = answered
            && self.put_refused_aside(object, Refused::Write(write.ticket), status)
        {
            self.note_full(object, status);
            return object.written.notify_waiters();
        }
        match answered {
            WriteAnswer::Taken { count, .. } => {
                self.note_taken(object);
                self.note_success(object, write.offset + u64::from(count));
            }
            WriteAnswer::Refused(status) => self.note_refusal(object, status, write.bytes.len() as u64),
        }
        let unstable = self.writes(object, |writes| {
            writes.answered(write.ticket, answered);
            writes.unstable_bytes()
        });
        // A COMMIT in time: the writer of a large file shall not come to the limit and wait for it.
        let quarter = self.delayed.as_ref().map_or(u64::MAX, |delayed| delayed.options.file_max_bytes / 4);
        if unstable.is_some_and(|bytes| bytes > quarter.max(COMMIT_MIN_BYTES)) {
            self.start_commit(object);
        }
        object.written.notify_waiters();
    }

    /// A reply to a request that was sent before now may not show these bytes, and the record of them is
    /// about to go. So remember where they end.
    fn note_success(&self, object: &Arc<Object>, end: u64) {
        self.with(object, |state| {
            let landings = &mut state.delayed.landings;
            // Of those after any event, only the greatest end counts.
            while landings.back().is_some_and(|landing| landing.end <= end) {
                landings.pop_back();
            }
            if landings.len() >= LANDINGS_MAX {
                landings.pop_front();
            }
            let salt = state.delayed.writes.as_ref().and_then(|writes| writes.salt());
            landings.push_back(Landing { event: self.policy.event(), end, salt });
        });
    }

    /// Sends a WRITE until the origin answers it. `None` if the file's lease is revoked meanwhile.
    async fn send_one(
        &self,
        object: &Arc<Object>,
        write: &WriteInFlight,
        slot: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Option<Written>> {
        let range = write.offset..write.offset + write.bytes.len() as u64;
        let caller = messenger(&write.mark.writer);
        let _sending = self.begin_sending(object, &caller, write.bytes.len() as u64, slot).await;
        let own = OwnWrite::begin(self, object, range)?;
        self.sync_journal().await;
        let mut patience = PATIENCE_MIN;
        loop {
            let change = Change::of_delayed(self, object);
            let (offset, bytes) = (write.offset, write.bytes.clone());
            let sending = self.write_below(&caller, object, offset, bytes.clone(), write.stability);
            let Some(result) = self.unless_suspended(object, sending).await else { return Ok(None) };
            change.ended(result.as_ref().map(|written| &written.wcc));
            match result {
                Err(error) if wants_patience(&error) => {
                    *slot = None;
                    wait(&mut patience).await;
                    if let Some(delayed) = &self.delayed {
                        *slot = delayed.slots.clone().acquire_owned().await.ok();
                    }
                }
                Ok(written) => {
                    let kept = bytes.slice(..bytes.len().min(written.count as usize));
                    // Store them before they leave memory, because recently written bytes are often read
                    // back.
                    self.store_written(&own, write.offset, &kept).await;
                    return Ok(Some(written));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Brings everything written of a file so far to `level`. Errors stay here until a writer takes them.
    pub async fn flush_writes(&self, object: &Arc<Object>, level: Level) {
        let demand = |writes: &mut Writes, nothing_from: Option<u64>| {
            nothing_from.into_iter().for_each(|from| writes.fill_gaps(from));
            writes.demand()
        };
        let Some(upto) = self.writes_of(object, ObjectState::nothing_from, demand) else { return };
        loop {
            let changed = object.written.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            self.kick(object);
            match self.writes(object, |writes| writes.progress(upto, level)) {
                None | Some(Progress::Done) => return,
                Some(Progress::Commit) => self.start_commit(object),
                Some(Progress::SetPending) => self.start_pending(object),
                Some(Progress::Wait) => changed.await,
            }
        }
    }

    fn start_commit(&self, object: &Arc<Object>) {
        let Some(Some(commit)) = self.writes(object, Writes::begin_commit) else { return };
        let Some(core) = self.share() else { return };
        let object = object.clone();
        tokio::spawn(async move {
            let result = core.commit_below(&commit.writer, &object).await;
            core.committed(&object, commit.number, result.map_err(|error| error.status));
            object.written.notify_waiters();
        });
    }

    /// Records the reply to a COMMIT.
    fn committed(&self, object: &Arc<Object>, number: u64, result: Result<Commit, Status>) {
        match result {
            Ok(_) => self.note_taken(object),
            Err(_) if self.writes(object, |writes| writes.is_committing(number)) != Some(true) => return,
            Err(status) if self.put_refused_aside(object, Refused::Commit(number), status) => {
                return self.note_full(object, status);
            }
            Err(status) => self.note_refusal(object, status, 0),
        }
        self.writes(object, |writes| writes.end_commit(number, result.map(|commit| commit.verifier)));
    }

    /// The caller is about to set attributes while others are pending. Flushes the data, so that one
    /// SETATTR may set both. Returns the pending ones and the joined set. None if nothing is pending or it
    /// must not be joined.
    pub async fn join_pending(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        set: &SetAttributes,
    ) -> Option<(Pending, SetAttributes)> {
        let mine = |writes: &Writes| writes.pending().is_some_and(|p| p.caller.principal == caller.principal);
        self.writes(object, |writes| mine(writes)).filter(|mine| *mine)?;
        self.flush_writes(object, Level::Durable).await;
        // If a newer write has come meanwhile, the times set here are not final, whether or not the calls
        // are joined.
        let pending =
            self.writes(object, |writes| if mine(writes) { writes.begin_pending() } else { None })??;
        let joined = pending.joined(set);
        Some((pending, joined))
    }

    fn start_pending(&self, object: &Arc<Object>) {
        let Some(core) = self.share() else { return };
        let Some(Some(mut pending)) = self.writes(object, Writes::begin_pending) else { return };
        let object = object.clone();
        tokio::spawn(async move {
            let mut patience = PATIENCE_MIN;
            loop {
                let caller = messenger(&pending.caller);
                let result = core.setattr_below(&caller, &object, &pending.set(), None).await;
                if !result.as_ref().is_err_and(wants_patience) {
                    return core.end_pending(&object, &pending, result);
                }
                core.writes(&object, Writes::rest_pending);
                core.go_on(&object);
                wait(&mut patience).await;
                // Newer writes may have made some attributes void. Those writes must be durable before the
                // rest is set.
                match core.writes(&object, Writes::resume_pending).flatten() {
                    Some(now) => pending = now,
                    None => return core.go_on(&object),
                }
            }
        });
    }

    fn end_pending(&self, object: &Arc<Object>, pending: &Pending, result: Result<Wcc>) {
        if let Err(error) = &result {
            tracing::debug!("attributes of {}: {error}", object.handle);
        }
        let result = result.map(|_| ()).map_err(|error| error.status);
        self.writes(object, |writes| {
            writes.end_pending(pending, result);
            self.enter_attributes_end(writes);
        });
        self.go_on(object);
    }

    /// A call that waiters waited for is no longer in flight: wakes them and sends what is due.
    pub fn go_on(&self, object: &Arc<Object>) {
        object.written.notify_waiters();
        self.kick(object);
    }

    pub async fn commit_below(&self, writer: &Caller, object: &Arc<Object>) -> Result<Commit> {
        let caller = messenger(writer);
        let mut patience = PATIENCE_MIN;
        loop {
            let sent = self.policy.sending();
            self.counters.commit.bump();
            match self.below.commit(&caller, &object.handle, 0, 0).await {
                Err(error) if wants_patience(&error) => wait(&mut patience).await,
                Err(error) => {
                    self.note_error(object, &error, &sent);
                    return Err(error);
                }
                Ok(commit @ Commit { wcc: Wcc { after, .. }, .. }) => {
                    self.observe(object, after.as_ref(), &sent, Opening::No);
                    return Ok(commit);
                }
            }
        }
    }

    /// Flushes a file to `level`, and returns the error that no caller has received yet.
    pub async fn flush_and_tell(&self, object: &Arc<Object>, level: Level) -> Result<()> {
        self.flush_writes(object, level).await;
        self.tell_error(object)
    }

    /// The error that no caller has received yet. One of several clients does not learn of the loss of
    /// another's bytes: by the verifier, each learns what it must write again. No verifier tells of bytes
    /// that a COMMIT or a close has covered.
    pub(super) fn tell_error(&self, object: &Arc<Object>) -> Result<()> {
        let shared = self.delayed.as_ref().is_some_and(|delayed| delayed.options.shared);
        let take = |writes: &mut Writes| {
            let covered = writes.is_lost();
            writes.take_error().filter(|_| covered || !shared)
        };
        self.writes(object, take).flatten().map_or(Ok(()), |status| Err(status.into()))
    }

    /// If the file looks as if another client had changed it, commits the unstable bytes: only the verifier
    /// tells whether the origin still has them. Returns true if it was in doubt.
    pub async fn settle_doubt(&self, object: &Arc<Object>) -> bool {
        let doubtful =
            self.with(object, |state| state.delayed.writes.as_ref().is_some_and(|w| w.is_doubtful()));
        if doubtful {
            Box::pin(self.flush_writes(object, Level::Stable)).await;
        }
        doubtful
    }

    /// Flushes all files, as long as the origin takes some bytes within each `unmount_max`. The process
    /// drops the rest when it ends.
    pub async fn flush_all_writes(self: &Arc<Core>) {
        let Some(delayed) = &self.delayed else { return };
        let mut flushes = tokio::task::JoinSet::new();
        for (_, object) in self.delayed_files() {
            let core = self.clone();
            flushes.spawn(async move { core.flush_writes(&object, Level::Stable).await });
        }
        let mut headway = Headway::new(delayed.bytes(), self.counters.flushed_bytes.get());
        let patience = delayed.options.unmount_max;
        loop {
            match tokio::time::timeout(patience, flushes.join_next()).await {
                Ok(Some(_)) => {}
                Ok(None) => return self.keep_all_refused(),
                Err(_) if headway.is_made(delayed.bytes(), self.counters.flushed_bytes.get()) => {}
                Err(_) => break,
            }
        }
        tracing::error!(
            "{} took nothing for {patience:?}: {} bytes of delayed writes of {} files are not sent; what of them is in \
             the journal stays there",
            self.options.origin,
            delayed.bytes(),
            delayed.files()
        );
    }
}

/// Tells a slow origin from one that takes nothing. An origin that crashes again and again makes us resend
/// bytes: these count as progress only up to `RESENT_MAX` times the bytes that waited at the start.
struct Headway {
    bytes: u64,
    sent: u64,
    sent_max: u64,
}

impl Headway {
    const RESENT_MAX: u64 = 4;

    fn new(bytes: u64, sent: u64) -> Headway {
        Headway { bytes, sent, sent_max: sent.saturating_add(bytes.saturating_mul(Headway::RESENT_MAX)) }
    }

    /// Do fewer bytes wait than ever before, or have more been sent?
    fn is_made(&mut self, bytes: u64, sent: u64) -> bool {
        let sent = sent.min(self.sent_max);
        let made = bytes < self.bytes || sent > self.sent;
        self.bytes = self.bytes.min(bytes);
        self.sent = self.sent.max(sent);
        made
    }
}

/// The caller for a background call in the writer's name: it has no deadline, and it is not a client's
/// request.
pub fn messenger(writer: &Caller) -> Caller {
    Caller { deadline: None, resent: false, freshness: Freshness::Timeout, ..writer.clone() }
}

/// The origin has not refused. A writer without a ticket may get one.
pub(super) fn wants_patience(error: &Error) -> bool {
    matches!(error.status, Status::Delay | Status::Grace | Status::NoTicket)
}

pub(super) async fn wait(patience: &mut Duration) {
    tokio::time::sleep(*patience).await;
    *patience = (*patience * 2).min(PATIENCE_MAX);
}
