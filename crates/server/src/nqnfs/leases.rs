//! Maps each promise to an NQNFS client to the file system's lease.
//!
//! This is not a second table of leases: the file system decides which client may have one, and until when.
//! The map finds the lease that a VACATED means, and the client that a recall means. A pure table. As it
//! grows, it sweeps out promises that have expired.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId};

use crate::exports::ExportId;

/// A promise is kept for longer than the file system may keep its lease. That costs little, and a recall
/// finds it.
const KEPT_AFTER_ITS_END: Duration = Duration::from_secs(600);
/// The table is swept when it has twice its size after the last sweep, but not below this size.
const SWEEP_MIN: usize = 1024;

/// A promise that a client holds.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) holder: HolderId,
    pub(crate) handle: Handle,
    until: Instant,
    /// Notified when the promise has ended.
    pub(crate) gone: Arc<Notify>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    out: HashMap<(ExportId, LeaseId), Out>,
    named: HashMap<(ExportId, HolderId, Handle), LeaseId>,
    swept: usize,
}

impl Leases {
    /// A lease was granted or renewed. False if the holder has a newer one on the file: this one has ended,
    /// and its reply is late.
    pub(crate) fn granted(
        &mut self,
        now: Instant,
        export: ExportId,
        holder: HolderId,
        handle: &Handle,
        lease: &Lease,
    ) -> bool {
        let until = lease.until.unwrap_or(now) + KEPT_AFTER_ITS_END;
        if let Some(out) = self.out.get_mut(&(export, lease.id)) {
            out.until = out.until.max(until);
            return true;
        }
        if self.named.get(&(export, holder, *handle)).is_some_and(|newer| *newer > lease.id) {
            return false;
        }
        if self.out.len() >= SWEEP_MIN.max(self.swept * 2) {
            self.sweep(now);
        }
        let out = Out { holder, handle: *handle, until, gone: Arc::default() };
        self.out.insert((export, lease.id), out);
        if let Some(before) = self.named.insert((export, holder, *handle), lease.id) {
            // The earlier lease has ended, because otherwise this one would not have been granted.
            self.forget(export, before);
        }
        true
    }

    /// The promise for a lease.
    pub(crate) fn get(&self, export: ExportId, lease: LeaseId) -> Option<Out> {
        self.out.get(&(export, lease)).cloned()
    }

    /// The holder gives up its lease on a file.
    pub(crate) fn vacate(&mut self, export: ExportId, handle: &Handle, holder: HolderId) -> Option<LeaseId> {
        let lease = *self.named.get(&(export, holder, *handle))?;
        self.forget(export, lease);
        self.named.remove(&(export, holder, *handle));
        Some(lease)
    }

    /// The holder gives up all its leases.
    pub(crate) fn vacate_all(&mut self, holder: HolderId) -> Vec<(ExportId, LeaseId)> {
        let all = self.named.extract_if(|(_, whose, _), _| *whose == holder);
        let all: Vec<_> = all.map(|((export, ..), lease)| (export, lease)).collect();
        for (export, lease) in &all {
            self.forget(*export, *lease);
        }
        all
    }

    /// The export is no longer served: its leases end.
    pub(crate) fn withdraw(&mut self, export: ExportId) -> Vec<(HolderId, LeaseId)> {
        let all = self.named.extract_if(|(of, ..), _| *of == export);
        let all: Vec<_> = all.map(|((_, holder, _), lease)| (holder, lease)).collect();
        for (_, lease) in &all {
            self.forget(export, *lease);
        }
        all
    }

    /// The file system has revoked the lease.
    pub(crate) fn revoked(&mut self, export: ExportId, lease: LeaseId) -> Option<Out> {
        let out = self.forget(export, lease)?;
        let key = (export, out.holder, out.handle);
        if self.named.get(&key) == Some(&lease) {
            self.named.remove(&key);
        }
        Some(out)
    }

    fn forget(&mut self, export: ExportId, lease: LeaseId) -> Option<Out> {
        let out = self.out.remove(&(export, lease))?;
        out.gone.notify_waiters();
        Some(out)
    }

    /// Checks that each promise is found by its lease and by its client and file.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check(&self) {
        assert_eq!(self.out.len(), self.named.len());
        for ((export, holder, handle), lease) in &self.named {
            let out = self.out.get(&(*export, *lease));
            assert!(out.is_some_and(|out| (out.holder, out.handle) == (*holder, *handle)), "a lost promise");
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.out.retain(|_, out| out.until > now);
        let out = &self.out;
        self.named.retain(|(export, _, _), lease| out.contains_key(&(*export, *lease)));
        self.swept = self.out.len();
    }
}

#[cfg(test)]
mod tests {
    use vfs::LeaseKind;

    use super::*;

    fn lease(id: u64, until: Instant) -> Lease {
        Lease {
            id: LeaseId(id),
            kind: LeaseKind::Read,
            until: Some(until),
            change: 1,
            space_limit: Lease::NO_SPACE_LIMIT,
        }
    }

    #[test]
    fn a_vacated_one_is_found_by_client_and_file() {
        let (now, export) = (Instant::now(), ExportId(1));
        let (one, two) = (HolderId(1), HolderId(2));
        let file = Handle::new(b"f").unwrap();
        let mut leases = Leases::default();
        leases.granted(now, export, one, &file, &lease(7, now));
        leases.granted(now, export, two, &file, &lease(8, now));
        assert_eq!(leases.get(export, LeaseId(7)).unwrap().holder, one);
        assert_eq!(leases.vacate(export, &file, two), Some(LeaseId(8)));
        assert_eq!(leases.vacate(export, &file, two), None);
        assert!(leases.get(export, LeaseId(8)).is_none());
        // A later lease of the same client replaces the earlier one.
        leases.granted(now, export, one, &file, &lease(9, now));
        assert!(leases.get(export, LeaseId(7)).is_none());
        assert!(!leases.granted(now, export, one, &file, &lease(6, now)), "its reply is late");
        assert_eq!(leases.revoked(export, LeaseId(9)).unwrap().handle, file);
        assert_eq!(leases.vacate(export, &file, one), None);
    }

    #[test]
    fn who_leaves_gives_up_all_that_it_has_and_nobody_elses() {
        let (now, export) = (Instant::now(), ExportId(1));
        let (one, two) = (HolderId(1), HolderId(2));
        let mut leases = Leases::default();
        for number in 0..10 {
            let file = Handle::new(&[number]).unwrap();
            leases.granted(now, export, one, &file, &lease(u64::from(number), now));
        }
        let file = Handle::new(b"f").unwrap();
        leases.granted(now, export, two, &file, &lease(99, now));
        let mut gone: Vec<u64> = leases.vacate_all(one).iter().map(|(_, lease)| lease.0).collect();
        gone.sort_unstable();
        assert_eq!(gone, (0..10).collect::<Vec<u64>>());
        assert!(leases.vacate_all(one).is_empty() && leases.get(export, LeaseId(3)).is_none());
        assert_eq!(leases.vacate(export, &file, two), Some(LeaseId(99)));
    }

    #[test]
    fn what_has_ended_is_swept_out() {
        let (start, export) = (Instant::now(), ExportId(1));
        let mut leases = Leases::default();
        for number in 0..100_000u64 {
            let now = start + Duration::from_secs(number);
            let file = Handle::new(&number.to_be_bytes()).unwrap();
            leases.granted(now, export, HolderId(1), &file, &lease(number, now));
        }
        assert!(leases.out.len() <= 2048 && leases.named.len() <= 2048, "{}", leases.out.len());
    }
}
