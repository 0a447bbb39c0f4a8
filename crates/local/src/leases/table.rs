//! The table of granted leases: by id, by file, and in the order of their last use.
//!
//! A lease takes about 100 bytes here, and its handle once. A guarded lease also keeps its file in use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Callback, Handle, LeaseId, LeaseKind, Recall, SharedHandle, Turnover};

use crate::descriptors::Node;
use crate::sys::KernelHandle;

/// Size in bytes of a lease without a guard, in all tables. Not included are its handle and the tables' spare
/// capacity.
#[cfg(test)]
pub(super) const RECORD_BYTES: usize =
    size_of::<(LeaseId, Granted)>() + size_of::<(SharedHandle, LeaseId)>() + size_of::<(u64, LeaseId)>();

/// A granted lease.
pub(super) struct Granted {
    pub(super) handle: SharedHandle,
    pub(super) kind: LeaseKind,
    /// The order of the last use.
    used: u64,
    pub(super) recall: Option<Box<Pending>>,
    /// What detects processes of this machine. `None` if the directory is exclusive.
    pub(super) detection: Option<Box<Detection>>,
}

/// A file or directory that is kept in use, so that other processes are detected.
pub(super) struct Detection {
    pub(super) node: Arc<Node>,
    /// For a directory: its handle in the events of the watch.
    pub(super) watched: Option<KernelHandle>,
}

/// A recall that the holder has not answered.
#[derive(Clone, Copy)]
pub(super) struct Pending {
    pub(super) keep: Option<LeaseKind>,
    pub(super) deadline: Instant,
    pub(super) sent: bool,
}

impl Pending {
    pub(super) fn all(within: Duration) -> Pending {
        Pending { keep: None, deadline: Instant::now() + within, sent: false }
    }
}

/// The table. See the module.
pub(super) struct Table {
    by_id: HashMap<LeaseId, Granted>,
    by_file: HashMap<SharedHandle, LeaseId>,
    /// Leases without a recall, in the order of their last use.
    by_use: BTreeMap<u64, LeaseId>,
    /// Leases with a recall.
    asked: BTreeSet<LeaseId>,
    /// Counts uses, and gives their order.
    clock: u64,
    turnover: Turnover,
    /// Number of watched directories.
    watched: usize,
}

/// The callbacks that are due, and what follows from them.
pub(super) struct Due {
    pub(super) callbacks: Vec<Callback>,
    pub(super) revoked: Vec<LeaseId>,
    /// The time of the next check.
    pub(super) next: Option<Instant>,
}

impl Table {
    pub(super) fn new(leases_max: usize, idle_min: Duration) -> Table {
        Table {
            by_id: HashMap::new(),
            by_file: HashMap::new(),
            by_use: BTreeMap::new(),
            asked: BTreeSet::new(),
            clock: 0,
            turnover: Turnover::new(leases_max, idle_min),
            watched: 0,
        }
    }

    pub(super) fn get_mut(&mut self, id: LeaseId) -> Option<&mut Granted> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn of_file(&self, handle: &Handle) -> Option<LeaseId> {
        self.by_file.get(handle.as_bytes()).copied()
    }

    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.by_id.keys().copied().collect()
    }

    /// The leases that have a means of detection, with it.
    pub(super) fn detecting(&self) -> impl Iterator<Item = (LeaseId, &Granted, &Detection)> {
        self.by_id.iter().filter_map(|(id, granted)| Some((*id, granted, granted.detection.as_deref()?)))
    }

    pub(super) fn watches_any(&self) -> bool {
        self.watched > 0
    }

    /// The directory of a lease is watched from now on.
    pub(super) fn watch(&mut self, id: LeaseId, watched: KernelHandle) {
        let Some(detection) = self.by_id.get_mut(&id).and_then(|granted| granted.detection.as_mut()) else {
            return;
        };
        self.watched += usize::from(detection.watched.replace(watched).is_none());
    }

    pub(super) fn is_full(&self) -> bool {
        self.turnover.is_full(self.by_id.len())
    }

    /// Unused leases to recall, because the limit is near.
    pub(super) fn batch(&mut self, now: Instant) -> Vec<LeaseId> {
        let by_use = self.by_use.iter().map(|(used, id)| (*used, *id));
        self.turnover.batch(now, self.by_id.len(), by_use)
    }

    /// Adds a lease that promises nothing yet.
    pub(super) fn add(
        &mut self,
        now: Instant,
        id: LeaseId,
        handle: &Handle,
        detection: Option<Box<Detection>>,
    ) {
        let used = self.stamp(now);
        let handle = SharedHandle::new(handle);
        self.by_file.insert(handle.clone(), id);
        self.by_use.insert(used, id);
        self.by_id.insert(id, Granted { handle, kind: LeaseKind::Timeout, used, recall: None, detection });
    }

    /// A lease is used, unless it is recalled.
    pub(super) fn touch(&mut self, now: Instant, id: LeaseId) {
        let used = self.stamp(now);
        if let Some(granted) = self.by_id.get_mut(&id).filter(|granted| granted.recall.is_none()) {
            self.by_use.remove(&granted.used);
            granted.used = used;
            self.by_use.insert(used, id);
        }
    }

    fn stamp(&mut self, now: Instant) -> u64 {
        self.clock += 1;
        self.turnover.used(now, self.clock);
        self.clock
    }

    /// Records a recall, unless the lease has one already.
    pub(super) fn ask(&mut self, id: LeaseId, recall: Pending) {
        if let Some(granted) = self.by_id.get_mut(&id) {
            granted.recall.get_or_insert_with(|| Box::new(recall));
            self.by_use.remove(&granted.used);
            self.asked.insert(id);
        }
    }

    /// The holder keeps a lease after its recall.
    pub(super) fn keeps(&mut self, id: LeaseId) {
        if let Some(granted) = self.by_id.get_mut(&id) {
            granted.recall = None;
            self.by_use.insert(granted.used, id);
            self.asked.remove(&id);
            self.turnover.ended(id);
        }
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<Granted> {
        let granted = self.by_id.remove(&id)?;
        self.by_file.remove(&granted.handle);
        self.by_use.remove(&granted.used);
        self.asked.remove(&id);
        self.turnover.ended(id);
        let watched = granted.detection.as_ref().is_some_and(|detection| detection.watched.is_some());
        self.watched -= usize::from(watched);
        Some(granted)
    }

    /// The callbacks that are due now. The caller removes what is revoked.
    pub(super) fn due(&mut self, now: Instant) -> Due {
        let mut due = Due { callbacks: Vec::new(), revoked: Vec::new(), next: None };
        for &id in &self.asked {
            let Some(granted) = self.by_id.get_mut(&id) else { continue };
            let handle = granted.handle.handle();
            let Some(recall) = &mut granted.recall else { continue };
            if !recall.sent {
                recall.sent = true;
                let Pending { keep, deadline, .. } = **recall;
                due.callbacks.push(Callback::Recall(Recall { id, handle, keep, deadline }));
            } else if recall.deadline <= now {
                due.callbacks.push(Callback::Revoked { id, handle });
                due.revoked.push(id);
                continue;
            }
            due.next = Some(due.next.map_or(recall.deadline, |next| next.min(recall.deadline)));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_without_a_guard_is_small() {
        assert_eq!(RECORD_BYTES, 96);
        let mut table = Table::new(1000, Duration::ZERO);
        let handle = |number: u64| Handle::new(&number.to_be_bytes()).unwrap();
        let now = Instant::now();
        (0..1000).for_each(|number| table.add(now, LeaseId(number), &handle(number), None));
        assert!(table.is_full());
        table.touch(now, LeaseId(0));
        let batch = table.batch(now);
        assert_eq!((batch.len(), batch[0]), (124, LeaseId(1)));
        for id in batch {
            table.ask(id, Pending::all(Duration::ZERO));
        }
        assert_eq!(table.batch(now), [], "the batch before is out");
        assert_eq!(table.due(now).callbacks.len(), 124);
        let due = table.due(Instant::now());
        assert_eq!(due.revoked.len(), 124);
        for id in due.revoked {
            table.keeps(id);
            assert!(table.remove(id).is_some() && table.remove(id).is_none());
        }
        assert_eq!((table.by_id.len(), table.by_file.len(), table.by_use.len()), (876, 876, 876));
        assert_eq!((table.of_file(&handle(1)), table.of_file(&handle(0))), (None, Some(LeaseId(0))));
    }
}
