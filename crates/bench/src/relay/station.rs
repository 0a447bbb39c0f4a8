//! An emulated server of limited capacity: it serves calls one at a time, in order of arrival, each for the
//! same time.
//!
//! This is a queue with one server, a fixed service time, and first come, first served. Several relays may
//! share one station. Their clients then share its capacity, as the clients of a load test share a server. A
//! call waits here, and goes on to the real server when its emulated service is over. The time of the real
//! server delays the reply but does not occupy the station. So the station is the bottleneck as long as the
//! real server is faster. Every call costs the same, including a retransmission. Replies to callbacks cost
//! nothing. The relay's bound on bytes in flight also bounds the waiting calls.
//!
//! The default of `bench macklem load` is [`MACKLEM`], the server of the NQNFS paper.

use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::message::Incoming;

/// A service time for Macklem's server: a DECstation 2100 of 10 MIPS with a disk of 27 ms (*Not Quite NFS*,
/// 1994, section 7).
///
/// The paper does not give the server's time per call, but the waiting time of its clients bounds it:
///
/// - In the compile phase of the DECstation 5000/25, elapsed time minus CPU time is 39 s with NFS and 11 s
///   with leases (table 3).
/// - If the delay grows from 5 to 200 ms, the phase takes 233 s and 226 s longer (table 4, UDP). So the
///   clients waited for 1200 and 1160 calls.
/// - That makes 33 ms and 9 ms per call. It includes the Ethernet's part, and the disk's part if a write was
///   waited for.
///
/// 5 ms is about half of the smaller value. It is also no more than 50,000 instructions of such a processor,
/// as for a server that seldom waits for its disk.
pub const MACKLEM: Duration = Duration::from_millis(5);

/// An emulated server; see the module.
#[derive(Debug)]
pub struct Station {
    service: Duration,
    queue: Mutex<Queue>,
}

/// Counters of a station.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Calls, including those that still wait.
    pub calls: u64,
    /// Sum of the times from the arrival of a call to the start of its service, including waits that are not
    /// over.
    pub waiting: Duration,
}

impl Served {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Served) -> Served {
        Served {
            calls: self.calls.saturating_sub(earlier.calls),
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }
}

impl Station {
    /// A station that serves each call for `service`.
    pub fn new(service: Duration) -> Station {
        Station { service, queue: Mutex::default() }
    }

    /// Service time per call.
    pub fn service(&self) -> Duration {
        self.service
    }

    /// The counters so far.
    pub fn served(&self) -> Served {
        self.queue.lock().served
    }

    /// When a message may go on: a call when it has been served, any other message at once.
    pub(super) fn take(&self, message: &Bytes) -> Instant {
        let now = Instant::now();
        match Incoming::parse(message.clone()) {
            Ok(Incoming::Call(..)) => self.queue.lock().enter(now, self.service),
            _ => now,
        }
    }
}

/// The order of the calls.
#[derive(Debug, Default)]
struct Queue {
    /// When the station will have served all calls that have arrived.
    free_at: Option<Instant>,
    served: Served,
}

impl Queue {
    /// When the service of a call that arrives `now` ends.
    fn enter(&mut self, now: Instant, service: Duration) -> Instant {
        let begins = self.free_at.map_or(now, |free| free.max(now));
        let ends = begins + service;
        self.free_at = Some(ends);
        self.served.calls += 1;
        self.served.waiting += begins - now;
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn who_comes_to_an_idle_server_is_served_at_once_and_who_comes_then_waits() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        assert_eq!(queue.enter(start, 5 * MS), start + 5 * MS);
        assert_eq!(queue.enter(start + MS, 5 * MS), start + 10 * MS);
        assert_eq!(queue.enter(start + MS, 5 * MS), start + 15 * MS);
        // An idle server accumulates no credit.
        assert_eq!(queue.enter(start + 40 * MS, 5 * MS), start + 45 * MS);
        assert_eq!(queue.served, Served { calls: 4, waiting: 13 * MS });
    }

    #[test]
    fn what_has_no_service_time_never_waits() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        for at in [0, 0, 3] {
            assert_eq!(queue.enter(start + at * MS, Duration::ZERO), start + at * MS);
        }
    }

    #[test]
    fn answers_and_what_is_no_message_go_on_at_once() {
        let station = Station::new(Duration::from_secs(1000));
        let reply =
            Bytes::from_static(&[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        for message in [reply, Bytes::new(), Bytes::from_static(b"junk")] {
            assert!(station.take(&message) <= Instant::now());
        }
        assert_eq!(station.served(), Served::default());
    }

    proptest! {
        /// Compares the queue with a simulated server that advances in steps of one millisecond.
        #[test]
        fn the_queue_is_that_of_a_server_that_works_through_a_list(
            gaps in proptest::collection::vec(0u32..12, 1..60), service in 1u32..8,
        ) {
            let start = Instant::now();
            let mut arrivals = Vec::new();
            let mut at = 0;
            gaps.iter().for_each(|gap| { at += gap; arrivals.push(at); });
            let mut queue = Queue::default();
            let ends: Vec<Instant> = arrivals.iter().map(|&at| queue.enter(start + at * MS, service * MS)).collect();

            let mut waiting = std::collections::VecDeque::new();
            let (mut serving, mut model, mut next) = (None, vec![None; arrivals.len()], 0);
            for now in 0.. {
                if let Some((call, until)) = serving && until == now {
                    let ended: &mut Option<Instant> = &mut model[call];
                    *ended = Some(start + now * MS);
                    serving = None;
                }
                while arrivals.get(next) == Some(&now) {
                    waiting.push_back(next);
                    next += 1;
                }
                if serving.is_none() {
                    serving = waiting.pop_front().map(|call| (call, now + service));
                }
                if next == arrivals.len() && serving.is_none() {
                    break;
                }
            }
            prop_assert_eq!(ends.into_iter().map(Some).collect::<Vec<_>>(), model);
        }
    }
}
