//! The calls: WRITEs in flight, COMMITs, and those who wait for them.
//!
//! WRITEs and COMMITs are tasks of their own: who gives up waiting for fsync takes nothing from those who share it. An
//! origin that asks for patience (DELAY, GRACE) gets it; one that does not answer is the client's business, which on a
//! `hard` mount tries for ever. Neither is to hold up other files: a WRITE that was put off takes up no slot until it is
//! sent again, and one file never has all of them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use vfs::{Caller, Commit, Error, Freshness, Result, SetAttributes, Status, Wcc, Written};

use super::file::{Progress, WriteAnswer, WriteInFlight, Writes};
use super::pending::Pending;
use crate::core::Core;
use crate::filesystem::modify::Change;
use crate::filler::OwnWrite;
use crate::object::{ObjectState, Opening};
use crate::table::Object;

/// How long an origin that asks for patience is left alone, at first and at most.
const PATIENCE_MIN: Duration = Duration::from_millis(100);
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// Landings of a file that are remembered.
const LANDINGS_MAX: usize = 64;

/// How far delayed writes are to have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// At the origin.
    Sent,
    /// Durable there.
    Durable,
    /// And what is to be set when it is, is set.
    Stable,
}

impl Core {
    /// Does something with the delayed writes of a file, if there are any, and keeps the accounts.
    pub fn writes<T>(&self, object: &Arc<Object>, work: impl FnOnce(&mut Writes) -> T) -> Option<T> {
        self.writes_of(object, |_| (), |writes, ()| work(writes))
    }

    /// The same, with something that is known of the file at that moment.
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
            let writes = state.writes.as_mut()?;
            let before = account(writes);
            let was_lost = writes.is_lost();
            let result = work(writes, seen);
            delayed.account(before, account(writes));
            delayed.losses.count_untold(was_lost, writes.is_lost());
            if let Some((fsid, before, after)) = writes.settle_claim() {
                delayed.spaces.adjust(fsid, before, after);
            }
            let cleaned = before.0 > 0 && writes.is_clean();
            let queue = if writes.queued { None } else { writes.oldest() };
            writes.queued |= queue.is_some();
            if writes.is_idle() {
                state.writes = None;
            }
            Some((result, queue, cleaned))
        })?;
        if let Some(since) = queue {
            delayed.enqueue(since, object.clone());
        }
        if cleaned {
            self.settle_soon(object);
        }
        Some(result)
    }

    /// Sends what is due, by a task.
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

    /// One WRITE, from here to its end.
    async fn carry_out(&self, object: &Arc<Object>, write: &WriteInFlight, slot: OwnedSemaphorePermit) {
        let mut slot = Some(slot);
        let answered = match self.send_one(object, write, &mut slot).await {
            Ok(written) => {
                let (count, stability, verifier) = (written.count, written.stability, written.verifier);
                self.counters.flushed_bytes.add(u64::from(count));
                if count == 0 {
                    WriteAnswer::Refused(Status::Io)
                } else {
                    WriteAnswer::Taken { count, stability, verifier }
                }
            }
            Err(error) => WriteAnswer::Refused(error.status),
        };
        match answered {
            WriteAnswer::Taken { count, .. } => {
                self.note_taken(object);
                self.note_success(object, write.offset + u64::from(count));
            }
            WriteAnswer::Refused(status) => self.note_refusal(object, status, write.bytes.len() as u64),
        }
        self.writes(object, |writes| writes.answered(write.ticket, answered));
        object.written.notify_waiters();
    }

    /// What is asked of the file by now may be answered without these bytes, which will be forgotten here.
    fn note_success(&self, object: &Arc<Object>, end: u64) {
        self.with(object, |state| {
            if state.landings.len() >= LANDINGS_MAX {
                state.landings.pop_front();
            }
            state.landings.push_back((self.policy.event(), end));
        });
    }

    async fn send_one(
        &self,
        object: &Arc<Object>,
        write: &WriteInFlight,
        slot: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Written> {
        let range = write.offset..write.offset + write.bytes.len() as u64;
        let caller = messenger(&write.mark.writer);
        let _sending = self.begin_sending(object, &caller, write.bytes.len() as u64, slot).await;
        let own = OwnWrite::begin(self, object, range)?;
        let mut patience = PATIENCE_MIN;
        loop {
            let change = Change::begin(self, object);
            let (offset, bytes) = (write.offset, write.bytes.clone());
            let result = self.write_below(&caller, object, offset, bytes.clone(), write.stability).await;
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
                    // Before it is taken out of memory: what was just written is read back from here.
                    self.store_written(&own, write.offset, &kept).await;
                    return Ok(written);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Brings what has been written of a file by now this far. Errors wait for a writer to be told.
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
        let Some(Some(writer)) = self.writes(object, Writes::begin_commit) else { return };
        let Some(core) = self.share() else { return };
        let object = object.clone();
        tokio::spawn(async move {
            let result = core.commit_below(&writer, &object).await;
            let result = result.map(|commit| commit.verifier).map_err(|error| error.status);
            match result {
                Ok(_) => core.note_taken(&object),
                Err(status) => core.note_refusal(&object, status, 0),
            }
            core.writes(&object, |writes| writes.end_commit(result));
            object.written.notify_waiters();
        });
    }

    /// Attributes are about to be set while others wait to be: once all is durable, one SETATTR may set both. None if it
    /// may not, or there are none.
    pub async fn join_pending(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        set: &SetAttributes,
    ) -> Option<(Pending, SetAttributes)> {
        let mine = |writes: &Writes| writes.pending().is_some_and(|p| p.caller.principal == caller.principal);
        self.writes(object, |writes| mine(writes)).filter(|mine| *mine)?;
        self.flush_writes(object, Level::Durable).await;
        // Something newer may have been written meanwhile: what is set then is not the last word either way.
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
                // Newer writes may have made it void, and have to be durable before what they left of it.
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
        self.writes(object, |writes| writes.end_pending(pending, result));
        self.go_on(object);
    }

    /// What others waited for is no longer on its way.
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

    /// The same, and the error that nobody has been told of yet.
    pub async fn flush_and_tell(&self, object: &Arc<Object>, level: Level) -> Result<()> {
        self.flush_writes(object, level).await;
        match self.writes(object, Writes::take_error).flatten() {
            Some(status) => Err(status.into()),
            None => Ok(()),
        }
    }

    /// Commits what is unstable of a file that looks as if it had been changed elsewhere: only then is it known whether
    /// the origin still has what we wrote. True if it was so.
    pub async fn settle_doubt(&self, object: &Arc<Object>) -> bool {
        let doubtful = self.with(object, |state| state.writes.as_ref().is_some_and(|w| w.is_doubtful()));
        if doubtful {
            self.flush_writes(object, Level::Stable).await;
        }
        doubtful
    }

    /// Sends everything of all files, for as long as the origin takes some of it now and then. The rest is lost when the
    /// process ends.
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
                Ok(None) => return,
                Err(_) if headway.is_made(delayed.bytes(), self.counters.flushed_bytes.get()) => {}
                Err(_) => break,
            }
        }
        tracing::error!(
            "{} took nothing for {patience:?}: {} bytes of delayed writes of {} files are lost",
            self.options.origin,
            delayed.bytes(),
            delayed.files()
        );
    }
}

/// Tells an origin that is slow from one that takes nothing. Bytes that are sent again, as to an origin that goes down time
/// after time, count only up to a multiple of those there were.
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

    /// Are there fewer bytes than at any time before, or have more been sent?
    fn is_made(&mut self, bytes: u64, sent: u64) -> bool {
        let sent = sent.min(self.sent_max);
        let made = bytes < self.bytes || sent > self.sent;
        self.bytes = self.bytes.min(bytes);
        self.sent = self.sent.max(sent);
        made
    }
}

/// Who sends in a writer's name: nobody waits for it, and it is no request of a client.
pub fn messenger(writer: &Caller) -> Caller {
    Caller { deadline: None, resent: false, freshness: Freshness::Timeout, ..writer.clone() }
}

fn wants_patience(error: &Error) -> bool {
    matches!(error.status, Status::Delay | Status::Grace)
}

async fn wait(patience: &mut Duration) {
    tokio::time::sleep(*patience).await;
    *patience = (*patience * 2).min(PATIENCE_MAX);
}
