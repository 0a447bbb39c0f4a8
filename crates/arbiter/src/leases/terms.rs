//! Leases with a term: those of NQNFS (Macklem 1994, sections 4 and 5).
//!
//! Such a lease ends by itself unless its holder renews it. Nothing else ends it for certain: the holder
//! may never hear of a recall. So a conflicting request waits until the lease is returned *or has truly
//! ended*. It is never revoked before that, unless the layer below has lost the lease that it depends on.
//! This module decides, by the clock of this machine alone, when a lease has truly ended:
//!
//! - A read lease has truly ended `clock_skew` after its term: the holder's clock may fall behind ours by
//!   that much during a term.
//! - For a write lease, in addition no write to the file may arrive for `write_slack` after that. A write
//!   under the lease may still be in flight. Also a worker must be free to process arriving calls
//!   (`workers`): for its sender, a call that waits unread in a socket has arrived.
//!
//! A holder may renew its lease as long as it has not truly ended and is not recalled. Records are bounded:
//! when all are in use, the next lease waits for one to end (section 4.1).
//!
//! Assumption: at the holder, a term starts when its request was sent. Here it starts at the grant, which
//! is later.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId, LeaseKind};

use super::{Grant, Key, Leases};
use crate::options::Delegations;
use crate::shares::Others;

/// Parameters of the end of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How far a holder's clock may fall behind ours during the longest term. The paper: 3 s.
    pub clock_skew: Duration,
    /// How long after the end of the term, and after each write, another write may arrive: several times
    /// the retransmission timer of the holders.
    pub write_slack: Duration,
    /// The longest term.
    pub longest: Duration,
    /// Limit of leases with a term.
    pub leases_max: usize,
    /// With this many changes in flight, further calls wait where the arbiter does not see them.
    pub workers: usize,
}

impl Default for Terms {
    /// The paper's figures, where it gives any. `write_slack` is five times the retransmission timer of our
    /// own UDP clients, which is about one second at most on a working path.
    fn default() -> Terms {
        Terms {
            clock_skew: Duration::from_secs(3),
            write_slack: Duration::from_secs(5),
            longest: Duration::from_secs(60),
            leases_max: 65_536,
            workers: 512,
        }
    }
}

/// The additional state of a lease with a term.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Term {
    /// Time of the last write to the file.
    pub(super) wrote: Option<Instant>,
}

/// A request for a lease with a term.
#[derive(Clone, Copy, Debug)]
pub struct Termed {
    /// The holder that asks.
    pub holder: HolderId,
    /// For reading or for writing.
    pub kind: LeaseKind,
    /// The requested term.
    pub term: Duration,
    /// The opens of other holders.
    pub others: Others,
}

/// The result of a request without an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The holder has the lease, and its term was extended.
    Held(Lease),
    /// An open may bring the lease.
    Open,
    /// No lease now: other clients use the file too, or there was a recent conflict.
    NonCaching,
    /// All records are in use, at least until then.
    Full(Instant),
}

impl Grant {
    /// When it ends without any further event. For a lease with a term, this includes the waits after the
    /// term.
    pub(super) fn truly_ends(&self, terms: &Terms) -> Option<Instant> {
        let Some(term) = self.term else { return self.until };
        let end = self.until? + terms.clock_skew;
        match self.kind {
            LeaseKind::Write => {
                let written = term.wrote.map_or(end, |wrote| wrote.max(end));
                Some(written + terms.write_slack)
            }
            _ => Some(end),
        }
    }
}

impl Leases {
    /// Renews a lease with a term, or upgrades a read lease to a write lease. Returns what else the caller
    /// must do.
    pub fn renew(&mut self, now: Instant, handle: &Handle, asked: &Termed) -> Renewal {
        self.expire(now);
        if let Some(mine) = self.termed_lease_of(handle, asked.holder) {
            if self.may_extend(now, mine, asked)
                && let Some(lease) = self.extend(now, mine, asked.term, asked.kind)
            {
                return Renewal::Held(lease);
            }
            let wider = |grant: &Grant| grant.recalled.is_none() && asked.kind > grant.kind;
            if !self.grants.get(&mine).is_some_and(wider) {
                return Renewal::NonCaching;
            }
        } else if self.termed >= self.terms.leases_max {
            return self.first_record_free(now);
        }
        if self.is_calm(now, handle) { Renewal::Open } else { Renewal::NonCaching }
    }

    /// The lease with a term that this holder has on a file.
    pub(super) fn termed_lease_of(&self, handle: &Handle, holder: HolderId) -> Option<LeaseId> {
        let mine = |id: &&LeaseId| {
            self.grants.get(id).is_some_and(|grant| grant.holder == holder && grant.term.is_some())
        };
        self.files.get(handle)?.grants.iter().find(mine).copied()
    }

    /// The file was written.
    pub(super) fn wrote(&mut self, now: Instant, handle: &Handle) {
        let Some(file) = self.files.get(handle) else { return };
        for id in &file.grants {
            if let Some(grant) = self.grants.get_mut(id)
                && grant.kind == LeaseKind::Write
                && let Some(term) = &mut grant.term
            {
                term.wrote = Some(now);
            }
        }
    }

    /// Has the lease truly ended?
    pub(super) fn is_over(&self, now: Instant, grant: &Grant) -> bool {
        let over = grant.truly_ends(&self.terms).is_some_and(|end| end <= now);
        let writes = grant.term.is_some() && grant.kind == LeaseKind::Write;
        over && !(writes && (self.is_busy() || self.is_changing(&grant.handle.handle())))
    }

    /// When to check again whether a lease has ended whose time is over.
    pub(super) fn look_again(&self, now: Instant, grant: &Grant) -> Instant {
        let end = grant.truly_ends(&self.terms).unwrap_or(now);
        if end > now { end } else { now + LOOK_AGAIN }
    }

    fn is_busy(&self) -> bool {
        self.under_way >= self.terms.workers
    }

    fn is_changing(&self, handle: &Handle) -> bool {
        self.files.get(handle).is_some_and(|file| file.changing > 0)
    }

    /// Is the file without a recent conflict?
    fn is_calm(&self, now: Instant, handle: &Handle) -> bool {
        let Some(file) = self.files.get(handle) else { return true };
        let quiet = file.quiet_until.is_some_and(|until| until > now);
        file.claims == 0 && !(quiet && self.delegations == Delegations::Auto)
    }

    pub(super) fn may_extend(&self, now: Instant, id: LeaseId, asked: &Termed) -> bool {
        let Some(grant) = self.grants.get(&id) else { return false };
        let Some(file) = self.files.get(&grant.handle.handle()) else { return false };
        let Some(under) = file.under.filter(|under| !under.recalled) else { return false };
        if grant.recalled.is_some() || file.claims > 0 || under.lease.until.is_some_and(|until| until <= now)
        {
            return false;
        }
        if asked.kind <= grant.kind {
            return true;
        }
        let alone = file.grants.len() == 1 && !asked.others.open;
        alone
            && self.is_calm(now, &grant.handle.handle())
            && under.lease.kind >= asked.kind
            && self.nameless == 0
    }

    pub(super) fn extend(
        &mut self,
        now: Instant,
        id: LeaseId,
        term: Duration,
        kind: LeaseKind,
    ) -> Option<Lease> {
        let grant = self.grants.get_mut(&id)?;
        let under = self.files.get(&grant.handle.handle())?.under?.lease.until;
        let until = [Some(now + term.min(self.terms.longest)), under].into_iter().flatten().min();
        grant.until = grant.until.max(until);
        if kind > grant.kind {
            grant.kind = kind;
            self.writes += 1;
        }
        let space_limit = Lease::NO_SPACE_LIMIT;
        let lease = Lease { id, kind: grant.kind, until: grant.until, change: grant.change, space_limit };
        self.queue_end(id);
        self.counts.renewed += 1;
        Some(lease)
    }

    fn first_record_free(&self, now: Instant) -> Renewal {
        let ends = self.grants.values().filter(|grant| grant.term.is_some());
        let first = ends.filter_map(|grant| grant.truly_ends(&self.terms)).min();
        Renewal::Full(first.unwrap_or(now).max(now + LOOK_AGAIN))
    }
}

/// Interval of the checks of a lease that would have ended if a worker were free.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Size in bytes of a lease with a term that is the only lease on its file. It includes the lease's entries
/// in all tables of the arbiter and the state of the file. Not included are the handle itself, which is
/// stored once, and the tables' spare capacity. The paper's record has 64 bytes, in a kernel that also
/// stores the handle elsewhere.
pub const RECORD_BYTES: usize = size_of::<(LeaseId, Grant)>()
    + size_of::<(Instant, LeaseId)>()
    + size_of::<(Key, super::file::File)>()
    + size_of::<LeaseId>()
    + size_of::<(LeaseId, Key)>();

#[cfg(test)]
mod tests;
