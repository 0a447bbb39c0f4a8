//! Space that is reserved for holders of write leases (`space_limit` of a delegation, RFC 8881, section
//! 10.4.1).
//!
//! A holder may delay writes as long as its file stays within the limit. Therefore each promise is
//! subtracted from the free space of the file system. Each promise is smaller than the last, and all
//! together never exceed an eighth of the free space. A holder that writes within its limit consumes its
//! promise. A promise ends with its lease.
//!
//! A WRITE by another client may need space so that less than the promised amount would remain. Then space
//! is **short**: all leases with a promise are recalled, no new promise is made, and unpromised writes get
//! DELAY. This lasts until all promises have ended, or for [`SHORT_MAX`]. By then the holders have written
//! their data. So no write fails because of a promise: the file system itself reports when it is full.
//!
//! The kernel reports the free space at each promise, and again each time half of the remaining space has
//! been written. So a WRITE does not ask where space is plentiful.
//!
//! **Not covered** are: space taken by processes of this machine, quotas that statvfs(3) does not show, and
//! the space for overwriting on file systems with copy-on-write.
//!
//! Promise: space-set-aside-by-serve

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Handle, SharedHandle, Status};

/// Allocation unit of file systems.
const BLOCK_BYTES: u64 = 4096;
/// Limit of a promise in bytes.
const PROMISE_MAX: u64 = 64 << 20;
/// A promise takes the free and unpromised space divided by this, so that even the last of many leases gets
/// some.
const DIVISOR: u64 = 1024;
/// All promises together take at most the free space divided by this.
const PROMISED_DIVISOR: u64 = 8;
/// How long writers wait at most for holders to write their promised data. It is shorter than the time for
/// a recall: a holder that writes beyond its own promise while it is recalled waits as well.
const SHORT_MAX: Duration = Duration::from_secs(5);

/// All promises of one exported directory.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    state: Mutex<State>,
    /// Number of promises.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    accounts: HashMap<u64, Account>,
    files: HashMap<SharedHandle, Promise>,
}

#[derive(Debug, Default)]
struct Account {
    /// Bytes that are promised and not consumed.
    promised: u64,
    /// Bytes that may be written before the kernel is asked again.
    slack: u64,
    /// Bytes that WRITEs in flight may take: the kernel does not count them as used yet.
    in_flight: u64,
    /// The time since which space is short.
    short: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Promise {
    fsid: u64,
    limit: u64,
    left: u64,
}

/// May a file grow?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It may. `counted` bytes are in flight until [`Promises::written`].
    Yes { counted: u64 },
    /// Not before the holders have written their promised data. `first`: the caller must recall their
    /// leases.
    Short { first: bool },
}

/// A file that is about to grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth<'a> {
    pub(crate) fsid: u64,
    pub(crate) handle: &'a Handle,
    /// Start of the bytes for which the file may have no space yet.
    pub(crate) from: u64,
    /// End of the bytes to write.
    pub(crate) to: u64,
}

impl Growth<'_> {
    /// Bytes that it takes at most.
    fn needed(&self) -> u64 {
        blocks(self.to).saturating_sub(blocks(self.from))
    }
}

/// Bytes that a WRITE may take, counted until this is dropped.
#[must_use]
#[derive(Debug)]
pub(crate) struct InFlight<'a> {
    promises: &'a Promises,
    fsid: u64,
    counted: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.promises.written(self.fsid, self.counted);
    }
}

impl Account {
    /// Records that space is short, since `now` if it was not before.
    fn is_short(&mut self, now: Instant) -> Taken {
        let first = self.short.is_none();
        let since = *self.short.get_or_insert(now);
        if now < since + SHORT_MAX { Taken::Short { first } } else { Taken::Yes { counted: 0 } }
    }
}

impl Promises {
    /// Promises space for a file of `size` bytes, as the free space permits. Returns the size up to which
    /// space is reserved. A second call for a file returns the same limit.
    pub(crate) fn make(&self, fsid: u64, handle: &Handle, size: u64, available: u64) -> u64 {
        let mut state = self.state.lock();
        if let Some(promise) = state.files.get(handle.as_bytes()) {
            return promise.limit;
        }
        let account = state.accounts.entry(fsid).or_default();
        let available = available.saturating_sub(account.in_flight);
        let most = if account.short.is_some() { 0 } else { available / PROMISED_DIVISOR };
        let rest = most.saturating_sub(account.promised);
        let left = (rest / DIVISOR).min(PROMISE_MAX) / BLOCK_BYTES * BLOCK_BYTES;
        account.promised += left;
        account.slack = 0;
        let limit = size.saturating_add(left);
        state.files.insert(SharedHandle::new(handle), Promise { fsid, limit, left });
        self.count.store(state.files.len(), Ordering::Release);
        limit
    }

    /// Ends the promise of a file, with its lease.
    pub(crate) fn end(&self, handle: &Handle) {
        if self.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let State { accounts, files } = &mut *state;
        if let Some(promise) = files.remove(handle.as_bytes())
            && let Some(account) = accounts.get_mut(&promise.fsid)
        {
            debug_assert!(account.promised >= promise.left, "{account:?} lacks the rest of {promise:?}");
            account.promised = account.promised.saturating_sub(promise.left);
        }
        self.count.store(files.len(), Ordering::Release);
    }

    /// Is there no promise at all?
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// A file was truncated: the freed space is promised again, up to the limit of the promise.
    pub(crate) fn cut(&self, handle: &Handle, from: u64, to: u64) {
        if self.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let State { accounts, files } = &mut *state;
        if let Some(promise) = files.get_mut(handle.as_bytes())
            && let Some(account) = accounts.get_mut(&promise.fsid)
        {
            let freed = blocks(from.min(promise.limit)).saturating_sub(blocks(to));
            promise.left += freed;
            account.promised += freed;
            account.slack = 0;
        }
    }

    /// A file is about to grow, from its own promise or from unpromised space.
    ///
    /// # Errors
    /// The kernel does not report the free space.
    pub(crate) fn take(
        &self,
        growth: &Growth<'_>,
        now: Instant,
        available: impl FnOnce() -> Result<u64, Status>,
    ) -> Result<Taken, Status> {
        let needed = growth.needed();
        let mut state = self.state.lock();
        let State { accounts, files } = &mut *state;
        let Some(account) = accounts.get_mut(&growth.fsid).filter(|_| needed > 0) else {
            return Ok(Taken::Yes { counted: 0 });
        };
        let promise = files.get_mut(growth.handle.as_bytes());
        let own = promise.as_ref().map_or(0, |promise| promise.left);
        if let Some(promise) = promise.filter(|promise| growth.to <= promise.limit) {
            let used = needed.min(promise.left);
            promise.left -= used;
            debug_assert!(account.promised >= used, "{account:?} lacks {used} bytes of a promise");
            account.promised = account.promised.saturating_sub(used);
        } else if account.promised <= own {
            // No other file has a promise: the file system itself reports when it is full.
            account.short = None;
        } else if account.slack >= needed {
            account.slack -= needed;
        } else {
            let taken = (account.promised - own).saturating_add(account.in_flight);
            let Some(left) = available()?.saturating_sub(taken).checked_sub(needed) else {
                return Ok(account.is_short(now));
            };
            account.slack = left / 2;
        }
        account.in_flight = account.in_flight.saturating_add(needed);
        Ok(Taken::Yes { counted: needed })
    }

    /// The guard for bytes that [`take`](Promises::take) has counted.
    pub(crate) fn in_flight(&self, fsid: u64, counted: u64) -> InFlight<'_> {
        InFlight { promises: self, fsid, counted }
    }

    /// Bytes counted by [`take`](Promises::take) are written, or will not be.
    fn written(&self, fsid: u64, counted: u64) {
        if counted == 0 {
            return;
        }
        if let Some(account) = self.state.lock().accounts.get_mut(&fsid) {
            debug_assert!(account.in_flight >= counted, "{account:?} lacks {counted} bytes in flight");
            account.in_flight = account.in_flight.saturating_sub(counted);
        }
    }

    /// The files whose leases must be recalled because space is short.
    pub(crate) fn holders(&self) -> Vec<Handle> {
        let state = self.state.lock();
        let holding = state.files.iter().filter(|(_, promise)| promise.left > 0);
        holding.map(|(handle, _)| handle.handle()).collect()
    }
}

/// Rounds up to entire blocks.
fn blocks(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FSID: u64 = 1;

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).unwrap()
    }

    #[test]
    fn each_promise_is_smaller_and_comes_back_with_its_lease() {
        let promises = Promises::default();
        let free = 8 << 30;
        let first = promises.make(FSID, &handle(1), 0, free);
        let second = promises.make(FSID, &handle(2), 0, free);
        assert!(first == 1 << 20 && second < first && second > 0);
        assert_eq!(promises.make(FSID, &handle(1), 5000, 0), first, "what was said stands");
        promises.end(&handle(1));
        promises.end(&handle(2));
        assert!(promises.is_empty());
        assert_eq!(promises.make(FSID, &handle(3), 500, free), 500 + first);
        assert_eq!(promises.make(FSID, &handle(4), 500, 0), 500, "nothing is left");
    }

    #[test]
    fn when_space_is_short_others_wait_for_holders_and_not_for_ever() {
        let (promises, now) = (Promises::default(), Instant::now());
        let (holder, other) = (handle(1), handle(2));
        let limit = promises.make(FSID, &holder, 0, 1 << 30);
        let growth = |handle, to| Growth { fsid: FSID, handle, from: 0, to };
        let take = |growth: Growth<'_>, now| {
            let taken = promises.take(&growth, now, || Ok(limit + BLOCK_BYTES)).unwrap();
            let Taken::Yes { counted } = taken else { return taken };
            drop(promises.in_flight(FSID, counted));
            Taken::Yes { counted: 0 }
        };
        let yes = Taken::Yes { counted: 0 };
        assert_eq!(take(growth(&other, BLOCK_BYTES), now), yes, "it is promised to nobody");
        assert_eq!(take(growth(&other, 2 * BLOCK_BYTES), now), Taken::Short { first: true });
        assert_eq!(take(growth(&other, 2 * BLOCK_BYTES), now), Taken::Short { first: false });
        assert_eq!(promises.holders(), [holder]);
        assert_eq!(promises.make(FSID, &other, 0, 1 << 40), 0, "nothing new is promised");
        assert_eq!(take(growth(&holder, limit), now), yes);
        assert_eq!(take(growth(&other, 2 * BLOCK_BYTES), now), yes, "nothing is owed");
        // A holder that does not write.
        promises.end(&holder);
        promises.end(&other);
        promises.make(FSID, &holder, 0, 1 << 30);
        assert_eq!(take(growth(&other, 1 << 20), now), Taken::Short { first: true });
        assert_eq!(take(growth(&other, 1 << 20), now + SHORT_MAX), yes);
    }

    #[test]
    fn writes_at_once_do_not_take_the_same_space_twice() {
        let (promises, now) = (Promises::default(), Instant::now());
        let (holder, other) = (handle(1), handle(2));
        let limit = promises.make(FSID, &holder, 0, 1 << 30);
        let growth = Growth { fsid: FSID, handle: &other, from: 0, to: limit };
        // Twice the promise is free. The kernel counts no WRITE before it has ended.
        let take = || promises.take(&growth, now, || Ok(2 * limit)).unwrap();
        let Taken::Yes { counted } = take() else { panic!("it is promised to nobody") };
        let in_flight = promises.in_flight(FSID, counted);
        assert_eq!((counted, take()), (limit, Taken::Short { first: true }));
        drop(in_flight);
        assert!(matches!(take(), Taken::Yes { .. }));
    }

    /// Operations of clients.
    #[derive(Clone, Debug)]
    enum Step {
        Grant(u8),
        Return(u8),
        /// A WRITE at the end of the file.
        Write(u8, u64),
        Remove(u8),
        /// Truncates to this percentage of the size.
        Cut(u8, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let file = 0..8u8;
        prop_oneof![
            1 => file.clone().prop_map(Step::Grant),
            1 => file.clone().prop_map(Step::Return),
            3 => (file.clone(), prop_oneof![1..10_000u64, 1..8u64 << 20]).prop_map(|(file, bytes)| Step::Write(file, bytes)),
            1 => (file.clone(), 0..100u64).prop_map(|(file, percent)| Step::Cut(file, percent)),
            1 => file.prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn a_holder_writes_up_to_its_limit_whatever_others_write(
            capacity in 0..64u64 << 20,
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let (promises, now) = (Promises::default(), Instant::now());
            let (mut sizes, mut limits) = ([0u64; 8], [None; 8]);
                let free = |sizes: &[u64]| capacity.saturating_sub(sizes.iter().map(|size| blocks(*size)).sum());
            for step in steps {
                match step {
                    Step::Grant(file) => {
                        let at = usize::from(file);
                        limits[at] = Some(promises.make(FSID, &handle(file), sizes[at], free(&sizes)));
                    }
                    Step::Return(file) => {
                        promises.end(&handle(file));
                        limits[usize::from(file)] = None;
                    }
                    Step::Remove(file) => {
                        promises.end(&handle(file));
                        (limits[usize::from(file)], sizes[usize::from(file)]) = (None, 0);
                    }
                    Step::Cut(file, percent) => {
                        let size = &mut sizes[usize::from(file)];
                        let from = std::mem::replace(size, *size * percent / 100);
                        promises.cut(&handle(file), from, *size);
                    }
                    Step::Write(file, bytes) => {
                        let at = usize::from(file);
                        let to = sizes[at] + bytes;
                        let handle = handle(file);
                        let growth = Growth { fsid: FSID, handle: &handle, from: sizes[at], to };
                        let taken = promises.take(&growth, now, || Ok(free(&sizes))).unwrap();
                        let counted = if let Taken::Yes { counted } = taken { Some(counted) } else { None };
                        let taken = counted.is_some();
                        drop(promises.in_flight(FSID, counted.unwrap_or(0)));
                        let within = limits[at].is_some_and(|limit| to <= limit);
                        prop_assert!(taken || !within, "it was promised");
                        let fits = blocks(to) - blocks(sizes[at]) <= free(&sizes);
                        prop_assert!(fits || !within, "others have taken it");
                        if taken && fits {
                            sizes[at] = to;
                        }
                    }
                }
                let owed: u64 = sizes.iter().zip(limits).map(|(size, limit)| limit.map_or(0, |limit| limit.saturating_sub(blocks(*size)))).sum();
                prop_assert!(owed <= free(&sizes), "more is promised than there is");
            }
        }
    }
}
