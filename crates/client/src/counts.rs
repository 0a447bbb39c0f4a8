//! Counts of what was asked of the origin: calls, bytes and time. They are kept for each procedure of version
//! 3, and for compounds of version 4 by their main operation.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::nfs3::Procedure;
use protocol::nfs4::Operation;
use rpc::latency::{Distribution, Latency};

/// The key by which calls are counted.
pub trait Counted: Copy + PartialEq + 'static {
    /// All keys.
    const EACH: &'static [Self];
    /// The key's number. It is unique and at most 255.
    fn number(self) -> u32;
}

impl Counted for Procedure {
    const EACH: &'static [Procedure] = Procedure::ALL;
    fn number(self) -> u32 {
        self as u32
    }
}

impl Counted for protocol::nqnfs::Procedure {
    const EACH: &'static [Self] = Self::ALL;
    fn number(self) -> u32 {
        self as u32
    }
}

impl Counted for protocol::nlm::v4::Procedure {
    const EACH: &'static [Self] = Self::ALL;
    fn number(self) -> u32 {
        self as u32
    }
}

impl Counted for Operation {
    const EACH: &'static [Operation] = Operation::ALL;
    fn number(self) -> u32 {
        self as u32
    }
}

/// The highest number plus one.
fn rows<P: Counted>() -> usize {
    P::EACH.iter().map(|it| it.number() as usize + 1).max().unwrap_or(0)
}

/// Running counts. The atomics are relaxed, so no order between them is guaranteed.
#[derive(Debug)]
pub(crate) struct Counting<P: Counted = Procedure> {
    rows: Box<[Running]>,
    by: PhantomData<P>,
}

impl<P: Counted> Default for Counting<P> {
    fn default() -> Counting<P> {
        let rows = std::iter::repeat_with(Running::default).take(rows::<P>()).collect();
        Counting { rows, by: PhantomData }
    }
}

#[derive(Debug, Default)]
struct Running {
    calls: AtomicU64,
    retransmitted: AtomicU64,
    failed: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    latency: Latency,
}

impl<P: Counted> Counting<P> {
    /// Notes that a call was sent, with arguments of `bytes` bytes.
    pub(crate) fn called(&self, number: u32, bytes: usize) {
        if let Some(running) = self.rows.get(number as usize) {
            running.calls.fetch_add(1, Ordering::Relaxed);
            running.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Notes that a call was answered, with results of `bytes` bytes.
    pub(crate) fn answered(&self, number: u32, bytes: usize, took: Duration, retransmitted: bool) {
        if let Some(running) = self.rows.get(number as usize) {
            running.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
            running.retransmitted.fetch_add(retransmitted.into(), Ordering::Relaxed);
            running.latency.add(took);
        }
    }

    /// Notes that a call had no results: the server did not answer in time, or refused it.
    pub(crate) fn failed(&self, number: u32) {
        if let Some(running) = self.rows.get(number as usize) {
            running.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self) -> Counts<P> {
        let of = |running: &Running| ProcedureCounts {
            calls: running.calls.load(Ordering::Relaxed),
            retransmitted: running.retransmitted.load(Ordering::Relaxed),
            failed: running.failed.load(Ordering::Relaxed),
            bytes_sent: running.bytes_sent.load(Ordering::Relaxed),
            bytes_received: running.bytes_received.load(Ordering::Relaxed),
            latency: running.latency.snapshot(),
        };
        Counts { rows: self.rows.iter().map(of).collect(), by: PhantomData }
    }
}

/// Counts at one moment since the connection was made, or between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts<P: Counted = Procedure> {
    rows: Vec<ProcedureCounts>,
    by: PhantomData<P>,
}

/// Counts of one procedure. Bytes are those of arguments and results, without RPC headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcedureCounts {
    /// Calls made. Each attempt after JUKEBOX counts as a call.
    pub calls: u64,
    /// Calls that were sent more than once before their answer came.
    pub retransmitted: u64,
    /// Calls without results.
    pub failed: u64,
    /// Bytes of arguments.
    pub bytes_sent: u64,
    /// Bytes of results.
    pub bytes_received: u64,
    /// Times between calls and their answers.
    pub latency: Distribution,
}

impl<P: Counted> Counts<P> {
    /// Counts of one procedure.
    pub fn of(&self, procedure: P) -> &ProcedureCounts {
        &self.rows[procedure.number() as usize]
    }

    /// Calls of one procedure.
    pub fn calls(&self, procedure: P) -> u64 {
        self.of(procedure).calls
    }

    /// Calls of all procedures.
    pub fn total_calls(&self) -> u64 {
        self.rows.iter().map(|procedure| procedure.calls).sum()
    }

    /// Bytes of arguments and results of all procedures.
    pub fn total_bytes(&self) -> u64 {
        self.rows.iter().map(|procedure| procedure.bytes_sent + procedure.bytes_received).sum()
    }

    /// The procedures that were called, with their counts.
    pub fn called(&self) -> impl Iterator<Item = (P, &ProcedureCounts)> {
        P::EACH.iter().map(|&it| (it, self.of(it))).filter(|(_, counts)| counts.calls > 0)
    }

    /// The counts made after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Counts<P>) -> Counts<P> {
        let rows = self.rows.iter().zip(&earlier.rows).map(|(now, then)| now.since(then)).collect();
        Counts { rows, by: PhantomData }
    }
}

impl ProcedureCounts {
    fn since(&self, earlier: &ProcedureCounts) -> ProcedureCounts {
        ProcedureCounts {
            calls: self.calls - earlier.calls,
            retransmitted: self.retransmitted - earlier.retransmitted,
            failed: self.failed - earlier.failed,
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
            latency: self.latency.since(&earlier.latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let counting = Counting::<Procedure>::default();
        counting.called(1, 8);
        counting.answered(1, 88, Duration::from_micros(100), false);
        let before = counting.snapshot();
        counting.called(1, 8);
        counting.answered(1, 88, Duration::from_micros(300), true);
        counting.called(6, 20);
        counting.failed(6);
        let all = counting.snapshot();
        assert_eq!((all.calls(Procedure::Getattr), all.total_calls()), (2, 3));
        assert_eq!(all.of(Procedure::Getattr).latency.mean(), Duration::from_micros(200));
        assert_eq!(all.of(Procedure::Getattr).latency.quantile(0.5), Duration::from_micros(128));
        assert_eq!(all.of(Procedure::Getattr).latency.quantile(1.0), Duration::from_micros(512));
        assert_eq!(all.of(Procedure::Commit).latency.quantile(0.5), Duration::ZERO);
        let since = all.since(&before);
        assert_eq!((since.calls(Procedure::Getattr), since.of(Procedure::Getattr).retransmitted), (1, 1));
        assert_eq!(
            since.called().map(|(it, _)| it).collect::<Vec<_>>(),
            [Procedure::Getattr, Procedure::Read]
        );
        assert_eq!(since.total_bytes(), 8 + 88 + 20);
    }
}
