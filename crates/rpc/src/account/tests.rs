//! Tests of the account: against a simple model, and with threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::Thread;

use proptest::prelude::*;

use super::*;

const LIMIT: usize = LIMIT_MIN_BYTES;

fn peer(number: u8) -> Peer {
    Peer::from(IpAddr::from([10, 0, 0, number]))
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lease(u8, usize),
    Try(u8, usize),
    Charge(u8, usize),
    /// Drop the held lease at this index.
    Drop(usize),
    Resize(usize, usize),
    /// Give up the waiter at this index.
    GiveUp(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![1usize..SMALL_BYTES, SMALL_BYTES..(3 << 20)];
    let step = prop_oneof![
        6 => (0u8..5, bytes()).prop_map(|(peer, bytes)| Step::Lease(peer, bytes)),
        2 => (0u8..5, bytes()).prop_map(|(peer, bytes)| Step::Try(peer, bytes)),
        1 => (0u8..5, bytes()).prop_map(|(peer, bytes)| Step::Charge(peer, bytes)),
        4 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), bytes()).prop_map(|(at, bytes)| Step::Resize(at, bytes)),
        1 => any::<usize>().prop_map(Step::GiveUp),
    ];
    proptest::collection::vec(step, 1..120)
}

struct Waiting<'s> {
    peer: u8,
    leasing: Pin<Box<Leasing<'s>>>,
    flag: Arc<Flag>,
    bytes: usize,
}

impl Waiting<'_> {
    /// Waiters of one peer and size class are served in order.
    fn is_beside(&self, peer: u8, bytes: usize) -> bool {
        self.peer == peer && (self.bytes > SMALL_BYTES) == (bytes > SMALL_BYTES)
    }
}

/// The leases held, and the waiters in order of asking.
struct Model<'s> {
    account: &'s Arc<Account>,
    held: Vec<(u8, Lease)>,
    waiting: Vec<Waiting<'s>>,
    /// Some bytes were charged without waiting.
    charged: bool,
}

impl Model<'_> {
    fn used(&self, peer: u8) -> usize {
        self.held.iter().filter(|(other, _)| *other == peer).map(|(_, lease)| lease.bytes()).sum()
    }

    fn total(&self) -> usize {
        self.held.iter().map(|(_, lease)| lease.bytes()).sum()
    }

    /// Would a piece be leased if no other waited?
    fn fits(&self, peer: u8, bytes: usize) -> bool {
        let ceiling = if bytes > SMALL_BYTES { LIMIT - LIMIT / 8 } else { LIMIT };
        self.used(peer) < ceiling.saturating_sub(self.total())
    }

    /// Checks that woken waiters have what they asked for.
    fn collect(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let waiting = &mut self.waiting[at];
            if !waiting.flag.0.load(Ordering::SeqCst) {
                at += 1;
                continue;
            }
            let (peer, bytes) = (waiting.peer, waiting.bytes);
            let first = self.waiting.iter().position(|other| other.is_beside(peer, bytes));
            assert_eq!(first, Some(at), "served before one that came earlier");
            let mut served = self.waiting.remove(at);
            let waker = Waker::from(served.flag.clone());
            match served.leasing.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(lease) => self.held.push((served.peer, lease)),
                Poll::Pending => panic!("woken for nothing"),
            }
        }
    }

    fn check(&mut self) {
        self.collect();
        assert_eq!(self.account.bytes(), self.total());
        let largest = self.held.iter().map(|(_, lease)| lease.bytes()).max().unwrap_or(0);
        assert!(self.charged || self.total() <= LIMIT + largest, "{} above the limit", self.total());
        for (at, waiting) in self.waiting.iter().enumerate() {
            if !self.waiting[..at].iter().any(|other| other.is_beside(waiting.peer, waiting.bytes)) {
                assert!(!self.fits(waiting.peer, waiting.bytes), "below its share, and waits");
            }
        }
    }
}

proptest! {
    #[test]
    fn the_account_does_as_the_model(steps in steps()) {
        let account = Account::new(LIMIT);
        let shares: Vec<Arc<Share>> = (0..5).map(|number| account.share(peer(number))).collect();
        let mut model = Model { account: &account, held: Vec::new(), waiting: Vec::new(), charged: false };
        for step in steps {
            match step {
                Step::Lease(peer, bytes) => {
                    let before = model.waiting.iter().any(|waiting| waiting.is_beside(peer, bytes));
                    let (flag, fits) = (Arc::new(Flag::default()), model.fits(peer, bytes) && !before);
                    let mut leasing = Box::pin(shares[peer as usize].lease(bytes));
                    let waker = Waker::from(flag.clone());
                    match leasing.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(lease) => {
                            prop_assert!(fits);
                            model.held.push((peer, lease));
                        }
                        Poll::Pending => {
                            prop_assert!(!fits);
                            model.waiting.push(Waiting { peer, leasing, flag, bytes });
                        }
                    }
                }
                Step::Try(peer, bytes) => {
                    let before = model.waiting.iter().any(|waiting| waiting.is_beside(peer, bytes));
                    let fits = model.fits(peer, bytes) && !before;
                    let lease = shares[peer as usize].try_lease(bytes);
                    prop_assert_eq!(lease.is_some(), fits);
                    model.held.extend(lease.map(|lease| (peer, lease)));
                }
                Step::Charge(peer, bytes) => {
                    model.charged = true;
                    model.held.push((peer, shares[peer as usize].charge(bytes)));
                }
                Step::Drop(at) if !model.held.is_empty() => {
                    model.held.swap_remove(at % model.held.len());
                }
                Step::Resize(at, bytes) if !model.held.is_empty() => {
                    model.charged = true;
                    let at = at % model.held.len();
                    model.held[at].1.resize(bytes);
                }
                Step::GiveUp(at) if !model.waiting.is_empty() => {
                    model.waiting.remove(at % model.waiting.len());
                }
                Step::Drop(_) | Step::Resize(..) | Step::GiveUp(_) => {}
            }
            model.check();
        }
        // After any steps, all waiters are served once the holders have given back.
        while !model.waiting.is_empty() {
            prop_assert!(!model.held.is_empty(), "nobody holds anything, and some wait");
            model.held.clear();
            model.check();
        }
        model.held.clear();
        drop(model);
        drop(shares);
        prop_assert_eq!((account.bytes(), account.shares.lock().len()), (0, 0));
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

fn wait_for(mut leasing: Leasing<'_>) -> Lease {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut leasing).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(lease) => return lease,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// If a wake-up were lost, its thread would wait for ever: all others end and give everything back.
#[test]
fn no_wake_up_is_lost_among_threads() {
    let account = Account::new(LIMIT);
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let share = account.share(peer(number % 3));
            let account = &account;
            scope.spawn(move || {
                for round in 0..400usize {
                    let bytes = (1 << 20) + (round * 7919 + usize::from(number)) % (5 << 20);
                    let mut lease = wait_for(share.lease(bytes));
                    assert!(account.bytes() <= LIMIT + (6 << 20), "{}", account.bytes());
                    lease.resize(bytes / 2);
                    if round % 16 == 0 {
                        drop(share.lease(1)); // not polled
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(account.bytes(), 0);
}

#[test]
fn a_peer_alone_gets_half_and_one_that_holds_nothing_is_served() {
    let account = Account::new(LIMIT);
    let (greedy, modest) = (account.share(peer(1)), account.share(peer(2)));
    let held: Vec<Lease> = std::iter::from_fn(|| greedy.try_lease(SMALL_BYTES)).collect();
    assert_eq!(greedy.bytes(), LIMIT / 2);
    assert!(!greedy.is_open() && modest.is_open());
    let large = modest.try_lease(2 << 20);
    assert!(large.is_some() && modest.is_open());
    assert_eq!(account.starving_others(), None, "nobody waits");
    drop((held, large));
    assert_eq!((account.fallen_by(LIMIT), account.fallen_by(LIMIT / 2)), (0, LIMIT / 2 + (2 << 20)));
    assert_eq!(account.fallen_by(1), 0);
}

#[test]
fn small_pieces_go_on_where_large_ones_wait() {
    let account = Account::new(LIMIT);
    let share = account.share(peer(1));
    let held: Vec<Lease> = std::iter::from_fn(|| share.try_lease(1 << 20)).collect();
    let mut large = Box::pin(share.lease(1 << 20));
    let waker = Waker::from(Arc::new(Flag::default()));
    assert!(large.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(share.is_open());
    let small = share.try_lease(4 << 10).unwrap();
    assert!(share.try_lease(1 << 20).is_none(), "another comes first");
    drop((held, small));
    assert!(large.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn the_greatest_holder_is_named_when_another_starves() {
    let account = Account::new(LIMIT);
    let all: Vec<Arc<Share>> = (0..6).map(|number| account.share(peer(number))).collect();
    let held: Vec<Lease> = all.iter().map(|share| share.charge(LIMIT / 6 + 1)).collect();
    let more = all[3].charge(LIMIT / 8);
    let late = account.share(peer(9));
    let mut leasing = Box::pin(late.lease(100));
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    assert!(leasing.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(account.starving_others(), Some(peer(3)));
    drop((held, more));
    assert!(flag.0.load(Ordering::SeqCst));
}

#[test]
fn all_addresses_of_a_network_of_one_host_are_one_peer() {
    let of = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.2"), of("10.0.0.1"));
}
