//! What a cache holds and has in flight, counted object by object.

use crate::Cache;

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
        held
    }
}
