//! Messages, and what becomes of them.

use vfs::LeaseKind;

/// A client's request to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// READ, with a request for a read lease of `seconds` seconds. Zero means no request.
    Read { file: usize, seconds: u32 },
    /// GETLEASE.
    Getlease { file: usize, kind: LeaseKind, seconds: u32 },
    /// WRITE. One that is not under a write lease asks for a lease, which distinguishes it.
    Write { file: usize, value: u64, through: bool },
    /// VACATED.
    Vacated { file: usize },
    /// VACATED of everything.
    Everything,
    /// CREATE with a request for a lease on the file, whose handle the answer gives. A new file gets this
    /// value; an existing one keeps its own.
    Create { file: usize, value: u64, kind: LeaseKind, seconds: u32 },
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// To READ, GETLEASE and WRITE: the value, and the lease with its duration.
    Done { value: u64, granted: Option<(LeaseKind, u32)> },
    /// NQNFS_TRYLATER.
    Trylater,
}

/// A message in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    /// To the server.
    Call { client: usize, name: usize, xid: u64, question: Question },
    /// To a client.
    Reply { client: usize, xid: u64, answer: Answer },
    /// To a client, if it still has that name.
    Evicted { client: usize, name: usize, file: usize },
}

/// A small random generator, so that a seed determines a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `times` times on average.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}
