//! Group commit: changes of one directory that wait for the disk at the same time share one fsync(2).
//!
//! A change waits for an fsync that begins after the change was made ([`Group`]). One fsync at a time runs
//! for each directory, and the next one covers all changes that have arrived meanwhile. An fsync makes one
//! transaction of the file system durable, whether it has one change or fifty.
//!
//! If clients answer each reply with their next change, half of the changes would always just miss an fsync.
//! So the next one first waits until as many changes have arrived as the last one has seen
//! ([`Group::is_complete`]), but at most for half of the time that an fsync takes. A single client never
//! waits for others.
//!
//! Of the waiters, only the first occupies a thread: it runs the fsync. The result of an fsync is that of all
//! changes that it covers: the kernel reports an error only once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use vfs::{Principal, Status};

use crate::descriptors::Node;
use crate::tree::Tree;
use crate::{identity, workers};

/// Limit of the time for which an fsync waits for further changes.
const GATHERING_MAX: Duration = Duration::from_millis(1);

/// Takes the result of the fsync.
type Waiter = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// The changes of one file or directory that wait for the disk.
#[derive(Default)]
pub(crate) struct Syncs {
    group: Mutex<Group<Waiter>>,
    /// As many changes wait as are expected.
    complete: Condvar,
}

/// A file or directory to make durable.
pub(crate) struct Target {
    pub(crate) tree: Arc<Tree>,
    pub(crate) node: Arc<Node>,
    /// An identity that may open it, if the process may not.
    pub(crate) principal: Principal,
}

/// Makes all earlier changes of a file or directory durable, and then calls `waiter`. Runs on a thread of
/// the pool, and may run the fsync there. No reference to the tree is left when `waiter` is called.
pub(crate) fn persist_then(target: Target, waiter: Waiter) {
    if !target.tree.sync || target.node.mount.in_memory {
        drop(target);
        return waiter(Ok(()));
    }
    let node = target.node.clone();
    if let Some(target) = node.syncs.join(waiter, target) {
        sync(target);
    }
}

fn sync(target: Target) {
    workers::about_to_wait();
    let node = target.node.clone();
    let mut running = Running { syncs: &node.syncs, is_over: false };
    let covered = running.gather();
    let began = Instant::now();
    let result = identity::wear(&target.principal).and_then(|_worn| target.tree.persist(&node));
    if running.end(covered.len(), began.elapsed()) {
        // Behind the jobs that wait for a thread.
        workers::start_job(move || sync(target));
    } else {
        drop(target);
    }
    for waiter in covered {
        waiter(result);
    }
}

impl Syncs {
    /// Adds a waiter. Returns the target if the caller must start an fsync.
    fn join(&self, waiter: Waiter, target: Target) -> Option<Target> {
        let mut group = self.group.lock();
        let must_start = group.join(waiter);
        if group.is_complete() {
            self.complete.notify_one();
        }
        // Otherwise it is dropped before the lock, so before the waiter is called.
        must_start.then_some(target)
    }
}

/// An fsync that runs. If it panics, all waiters get an error.
struct Running<'s> {
    syncs: &'s Syncs,
    is_over: bool,
}

impl Running<'_> {
    /// Waits for the expected changes, and returns those that the fsync covers. It must begin after that.
    fn gather(&mut self) -> Vec<Waiter> {
        let mut group = self.syncs.group.lock();
        let until = Instant::now() + group.patience();
        while !group.is_complete() && !self.syncs.complete.wait_until(&mut group, until).timed_out() {}
        group.begin()
    }

    /// The fsync has ended. True if another one must begin.
    fn end(mut self, covered: usize, took: Duration) -> bool {
        self.is_over = true;
        self.syncs.group.lock().end(covered, took)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            *self.syncs.group.lock() = Group::default();
        }
    }
}

/// Which waiter is covered by which fsync, without the fsync.
struct Group<W> {
    waiting: Vec<W>,
    is_running: bool,
    /// Number of changes that were in flight when the last fsync ended.
    expected: usize,
    /// How long the last fsync took.
    took: Duration,
}

impl<W> Default for Group<W> {
    fn default() -> Group<W> {
        Group { waiting: Vec::new(), is_running: false, expected: 1, took: Duration::ZERO }
    }
}

impl<W> Group<W> {
    /// A change has been made and waits. True if an fsync must be started.
    fn join(&mut self, waiter: W) -> bool {
        self.waiting.push(waiter);
        !std::mem::replace(&mut self.is_running, true)
    }

    /// Do as many changes wait as there were in flight?
    fn is_complete(&self) -> bool {
        self.waiting.len() >= self.expected
    }

    /// How long to wait until [`Group::is_complete`].
    fn patience(&self) -> Duration {
        (self.took / 2).min(GATHERING_MAX)
    }

    /// The started fsync is about to begin. Returns the waiters that it covers.
    fn begin(&mut self) -> Vec<W> {
        std::mem::take(&mut self.waiting)
    }

    /// It has ended. True if another one must be started.
    fn end(&mut self, covered: usize, took: Duration) -> bool {
        self.expected = covered + self.waiting.len();
        self.took = took;
        self.is_running = !self.waiting.is_empty();
        self.is_running
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Change,
        Begin,
        End,
    }

    proptest! {
        /// The disk has the changes that were made before the last ended fsync began.
        #[test]
        fn nobody_is_answered_by_an_fsync_that_began_before_the_change(steps in prop::collection::vec(
            prop_oneof![4 => Just(Step::Change), 2 => Just(Step::Begin), 2 => Just(Step::End)],
            1..200,
        )) {
            let mut group = Group::default();
            let (mut made, mut answered) = (0_u32, 0);
            // Has an fsync been started that has not begun? The covered waiters of one that has, and the
            // changes made before.
            let (mut started, mut begun) = (false, None);
            for step in steps.into_iter().chain([Step::Begin, Step::End, Step::Begin, Step::End]) {
                match step {
                    Step::Change => {
                        made += 1;
                        let must_start = group.join(made);
                        prop_assert_eq!(must_start, !started && begun.is_none(), "one fsync at a time");
                        started |= must_start;
                    }
                    Step::Begin if started => {
                        started = false;
                        begun = Some((made, group.begin()));
                    }
                    Step::End if begun.is_some() => {
                        let (durable, covered) = begun.take().unwrap_or_default();
                        prop_assert!(!covered.is_empty(), "an fsync for nobody");
                        prop_assert!(covered.iter().all(|change| *change <= durable));
                        answered += covered.len();
                        started = group.end(covered.len(), Duration::ZERO);
                    }
                    Step::Begin | Step::End => {}
                }
            }
            prop_assert_eq!(answered, made as usize, "somebody waits for ever");
            prop_assert!(!started && begun.is_none());
        }
    }

    #[test]
    fn a_single_client_waits_for_nobody() {
        let mut group = Group::default();
        for _ in 0..3 {
            assert!(group.join(()) && group.is_complete());
            assert_eq!(group.begin().len(), 1);
            assert!(!group.end(1, Duration::from_millis(3)));
        }
    }

    #[test]
    fn changes_in_flight_are_waited_for_and_not_for_long() {
        let mut group = Group::default();
        assert!(group.join(0) && group.is_complete());
        let covered = group.begin().len();
        assert!(!group.join(1) && !group.join(2));
        assert!(group.end(covered, Duration::from_millis(1)));
        assert!(!group.is_complete(), "the first client may make another change");
        assert_eq!(group.patience(), Duration::from_micros(500));
        group.join(3);
        assert!(group.is_complete());
        assert_eq!(group.begin(), [1, 2, 3]);
        assert!(!group.end(3, Duration::from_secs(1)));
        assert_eq!(group.patience(), GATHERING_MAX);
    }
}
