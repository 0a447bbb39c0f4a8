//! What a cache holds and has in flight, counted object by object; and the counters that are zero at its end.

use crate::Cache;
use crate::core::Core;
use crate::object::RestingLease;

/// Numbers of what a cache holds now. After the layer above has closed everything and
/// [`shutdown`](vfs::FileSystem::shutdown) has returned, only opens at the origin and leases may be left. The
/// layer below gives these back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Opens of the layer above.
    pub opens: usize,
    /// Files that are open at the origin.
    pub opens_below: usize,
    /// Files with byte-range locks.
    pub locked: usize,
    /// Leases from the origin.
    pub leases: usize,
    /// Of these, the leases that the layer above holds.
    pub leases_above: usize,
    /// Operations in flight, and parts of files that are being stored.
    pub in_flight: usize,
    /// Bytes of delayed writes that are not durable at the origin.
    pub dirty_bytes: u64,
    /// Files with such bytes, or with delayed attributes.
    pub dirty_files: u64,
}

impl Cache {
    /// Counts what the cache holds. It looks at each object in memory, so it is for tests and for diagnosis.
    pub fn held(&self) -> Holdings {
        let core = &self.core;
        let leases = core.origin.leases().len();
        let mut held =
            Holdings { leases, in_flight: core.origin.leases().grants_in_flight(), ..Holdings::default() };
        if let Some(delayed) = &core.delayed {
            (held.dirty_bytes, held.dirty_files) = (delayed.bytes(), delayed.files());
        }
        for object in core.memory.table().all() {
            let state = object.state.lock();
            held.opens += state.held.opens.locals();
            held.opens_below += usize::from(state.held.opens.upstream().is_some());
            held.locked += usize::from(!state.held.locks.is_empty());
            held.leases_above += usize::from(state.held.lease.as_ref().is_some_and(|lease| lease.given));
            held.in_flight += state.in_flight();
        }
        let resting = |which: fn(&RestingLease) -> bool| core.memory.table().count_resting_leases(which);
        held.opens_below += resting(RestingLease::has_open);
        held.leases_above += resting(RestingLease::is_given);
        held
    }
}

impl Core {
    /// Checks the counters at the end of a cache. Every operation in flight borrows or owns the core, so none
    /// is left. The totals of delayed writes must be those of the files.
    fn check_counters(&self) {
        let (mut calls, mut dirty_bytes, mut dirty_files) = (0, 0, 0);
        for object in self.memory.table().all() {
            let state = object.state.lock();
            calls += state.calls_in_flight();
            if let Some(writes) = &state.delayed.writes {
                dirty_bytes += writes.bytes();
                dirty_files += u64::from(!writes.is_clean());
            }
        }
        debug_assert_eq!(calls, 0, "calls in flight at the end of a cache");
        let grants = self.origin.leases().grants_in_flight();
        debug_assert_eq!(grants, 0, "calls in flight that may bring a lease, at the end of a cache");
        if let Some(delayed) = &self.delayed {
            debug_assert_eq!(delayed.bytes(), dirty_bytes, "bytes of delayed writes at the end of a cache");
            debug_assert_eq!(delayed.files(), dirty_files, "files with delayed writes at the end of a cache");
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            self.check_counters();
        }
    }
}
