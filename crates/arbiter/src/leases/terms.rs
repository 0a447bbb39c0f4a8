//! Leases with a term: those of NQNFS (Macklem 1994, sections 4 and 5).
//!
//! Such a lease ends by itself, unless its holder renews it, and nothing else ends it for certain: the holder may never
//! hear that it is recalled. So whoever is in its way waits until it is returned *or has truly ended*, and it is never
//! revoked before, unless the layer below has lost what it stands under. When one has truly ended is told here, by the clock of this machine alone:
//!
//! - one for reading, `clock_skew` after its term: the holder's clock may run slower than ours by so much in a term;
//! - one for writing, when besides nothing was written to the file for `write_slack` after that, because what the holder
//!   wrote under it may be on its way still, and when there is a worker free to take what arrives (`workers`): what
//!   waits unread in a socket has arrived for its sender.
//!
//! A holder may renew as long as its lease has not truly ended and is not recalled. Records are bounded: when all are
//! taken, the next lease waits for one to end (section 4.1).
//!
//! Assumed: a lease counts at the holder from when its request left, and here from when it was granted, which is later.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId, LeaseKind};

use super::{Grant, Key, Leases};
use crate::options::Delegations;
use crate::shares::Others;

/// What the end of a term depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// By how much a holder's clock may fall behind ours during the longest term. The paper: 3 s.
    pub clock_skew: Duration,
    /// For how long after the term's end, and after each write, another write may arrive: several times the timer with
    /// which holders send their calls again.
    pub write_slack: Duration,
    /// The longest term.
    pub longest: Duration,
    /// Leases with a term at one time, at most.
    pub leases_max: usize,
    /// Changes under way at one time beyond which calls wait where we do not see them.
    pub workers: usize,
}

impl Default for Terms {
    /// The paper's, where it has figures. Over UDP our own clients send again after at most a second or so on a path that
    /// works; five times that.
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

/// What is known of a lease because it has a term.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Term {
    /// The file was written to last.
    pub(super) wrote: Option<Instant>,
}

/// A lease with a term, asked for.
#[derive(Clone, Copy, Debug)]
pub struct Termed {
    /// By whom.
    pub holder: HolderId,
    /// For reading or for writing.
    pub kind: LeaseKind,
    /// For how long.
    pub term: Duration,
    /// What others do with the file.
    pub others: Others,
}

/// What comes of asking without opening the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The holder has it, for longer than before.
    Held(Lease),
    /// It may get it with an open.
    Open,
    /// It gets none now: others use the file too, or it changed hands a moment ago.
    NonCaching,
    /// All records are taken, until then at least.
    Full(Instant),
}

impl Grant {
    /// When it ends, should nobody do anything more: what a lease with a term waits for after it.
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
    /// Renews a lease with a term, or makes one for reading one for writing; says what there is to do if that is not all.
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

    /// The file was written to.
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

    /// Has it truly ended?
    pub(super) fn is_over(&self, now: Instant, grant: &Grant) -> bool {
        let over = grant.truly_ends(&self.terms).is_some_and(|end| end <= now);
        let writes = grant.term.is_some() && grant.kind == LeaseKind::Write;
        over && !(writes && (self.is_busy() || self.is_changing(&grant.handle.handle())))
    }

    /// When to look again whether one has ended whose time had come before.
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

    /// Does the file not change hands?
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

/// Between two looks at a lease that would have ended if the workers were not all busy.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What a lease with a term takes here, in bytes, with its places in all tables of the arbiter and with the file's, if it is the
/// only one of the file; without the handle itself, which is kept once, and the tables' spare room. The paper's record has 64, of
/// a kernel that has the handle elsewhere, too.
pub const RECORD_BYTES: usize = size_of::<(LeaseId, Grant)>()
    + size_of::<(Instant, LeaseId)>()
    + size_of::<(Key, super::file::File)>()
    + size_of::<LeaseId>()
    + size_of::<(LeaseId, Key)>();

#[cfg(test)]
mod tests;
