//! The files whose open at the origin may have to be narrowed or closed: a queue by time. `upstream::settle`
//! does the work.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::table::Object;

/// By time, then in order of arrival; and the number of arrivals.
type Queue = (BTreeMap<(Instant, u64), Arc<Object>>, u64);

/// Files whose open at the origin is to be checked, and when.
#[derive(Debug, Default)]
pub struct Settling {
    queue: Mutex<Queue>,
    wake: Arc<Notify>,
}

impl Settling {
    /// Queues a check.
    pub fn push(&self, at: Instant, object: Arc<Object>) {
        let mut queue = self.queue.lock();
        queue.1 += 1;
        let key = (at, queue.1);
        queue.0.insert(key, object);
        self.wake.notify_one();
    }

    /// The files that are due, and when the next one will be.
    pub fn due(&self) -> (Vec<Arc<Object>>, Option<Instant>) {
        let mut queue = self.queue.lock();
        let now = Instant::now();
        let later = queue.0.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut queue.0, later);
        (due.into_values().collect(), queue.0.keys().next().map(|(at, _)| *at))
    }

    /// Notified when a check is queued.
    pub fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }
}
