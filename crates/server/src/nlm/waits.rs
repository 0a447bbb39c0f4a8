//! Lock requests that wait (BLOCKED), until the client has acknowledged its GRANTED.
//!
//! A pure state machine: time comes in, and work that is due comes out. A request first *waits*: the front
//! attempts the lock when it is notified, and now and then besides, because a lock at the origin may become
//! free without a notice. When the lock is held, the request is *granted*: the front calls the client until
//! it answers. A granted request without an answer stays, because the client may have got the call and its
//! answer may be lost. Giving the lock to another client would then break it.
//!
//! The request ends when the client accepts or refuses GRANTED, gets the lock by asking again, cancels or
//! unlocks, or restarts.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use vfs::locks::LockRange;
use vfs::{HolderId, Lock, LockKind, Owner};

use crate::exports::ExportId;
use crate::state::stateids::FileKey;

/// Limit of waiting requests of all hosts.
const WAITS_MAX: usize = 16_384;
/// Limit of waiting requests of one host.
const WAITS_PER_HOST_MAX: usize = 1024;
/// The pauses between two attempts.
const ATTEMPT_PAUSES: Pauses = Pauses { first: Duration::from_secs(1), longest: Duration::from_secs(15) };
/// The pauses between two calls of GRANTED.
const CALL_PAUSES: Pauses = Pauses { first: Duration::from_secs(5), longest: Duration::from_secs(60) };

/// Pauses that double.
struct Pauses {
    first: Duration,
    longest: Duration,
}

/// A request: the same host, owner, file and range ask again for the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitKey {
    pub(super) holder: HolderId,
    pub(super) file: FileKey,
    pub(super) owner: Owner,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) exclusive: bool,
}

impl WaitKey {
    pub(super) fn new(holder: HolderId, file: FileKey, lock: &Lock) -> WaitKey {
        let exclusive = lock.kind == LockKind::Exclusive;
        WaitKey {
            holder,
            file,
            owner: lock.owner.clone(),
            offset: lock.offset,
            length: lock.length,
            exclusive,
        }
    }
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Another owner's lock conflicts.
    Waiting,
    /// The lock is held, and the client does not know it yet.
    Granted,
}

/// The answer of a client to GRANTED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The client takes the lock.
    Accepted,
    /// The client does not wait for the lock.
    Refused,
    /// There was no answer.
    Silent,
}

/// The tables of waiting requests are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
struct Wait<R> {
    key: WaitKey,
    request: R,
    stage: Stage,
    due: Instant,
    pause: Duration,
    /// The front is at work on it.
    busy: bool,
    /// A notice came while the front was at work.
    again: bool,
}

/// See the module. `R` is what the front needs to do the work.
#[derive(Debug)]
pub(super) struct Waits<R> {
    by_number: HashMap<u64, Wait<R>>,
    numbers: HashMap<WaitKey, u64>,
    per_host: HashMap<HolderId, usize>,
    /// The requests that are not busy, by the time of their next work.
    queue: BTreeSet<(Instant, u64)>,
    next: u64,
}

impl<R> Default for Waits<R> {
    fn default() -> Waits<R> {
        Waits {
            by_number: HashMap::new(),
            numbers: HashMap::new(),
            per_host: HashMap::new(),
            queue: BTreeSet::new(),
            next: 1,
        }
    }
}

impl<R: Clone> Waits<R> {
    /// Enters a request that was denied. A request that waits already keeps its place.
    ///
    /// # Errors
    /// If there are too many of this host, or of all.
    pub(super) fn block(&mut self, now: Instant, key: WaitKey, request: R) -> Result<(), Full> {
        if let Some(number) = self.numbers.get(&key).copied() {
            match self.by_number.get_mut(&number) {
                Some(wait) if wait.stage == Stage::Waiting => {
                    wait.request = request;
                    return Ok(());
                }
                // The lock that was granted is lost. The client must not hear of it any more.
                _ => drop(self.remove(number)),
            }
        }
        let of_host = self.per_host.get(&key.holder).copied().unwrap_or(0);
        if of_host >= WAITS_PER_HOST_MAX || self.by_number.len() >= WAITS_MAX {
            return Err(Full);
        }
        self.per_host.insert(key.holder, of_host + 1);
        let number = self.next;
        self.next += 1;
        let (pause, due) = (ATTEMPT_PAUSES.first, now + ATTEMPT_PAUSES.first);
        self.numbers.insert(key.clone(), number);
        self.queue.insert((due, number));
        let stage = Stage::Waiting;
        self.by_number.insert(number, Wait { key, request, stage, due, pause, busy: false, again: false });
        Ok(())
    }

    /// Removes a request, and says how far it was.
    pub(super) fn take(&mut self, key: &WaitKey) -> Option<Stage> {
        let number = *self.numbers.get(key)?;
        self.remove(number).map(|wait| wait.stage)
    }

    /// Removes the requests of an owner for bytes of this range of a file. Returns the ranges that were
    /// granted.
    pub(super) fn take_within(&mut self, holder: HolderId, file: &FileKey, lock: &Lock) -> Vec<LockRange> {
        let meets = |wait: &Wait<R>| {
            let WaitKey { holder: of, file: on, owner, offset, length, .. } = &wait.key;
            let is_owners = (*of, on, owner) == (holder, file, &lock.owner);
            is_owners && *offset < lock.end() && lock.offset < offset.saturating_add(*length)
        };
        let taken = self.take_all(holder, meets);
        let granted = taken.into_iter().filter(|wait| wait.stage == Stage::Granted);
        let range = |WaitKey { offset, length, exclusive, .. }: WaitKey| LockRange {
            start: offset,
            end: offset.saturating_add(length),
            kind: if exclusive { LockKind::Exclusive } else { LockKind::Shared },
        };
        granted.map(|wait| range(wait.key)).collect()
    }

    /// Removes all requests of a host.
    pub(super) fn take_host(&mut self, holder: HolderId) {
        self.take_all(holder, |wait| wait.key.holder == holder);
    }

    /// Does the host wait for anything on this file?
    pub(super) fn any_on(&self, holder: HolderId, file: &FileKey) -> bool {
        self.has(holder)
            && self.by_number.values().any(|wait| wait.key.holder == holder && wait.key.file == *file)
    }

    /// Does the host wait for anything?
    pub(super) fn has(&self, holder: HolderId) -> bool {
        self.per_host.contains_key(&holder)
    }

    /// A lock that this owner waits for may be free. True if it waits for one on the file.
    pub(super) fn notified(&mut self, now: Instant, holder: HolderId, file: &FileKey, owner: &Owner) -> bool {
        if !self.has(holder) {
            return false;
        }
        let mut any = false;
        for (number, wait) in &mut self.by_number {
            let WaitKey { holder: of, file: on, owner: by, .. } = &wait.key;
            if (*of, on, by) != (holder, file, owner) || wait.stage != Stage::Waiting {
                continue;
            }
            any = true;
            wait.again = wait.busy;
            if !wait.busy {
                self.queue.remove(&(wait.due, *number));
                wait.due = now;
                self.queue.insert((now, *number));
            }
        }
        any
    }

    /// When work is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Takes one piece of work that is due. The front must report its end.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        let (due, number) = *self.queue.first()?;
        if due > now {
            return None;
        }
        self.queue.remove(&(due, number));
        if let Some(wait) = self.by_number.get_mut(&number) {
            wait.busy = true;
        }
        Some(number)
    }

    /// A request, by its number.
    pub(super) fn get(&self, number: u64) -> Option<(&WaitKey, Stage, R)> {
        self.by_number.get(&number).map(|wait| (&wait.key, wait.stage, wait.request.clone()))
    }

    /// An attempt has ended.
    pub(super) fn attempted(&mut self, now: Instant, number: u64, granted: bool) {
        let Some(wait) = self.by_number.get_mut(&number) else { return };
        wait.busy = false;
        if granted {
            (wait.stage, wait.due, wait.pause) = (Stage::Granted, now, CALL_PAUSES.first);
        } else if std::mem::take(&mut wait.again) {
            wait.due = now;
        } else {
            wait.due = now + wait.pause;
            wait.pause = (wait.pause * 2).min(ATTEMPT_PAUSES.longest);
        }
        self.queue.insert((wait.due, number));
    }

    /// A call of GRANTED has ended. Returns the request if this ended it. Silence of a client that is not
    /// being called says nothing new: the request has its place in the queue.
    pub(super) fn answered(&mut self, now: Instant, number: u64, answer: Answer) -> Option<WaitKey> {
        let wait = self.by_number.get_mut(&number).filter(|wait| wait.stage == Stage::Granted)?;
        match answer {
            Answer::Silent if !wait.busy => None,
            Answer::Silent => {
                wait.busy = false;
                wait.due = now + wait.pause;
                wait.pause = (wait.pause * 2).min(CALL_PAUSES.longest);
                self.queue.insert((wait.due, number));
                None
            }
            Answer::Accepted | Answer::Refused => self.remove(number).map(|wait| wait.key),
        }
    }

    /// Number of requests.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Removes all requests for files of an export.
    pub(super) fn take_export(&mut self, export: ExportId) {
        let these = self.by_number.iter().filter(|(_, wait)| wait.key.file.export == export);
        let these: Vec<u64> = these.map(|(number, _)| *number).collect();
        these.into_iter().for_each(|number| drop(self.remove(number)));
    }

    fn take_all(&mut self, holder: HolderId, which: impl Fn(&Wait<R>) -> bool) -> Vec<Wait<R>> {
        if !self.has(holder) {
            return Vec::new();
        }
        let these = self.by_number.iter().filter(|(_, wait)| which(wait)).map(|(number, _)| *number);
        let these: Vec<u64> = these.collect();
        these.into_iter().filter_map(|number| self.remove(number)).collect()
    }

    fn remove(&mut self, number: u64) -> Option<Wait<R>> {
        let wait = self.by_number.remove(&number)?;
        self.numbers.remove(&wait.key);
        self.queue.remove(&(wait.due, number));
        if let Some(of_host) = self.per_host.get_mut(&wait.key.holder) {
            *of_host -= 1;
            if *of_host == 0 {
                self.per_host.remove(&wait.key.holder);
            }
        }
        Some(wait)
    }
}

#[cfg(test)]
mod tests;
