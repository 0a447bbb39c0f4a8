//! The account of bytes in flight: the memory that requests and replies of all peers may use.
//!
//! A peer is an address. The account charges a peer for records being read from it, for its calls in
//! progress, and for replies that it has not taken. Each charge is a [`Lease`]; dropping the lease gives the
//! bytes back. A peer gets more bytes as long as it holds less than what is left of the limit. So one peer
//! alone gets half of the limit, and two peers get a third each. A peer that holds nothing is served as long
//! as anything is left. A piece above [`SMALL_BYTES`] is leased only up to seven eighths of the limit, so
//! small requests proceed while large ones fill the rest.
//!
//! If a peer already holds its share, [`Share::lease`] waits. The wait is the back pressure: a connection
//! that waits is not read from. Waiters of one peer are served in order, with one queue for small pieces and
//! one for large ones. So a peer whose WRITEs wait can still return its delegations. [`Share::charge`]
//! charges bytes that exist already without waiting, for example a reply whose size was not known before. So
//! the total is at most the limit, plus one piece, plus the bytes charged without waiting.
//!
//! The module is sans-I/O: it has no clock and no runtime, only wakers. A charge costs two atomic operations;
//! only waiting takes the lock.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::fair::{Fair, Sharing, Turns};

/// A piece up to this size may use the whole limit.
pub const SMALL_BYTES: usize = 64 << 10;
/// Most handshakes of TLS that one peer makes at once. Further ones wait.
const HANDSHAKES_MAX: usize = 16;
/// The smallest limit: a few records of the largest size.
pub const LIMIT_MIN_BYTES: usize = 16 << 20;

/// The unit that is charged: an IPv4 address, or the /64 network of an IPv6 address, because one host has all
/// its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Peer {
        Peer(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Size class of a piece. Each class has its own ceiling and its own queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    Large,
}

impl Size {
    fn of(bytes: usize) -> Size {
        if bytes > SMALL_BYTES { Size::Large } else { Size::Small }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Account {
    limit: usize,
    fair: Arc<Fair>,
    total: AtomicUsize,
    /// The highest total since [`Account::fallen_by`] was asked.
    peak: AtomicUsize,
    /// Number of waiting pieces.
    waiting: AtomicUsize,
    queues: Mutex<Vec<Queue>>,
    shares: Mutex<HashMap<Peer, Weak<Share>>>,
}

/// The waiters of one peer and one size class, in order.
#[derive(Debug)]
struct Queue {
    share: Arc<Share>,
    size: Size,
    waiters: VecDeque<Arc<Waiter>>,
}

/// The bytes of one peer.
#[derive(Debug)]
pub struct Share {
    account: Arc<Account>,
    peer: Peer,
    used: AtomicUsize,
    /// Number of waiters in each size class.
    waiting: [AtomicUsize; 2],
    /// The handshakes of TLS that the peer may make at once.
    handshakes: Arc<Semaphore>,
    turns: Arc<Turns>,
}

/// Bytes charged to a peer, until it is dropped.
#[derive(Debug)]
pub struct Lease {
    share: Arc<Share>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiter {
    bytes: usize,
    /// The waker to call. `None` once the bytes are charged.
    waker: Mutex<Option<Waker>>,
}

/// Waits for a [`Lease`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Leasing<'s> {
    share: &'s Arc<Share>,
    bytes: usize,
    waiter: Option<Arc<Waiter>>,
}

impl Account {
    /// An account with a limit of `limit` bytes, but at least [`LIMIT_MIN_BYTES`]. Rates are not limited.
    pub fn new(limit: usize) -> Arc<Account> {
        Account::beside(limit, Fair::new(Sharing::default()))
    }

    /// As [`Account::new`], for the peers of `fair`.
    pub fn beside(limit: usize, fair: Arc<Fair>) -> Arc<Account> {
        Arc::new(Account {
            limit: limit.max(LIMIT_MIN_BYTES),
            fair,
            total: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queues: Mutex::default(),
            shares: Mutex::default(),
        })
    }

    /// The share of a peer.
    pub fn share(self: &Arc<Account>, peer: Peer) -> Arc<Share> {
        let mut shares = self.shares.lock();
        if let Some(share) = shares.get(&peer).and_then(Weak::upgrade) {
            return share;
        }
        let share = Arc::new(Share {
            account: self.clone(),
            peer,
            used: AtomicUsize::new(0),
            waiting: Default::default(),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            turns: self.fair.turns(peer),
        });
        shares.insert(peer, Arc::downgrade(&share));
        share
    }

    /// The turns of the peers, which they share besides memory.
    pub fn fair(&self) -> &Arc<Fair> {
        &self.fair
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.total.load(SeqCst)
    }

    /// Bytes that may be charged.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How far the total has fallen from its peak, or zero if that is less than `bytes`. A nonzero answer
    /// resets the peak.
    pub fn fallen_by(&self, bytes: usize) -> usize {
        let total = self.bytes();
        let fallen = self.peak.load(SeqCst).saturating_sub(total);
        if fallen < bytes {
            return 0;
        }
        self.peak.store(total, SeqCst);
        fallen
    }

    /// The peer that holds the most, if it holds more than an equal part of the limit while a peer below that
    /// part waits.
    pub fn starving_others(&self) -> Option<Peer> {
        if self.waiting.load(SeqCst) == 0 {
            return None;
        }
        let used = |share: &Share| share.used.load(SeqCst);
        let holders: Vec<(usize, Peer)> = {
            let shares = self.shares.lock();
            // The last reference must not be dropped under the lock.
            let alive: Vec<Arc<Share>> = shares.values().filter_map(Weak::upgrade).collect();
            drop(shares);
            alive.iter().map(|share| (used(share), share.peer)).filter(|(used, _)| *used > 0).collect()
        };
        let part = self.limit / (holders.len() + 1);
        let starved = self.queues.lock().iter().any(|queue| used(&queue.share) < part);
        let greatest = holders.into_iter().max().filter(|(used, _)| *used > part)?;
        starved.then_some(greatest.1)
    }

    /// The part of the limit that pieces of this size class may use.
    fn ceiling(&self, bytes: usize) -> usize {
        match Size::of(bytes) {
            Size::Small => self.limit,
            Size::Large => self.limit - self.limit / 8,
        }
    }

    fn note_peak(&self, total: usize) {
        // A race may lose a peak. The only effect is that memory is trimmed later.
        if total > self.peak.load(SeqCst) {
            self.peak.store(total, SeqCst);
        }
    }

    /// Serves waiters, in each queue from the front, as long as their peer is below its share.
    fn serve(&self) {
        let mut woken = Vec::new();
        let mut emptied = Vec::new();
        {
            let mut queues = self.queues.lock();
            for queue in queues.iter_mut() {
                while let Some(first) = queue.waiters.front()
                    && queue.share.take(first.bytes)
                {
                    woken.extend(first.waker.lock().take());
                    queue.waiters.pop_front();
                    self.leave(&queue.share, queue.size);
                }
            }
            let mut at = 0;
            while at < queues.len() {
                if queues[at].waiters.is_empty() {
                    emptied.push(queues.swap_remove(at));
                } else {
                    at += 1;
                }
            }
        }
        // Run these without the lock: a waker may do anything, and dropping a share removes its entry.
        drop(emptied);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Removes one waiter from the counters.
    fn leave(&self, share: &Share, size: Size) {
        share.waiting[size as usize].fetch_sub(1, SeqCst);
        self.waiting.fetch_sub(1, SeqCst);
    }
}

impl Queue {
    fn is_of(&self, share: &Arc<Share>, size: Size) -> bool {
        self.size == size && Arc::ptr_eq(&self.share, share)
    }
}

impl Share {
    /// Would a small piece be leased now?
    pub fn is_open(&self) -> bool {
        !self.has_waiters(Size::Small)
            && self.used.load(SeqCst) < self.account.limit.saturating_sub(self.account.bytes())
    }

    /// Charges bytes if the peer is below its share and has no waiters in that size class.
    pub fn try_lease(self: &Arc<Share>, bytes: usize) -> Option<Lease> {
        (!self.has_waiters(Size::of(bytes)) && self.take(bytes)).then(|| Lease { share: self.clone(), bytes })
    }

    /// The turns of the peer.
    pub(crate) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    fn has_waiters(&self, size: Size) -> bool {
        self.waiting[size as usize].load(SeqCst) > 0
    }

    /// Charges bytes as soon as the peer is below its share.
    pub fn lease(self: &Arc<Share>, bytes: usize) -> Leasing<'_> {
        Leasing { share: self, bytes, waiter: None }
    }

    /// Charges bytes that exist already, without waiting.
    pub fn charge(self: &Arc<Share>, bytes: usize) -> Lease {
        self.add(bytes);
        Lease { share: self.clone(), bytes }
    }

    /// Waits until the peer may make one more handshake of TLS.
    pub(crate) async fn handshake(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        self.handshakes.clone().acquire_owned().await.ok()
    }

    /// Bytes charged to the peer.
    pub fn bytes(&self) -> usize {
        self.used.load(SeqCst)
    }

    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, SeqCst);
        let total = self.account.total.fetch_add(bytes, SeqCst) + bytes;
        self.account.note_peak(total);
    }

    /// Charges bytes if the peer is below its share.
    fn take(&self, bytes: usize) -> bool {
        let account = &self.account;
        let ceiling = account.ceiling(bytes);
        let charged = account.total.fetch_update(SeqCst, SeqCst, |total| {
            (self.used.load(SeqCst) < ceiling.saturating_sub(total)).then_some(total + bytes)
        });
        let Ok(before) = charged else { return false };
        self.used.fetch_add(bytes, SeqCst);
        account.note_peak(before + bytes);
        true
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
        self.account.total.fetch_sub(bytes, SeqCst);
        // A waiter increments `waiting` before its last look at the total. So either the waiter sees these
        // bytes, or we see the waiter.
        if self.account.waiting.load(SeqCst) > 0 {
            self.account.serve();
        }
    }
}

impl Drop for Account {
    /// No share is left, so no peer holds bytes or waits for them.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            debug_assert_eq!(self.total.load(SeqCst), 0, "bytes in flight at the end of an account");
            debug_assert_eq!(self.waiting.load(SeqCst), 0, "waiting pieces at the end of an account");
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            debug_assert_eq!(self.used.load(SeqCst), 0, "bytes in flight at the end of a peer's share");
        }
        let mut shares = self.account.shares.lock();
        // A new share may have been made for the peer meanwhile.
        if shares.get(&self.peer).is_some_and(|share| share.strong_count() == 0) {
            shares.remove(&self.peer);
        }
    }
}

impl Lease {
    /// Changes the charge to `bytes`, which exist already.
    pub fn resize(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        match bytes.checked_sub(before) {
            Some(more) => self.share.add(more),
            None => self.share.give_back(before - bytes),
        }
    }

    /// The bytes of this lease.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.share.give_back(self.bytes);
        }
    }
}

impl Future for Leasing<'_> {
    type Output = Lease;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Lease> {
        let (share, bytes) = (self.share, self.bytes);
        let granted = || Poll::Ready(Lease { share: share.clone(), bytes });
        if let Some(waiter) = &self.waiter {
            let mut waker = waiter.waker.lock();
            if waker.is_some() {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(waker);
            self.waiter = None;
            return granted();
        }
        let size = Size::of(bytes);
        if !share.has_waiters(size) && share.take(bytes) {
            return granted();
        }
        let waiter = Arc::new(Waiter { bytes, waker: Mutex::new(Some(context.waker().clone())) });
        {
            let mut queues = share.account.queues.lock();
            share.waiting[size as usize].fetch_add(1, SeqCst);
            share.account.waiting.fetch_add(1, SeqCst);
            match queues.iter_mut().find(|queue| queue.is_of(share, size)) {
                Some(queue) => queue.waiters.push_back(waiter.clone()),
                None => {
                    queues.push(Queue { share: share.clone(), size, waiters: [waiter.clone()].into() });
                }
            }
        }
        self.waiter = Some(waiter);
        // Bytes may have come back between the attempt and the entry. If `serve` finds us, it calls the
        // waker.
        share.account.serve();
        Poll::Pending
    }
}

impl Drop for Leasing<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let mut queues = self.share.account.queues.lock();
        if waiter.waker.lock().is_none() {
            drop(queues);
            self.share.give_back(self.bytes); // served, but not wanted any more
            return;
        }
        let size = Size::of(self.bytes);
        if let Some(queue) = queues.iter_mut().find(|queue| queue.is_of(self.share, size)) {
            queue.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
        }
        self.share.account.leave(self.share, size);
        drop(queues);
        // The next waiter of the peer may want fewer bytes.
        self.share.account.serve();
    }
}

#[cfg(test)]
mod tests;
