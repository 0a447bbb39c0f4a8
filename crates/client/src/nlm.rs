//! Byte-range locks at an origin of version 3: the client of its lock manager (NLM 4; X/Open XNFS C702,
//! chapters 10 and 14).
//!
//! All locks of our clients are also the origin's. Each owner is a process of this host to the origin, with
//! a number of its own ([`table`]). No request waits at the origin: the layers above ask again, as they do
//! for every protocol.
//!
//! NLM locks have no term. Three things follow:
//! - A process that is killed leaves its locks at the origin. They are recorded ([`record`]). The next
//!   process takes them over or gives them up.
//! - An origin that restarts has lost them. Clients reclaim them in its grace period. Its restart ends every
//!   connection, so each new connection reclaims ([`recovery`]).
//! - If the requester of a lock has gone when the grant arrives, the lock is given back.

mod lockd;
mod record;
mod recovery;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nlm::{Holder, Stat};
use tokio::sync::{Notify, OwnedMutexGuard};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use vfs::locks::{LockRange, LockRanges};
use vfs::{
    AdoptedOpen, Caller, Combinations, Handle, Lock, LockKind, LockRequest, Locked, OpenId, Owner, Principal,
    Result, Share, Shares, Status,
};

use crate::connect::link_options;
use crate::counts::ProcedureCounts;
use crate::journal::fields::TooLarge;
use crate::journal::{Journal, boot};
use crate::url::Url;
pub(crate) use lockd::Whereabouts;
use lockd::{Lockd, Place, range_of, status};
pub(crate) use record::Past;
use table::{Held, Table};

/// The pause after a request in the origin's grace period: at first and at most.
const GRACE_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));
/// How often, and after which pause, a lock manager is looked for that an earlier process has used.
const FIND_AGAIN_MAX: u32 = 10;
const FIND_PAUSE: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the locks that it gives up.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Marks the owner of another client, in the place where our owners have 0 or 1.
const FOREIGN: [u8; 9] = [0, 0, 0, 0, 0, 0, 0, 0, 0xff];

/// See the module.
#[derive(Debug)]
pub(crate) struct LockManager {
    url: String,
    lockd: Lockd,
    /// How long an operation may take on a `soft` mount.
    soft: Option<Duration>,
    recorded: Mutex<Recorded>,
    /// The process does not leave its locks to a next one.
    leaves_nothing: AtomicBool,
    /// A lock was taken, so the connection must be watched; or the manager is gone.
    changed: Arc<Notify>,
}

/// The answer to a LOCK.
struct Answer {
    locked: Locked,
    /// The ranges that the owner held before.
    before: LockRanges,
    /// Held until the requester has heard the answer.
    turn: OwnedMutexGuard<()>,
}

/// The table, and the journal that records it.
#[derive(Debug)]
struct Recorded {
    table: Table,
    journal: Option<Journal>,
    /// The oldest connection on which a lock that is held may have been granted.
    connection: Option<lockd::Connection>,
}

impl LockManager {
    /// Looks for the origin's lock manager. `None` if it has none. Takes over the locks of an earlier
    /// process.
    pub(crate) async fn connect(url: &Url, whereabouts: Whereabouts, past: Past) -> Option<Arc<LockManager>> {
        let program = (protocol::nlm::v4::PROGRAM, protocol::nlm::v4::VERSION);
        // The options were right when the export was mounted.
        let options = link_options(url, whereabouts.nfs, program).ok()?;
        let mut found = Lockd::find(whereabouts.clone(), options.clone()).await;
        // The server had a lock manager, so it will have one again.
        for _ in 0..FIND_AGAIN_MAX {
            if found.is_some() || past.locks.is_empty() {
                break;
            }
            sleep(FIND_PAUSE).await;
            found = Lockd::find(whereabouts.clone(), options.clone()).await;
        }
        let lockd = found?;
        let mut random = [0; 4];
        // Without randomness, use the process id.
        if getrandom::fill(&mut random).is_err() {
            random = std::process::id().to_ne_bytes();
        }
        let table = Table::new(u32::from_ne_bytes(random));
        let recorded = Recorded { table, journal: None, connection: None };
        let manager = Arc::new(LockManager {
            url: url.to_string(),
            lockd,
            soft: url.options.patience(),
            recorded: Mutex::new(recorded),
            leaves_nothing: AtomicBool::new(false),
            changed: Arc::default(),
        });
        manager.take_over(past);
        tokio::spawn(recovery::watch(Arc::downgrade(&manager), manager.changed.clone()));
        Some(manager)
    }

    /// The locks of an earlier process are held from now on. If they cannot be reclaimed, they are given up.
    fn take_over(self: &Arc<LockManager>, past: Past) {
        if past.locks.is_empty() {
            return;
        }
        if past.is_of_another_boot {
            let manager = self.clone();
            tokio::spawn(async move {
                for (handle, _, held) in past.locks {
                    manager.release(&handle, &held).await;
                }
            });
            return;
        }
        self.change(|table| {
            past.locks.into_iter().for_each(|(handle, owner, held)| table.adopt(handle, owner, held));
        });
        self.recorded.lock().connection = Some(lockd::Connection::BEFORE);
        self.changed.notify_one();
    }

    /// The locks that are held since before this process. A range in doubt is not among them: [`recovery`]
    /// gives it up.
    pub(crate) fn adopted(&self) -> Vec<AdoptedOpen> {
        let Recorded { table, .. } = &*self.recorded.lock();
        let open = |id: OpenId| {
            let owners = table.owners(id);
            let principal = owners.first()?.1.principal.clone();
            let locks = owners.iter().flat_map(|(owner, held)| {
                let mut sure = held.ranges.clone();
                held.doubt.iter().for_each(|doubt| sure.unlock(doubt.start, doubt.end));
                sure.iter().map(|range| range.lock(owner)).collect::<Vec<_>>()
            });
            let shares = Shares::from(Share::all());
            let mut had = Combinations::default();
            had.add(shares);
            let handle = table.file(id)?.0;
            Some(AdoptedOpen { id, handle, shares, had, principal, locks: locks.collect() })
        };
        table.locked_files().into_iter().filter_map(open).collect()
    }

    /// Registers a file, so that it can be locked.
    pub(crate) fn open(&self, handle: Handle) -> Result<OpenId> {
        Ok(self.change(|table| table.open(handle))?)
    }

    /// Ends the registration of a file, and gives up the locks in it.
    pub(crate) async fn close(&self, id: OpenId) {
        let Some((handle, turn)) = self.recorded.lock().table.file(id) else { return };
        let _turn = turn.lock_owned().await;
        let held = self.recorded.lock().table.owners(id);
        for (_, held) in &held {
            self.release(&handle, held).await;
        }
        self.change(|table| drop(table.close(id)));
    }

    /// UNLOCK of all that an owner holds in a file.
    async fn release(&self, handle: &Handle, held: &Held) {
        let range = LockRange { start: 0, end: u64::MAX, kind: LockKind::Exclusive };
        let place = Place { handle, svid: held.svid, range };
        if let Err(error) = self.unlock_after_grace(&held.principal, place).await {
            tracing::debug!("UNLOCK of {handle}: {error}");
        }
    }

    /// LOCK.
    pub(crate) async fn lock(
        self: &Arc<LockManager>,
        caller: &Caller,
        id: OpenId,
        request: &LockRequest,
    ) -> Result<Locked> {
        let asker = self.with_deadline(caller);
        let (manager, lock) = (self.clone(), request.lock.clone());
        let work = {
            let asker = asker.clone();
            async move { manager.run_lock(&asker, id, &lock).await }
        };
        let (manager, lock, principal) = (self.clone(), request.lock.clone(), caller.principal.clone());
        let work = vfs::run_to_completion_or(work, move |unheard| {
            // The turn is still held, so no later request of the owner has come in between.
            if let Ok(Answer { locked: Locked::Granted, before, turn }) = unheard {
                tokio::spawn(async move {
                    manager.restore(&principal, id, &lock, &before).await;
                    drop(turn);
                });
            }
        });
        Ok(self.within(&asker, work).await?.locked)
    }

    async fn run_lock(&self, caller: &Caller, id: OpenId, lock: &Lock) -> Result<Answer> {
        let range = LockRange::of(lock);
        let mut pause = GRACE_PAUSE.0;
        loop {
            let (handle, turn) = self.turn(caller, id).await?;
            self.settle_doubt(id, &handle, &lock.owner).await?;
            let held = self.recorded.lock().table.held(id, &lock.owner).cloned();
            let before = held.map(|held| held.ranges).unwrap_or_default();
            let svid = self.change(|table| table.begin_lock(id, &lock.owner, &caller.principal, range))?;
            let place = Place { handle: &handle, svid, range };
            let connection = self.lockd.connection();
            let answer = self.lockd.lock(&caller.principal, place, false).await;
            let connection = connection.unwrap_or_else(|| self.lockd.connection().unwrap_or_default());
            let granted = matches!(answer, Ok(Stat::Granted)).then_some(range);
            self.change(|table| table.locked(id, &lock.owner, granted));
            match answer {
                Ok(Stat::Granted) => {
                    self.recorded.lock().connection.get_or_insert(connection);
                    self.changed.notify_one();
                    return Ok(Answer { locked: Locked::Granted, before, turn });
                }
                Ok(Stat::DeniedGracePeriod) => {
                    // Meanwhile, the other locks of the file are reclaimed.
                    drop(turn);
                    sleep(pause).await;
                    pause = (pause * 2).min(GRACE_PAUSE.1);
                }
                Ok(Stat::Denied | Stat::Blocked) => {
                    let other = self.ask(&caller.principal, place).await.ok().flatten();
                    let locked = Locked::Denied(other.unwrap_or_else(|| unknown(lock)));
                    return Ok(Answer { locked, before, turn });
                }
                Ok(other) => return Err(status(other).into()),
                Err(error) => {
                    // It may be held all the same.
                    self.restore(&caller.principal, id, lock, &before).await;
                    return Err(error);
                }
            }
        }
    }

    /// An UNLOCK of the owner, or a call of an earlier process, was not answered: gives up its range. In the
    /// origin's grace period that is left to [`recovery`]. The caller holds the file's turn.
    async fn settle_doubt(&self, id: OpenId, handle: &Handle, owner: &Owner) -> Result<()> {
        let held = self.recorded.lock().table.held(id, owner).cloned();
        let Some((held, range)) = held.and_then(|held| held.doubt.map(|doubt| (held, doubt))) else {
            return Ok(());
        };
        let place = Place { handle, svid: held.svid, range };
        if self.lockd.unlock(&held.principal, place).await? != Stat::DeniedGracePeriod {
            self.change(|table| table.unlocked(id, owner, range));
        }
        Ok(())
    }

    /// Nobody has heard of a LOCK that may have been granted: the range gets the locks that it had before.
    /// The caller holds the file's turn.
    async fn restore(&self, principal: &Principal, id: OpenId, lock: &Lock, before: &LockRanges) {
        let range = LockRange::of(lock);
        let Some((handle, _)) = self.recorded.lock().table.file(id) else { return };
        for gap in before.gaps(range) {
            // The owner has its number only as long as the table has an entry.
            let Ok(svid) = self.change(|table| table.begin_lock(id, &lock.owner, principal, gap)) else {
                return;
            };
            let place = Place { handle: &handle, svid, range: gap };
            if let Err(error) = self.unlock_after_grace(principal, place).await {
                tracing::debug!("UNLOCK of {handle}: {error}");
            }
            self.change(|table| table.unlocked(id, &lock.owner, gap));
        }
        for part in before.within(range) {
            let Ok(svid) = self.change(|table| table.begin_lock(id, &lock.owner, principal, part)) else {
                return;
            };
            let place = Place { handle: &handle, svid, range: part };
            let kept = matches!(self.lockd.lock(principal, place, false).await, Ok(Stat::Granted));
            self.change(|table| table.locked(id, &lock.owner, kept.then_some(part)));
        }
    }

    /// Waits for the caller's turn to call about a file.
    async fn turn(&self, caller: &Caller, id: OpenId) -> Result<(Handle, OwnedMutexGuard<()>)> {
        let (handle, turn) = self.recorded.lock().table.file(id).ok_or(Status::BadStateId)?;
        let turn = turn.lock_owned().await;
        // The caller has been told that it failed, and may have asked again.
        if caller.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Status::Delay.into());
        }
        // The file may have been given up meanwhile.
        self.recorded.lock().table.file(id).ok_or(Status::BadStateId)?;
        Ok((handle, turn))
    }

    /// UNLOCK.
    pub(crate) async fn unlock(
        self: &Arc<LockManager>,
        caller: &Caller,
        id: OpenId,
        owner: &Owner,
        range: (u64, u64),
    ) -> Result<()> {
        let asker = self.with_deadline(caller);
        let (manager, owner) = (self.clone(), owner.clone());
        let range =
            LockRange { start: range.0, end: range.0.saturating_add(range.1), kind: LockKind::Exclusive };
        let work = {
            let asker = asker.clone();
            async move { manager.run_unlock(&asker, id, &owner, range).await }
        };
        self.within(&asker, vfs::run_to_completion(work)).await
    }

    async fn run_unlock(&self, caller: &Caller, id: OpenId, owner: &Owner, range: LockRange) -> Result<()> {
        let mut pause = GRACE_PAUSE.0;
        loop {
            let (handle, turn) = self.turn(caller, id).await?;
            let Some(held) = self.change(|table| table.begin_unlock(id, owner, range)) else { return Ok(()) };
            let place = Place { handle: &handle, svid: held.svid, range };
            match self.lockd.unlock(&caller.principal, place).await? {
                // A file that is gone has no locks.
                Stat::Granted | Stat::StaleFh => {
                    self.change(|table| table.unlocked(id, owner, range));
                    return Ok(());
                }
                Stat::DeniedGracePeriod => {
                    // Meanwhile, the other locks of the file are reclaimed.
                    drop(turn);
                    sleep(pause).await;
                    pause = (pause * 2).min(GRACE_PAUSE.1);
                }
                other => {
                    self.change(|table| table.locked(id, owner, None));
                    return Err(status(other).into());
                }
            }
        }
    }

    /// UNLOCK, as often as the origin is in its grace period.
    async fn unlock_after_grace(&self, principal: &Principal, place: Place<'_>) -> Result<()> {
        let mut pause = GRACE_PAUSE.0;
        loop {
            match self.lockd.unlock(principal, place).await? {
                // A file that is gone has no locks.
                Stat::Granted | Stat::StaleFh => return Ok(()),
                Stat::DeniedGracePeriod => {
                    sleep(pause).await;
                    pause = (pause * 2).min(GRACE_PAUSE.1);
                }
                other => return Err(status(other).into()),
            }
        }
    }

    /// TEST: the lock that conflicts, if there is one.
    pub(crate) async fn test(&self, caller: &Caller, handle: &Handle, lock: &Lock) -> Result<Option<Lock>> {
        let svid = self.recorded.lock().table.svid_for_test(&lock.owner);
        let place = Place { handle, svid, range: LockRange::of(lock) };
        let asker = self.with_deadline(caller);
        self.within(&asker, self.ask(&caller.principal, place)).await
    }

    async fn ask(&self, principal: &Principal, place: Place<'_>) -> Result<Option<Lock>> {
        let mut pause = GRACE_PAUSE.0;
        loop {
            match self.lockd.test(principal, place).await? {
                Ok(holder) => return Ok(Some(range_of(&holder).lock(&self.owner_of(&holder)))),
                Err(Stat::Granted) => return Ok(None),
                Err(Stat::DeniedGracePeriod) => {
                    sleep(pause).await;
                    pause = (pause * 2).min(GRACE_PAUSE.1);
                }
                Err(other) => return Err(status(other).into()),
            }
        }
    }

    /// The owner of a conflicting lock. An owner of another client must differ from all of ours. Some servers
    /// do not say the owner's handle, but all say the number.
    fn owner_of(&self, holder: &Holder<u64>) -> Owner {
        let is_ours = holder.oh.is_empty() || holder.oh[..] == holder.svid.to_be_bytes();
        if is_ours && let Some(owner) = self.recorded.lock().table.owner_of(holder.svid) {
            return owner.clone();
        }
        Owner([&FOREIGN[..], &holder.svid.to_be_bytes(), &holder.oh].concat().into())
    }

    /// Does the owner hold a lock in the file?
    pub(crate) fn holds(&self, id: OpenId, owner: &Owner) -> bool {
        self.recorded.lock().table.holds(id, owner)
    }

    /// The number of registered files.
    pub(crate) fn files(&self) -> usize {
        self.recorded.lock().table.len()
    }

    /// The calls made so far.
    pub(crate) fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        let counts = self.lockd.counting.snapshot();
        counts.called().map(|(procedure, counts)| (procedure.name(), *counts)).collect()
    }

    /// Records the locks in a file beside `path` from now on, for the next process.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn keep_record(&self, path: &Path) -> std::io::Result<()> {
        let too_large = |_| std::io::Error::other("the URL is too long");
        let mut entries = record::origin(&self.url, boot().as_deref()).map_err(too_large)?;
        let mut recorded = self.recorded.lock();
        drop(recorded.table.take_touched());
        for id in recorded.table.locked_files() {
            let Some((handle, _)) = recorded.table.file(id) else { continue };
            for (owner, held) in recorded.table.owners(id) {
                let value = record::locks(&handle, &owner, &held).map_err(too_large)?;
                entries.insert(record::key(&handle, &owner), value);
            }
        }
        recorded.journal = Some(Journal::begin(&beside(path), &entries)?);
        Ok(())
    }

    /// The next process takes nothing over.
    pub(crate) fn leave_nothing(&self) {
        self.leaves_nothing.store(true, Ordering::Relaxed);
    }

    /// Gives up all locks, unless they are recorded for the next process. Waits for at most `LEAVE_MAX`.
    pub(crate) async fn shutdown(self: &Arc<LockManager>) {
        let leaves_them =
            self.recorded.lock().journal.is_some() && !self.leaves_nothing.load(Ordering::Relaxed);
        if leaves_them {
            return;
        }
        let files = self.recorded.lock().table.all_files();
        let mut closing = tokio::task::JoinSet::new();
        for id in files {
            let manager = self.clone();
            closing.spawn(async move { manager.close(id).await });
        }
        let all = async { while closing.join_next().await.is_some() {} };
        if timeout(LEAVE_MAX, all).await.is_err() {
            // The record stays, so that the next process gives them up.
            tracing::warn!("{}: the locks could not be given up in time", self.lockd.server());
            return;
        }
        if let Some(Err(error)) = self.recorded.lock().journal.take().map(Journal::abandon) {
            tracing::debug!(%error, "the record of locks could not be removed");
        }
    }

    /// The caller, whose deadline is not after the patience of a `soft` mount.
    fn with_deadline(&self, caller: &Caller) -> Caller {
        let soft = self.soft.map(|soft| Instant::now() + soft);
        Caller { deadline: caller.deadline.into_iter().chain(soft).min(), ..caller.clone() }
    }

    /// Waits for a result until the caller's deadline.
    async fn within<T>(&self, caller: &Caller, work: impl Future<Output = Result<T>>) -> Result<T> {
        let status = if self.soft.is_some() { Status::Io } else { Status::Delay };
        match caller.deadline {
            Some(end) => timeout_at(end, work).await.map_err(|_| status)?,
            None => work.await,
        }
    }

    /// Changes the table, and records the change before anybody relies on it.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut recorded = self.recorded.lock();
        let changed = change(&mut recorded.table);
        recorded.record();
        changed
    }
}

impl Drop for LockManager {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

impl Recorded {
    fn record(&mut self) {
        let touched = self.table.take_touched();
        let Some(journal) = self.journal.as_mut().filter(|_| !touched.is_empty()) else { return };
        for (handle, owner, held) in touched {
            let key = record::key(&handle, &owner);
            match held.map(|held| record::locks(&handle, &owner, &held)) {
                Some(Ok(value)) => journal.put(&key, &value),
                // UNLOCKs have left more ranges than a record has. The entry before them covers all.
                Some(Err(TooLarge)) => {}
                None => journal.remove(&key),
            }
        }
        if let Err(error) = journal.flush() {
            tracing::error!(
                "the record of locks could not be written ({error}); free some space and restart, or the \
                 origin keeps the locks of this process if it is killed"
            );
            // An incomplete record must not be relied on.
            if let Some(Err(error)) = self.journal.take().map(Journal::abandon) {
                tracing::error!("the record of locks could not be removed: {error}");
            }
        }
    }
}

/// The lock in the way of a denied one, if TEST does not name it: it has gone since, or TEST overlooks it
/// (that of Linux 6.1 overlooks shared locks).
fn unknown(lock: &Lock) -> Lock {
    Lock { owner: Owner(FOREIGN.to_vec().into()), kind: LockKind::Exclusive, ..lock.clone() }
}

/// The file of the record, beside that of another protocol's state.
pub(crate) fn beside(path: &Path) -> std::path::PathBuf {
    path.with_extension("locks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal;

    /// The next process must give up all that may be held, so the record may say too much, never too little.
    #[test]
    fn what_is_too_much_for_the_record_leaves_the_entry_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.locks");
        let url = "nfs://filer/export?vers=3";
        let journal = Journal::begin(&path, &record::origin(url, None).unwrap()).unwrap();
        let mut recorded = Recorded { table: Table::new(0), journal: Some(journal), connection: None };
        let owner = Owner(vec![1].into());
        let range = |start, end| LockRange { start, end, kind: LockKind::Exclusive };
        let id = recorded.table.open(Handle::new(&[1; 8]).unwrap()).unwrap();
        let most = table::RANGES_MAX as u64 - 1;
        for start in (0..most).map(|n| n * 10) {
            recorded.table.begin_lock(id, &owner, &Principal::Machine, range(start, start + 3)).unwrap();
            drop(recorded.table.take_touched());
            recorded.table.locked(id, &owner, Some(range(start, start + 3)));
        }
        recorded.record();
        // Each of these UNLOCKs leaves one range more.
        for start in (0..5).map(|n| n * 10) {
            recorded.table.begin_unlock(id, &owner, range(start + 1, start + 2)).unwrap();
            recorded.table.unlocked(id, &owner, range(start + 1, start + 2));
            recorded.record();
        }
        let contents = journal::read(&path).unwrap().unwrap();
        let past = Past::parse(&contents, url, None).unwrap();
        let (_, _, held) = &past.locks[0];
        assert_eq!(held.ranges.iter().count(), table::RANGES_MAX);
        let now = recorded.table.held(id, &owner).unwrap();
        assert!(now.ranges.iter().all(|range| held.ranges.gaps(range).is_empty()));
    }
}
