//! The second walk of a path: which directories a thread has just looked up.
//!
//! If a call with a path gets ESTALE, Linux walks the path once more, with a LOOKUP of every name
//! (`LOOKUP_REVAL`). It makes no third walk. So the first ESTALE of a call is right if the kernel came by a
//! name that it had cached. On the second walk every directory was found just now, or the walk began in it:
//! a working directory or a descriptor. If such a directory is gone, a third walk would not find another one.
//!
//! FUSE does not say which call a request belongs to. This table assumes that requests of a thread soon
//! after an ESTALE are the second walk, as long as each LOOKUP goes on where an earlier one has led. The
//! table may take the thread's next call for it, if the walk ended with a LOOKUP, or if the kernel did not
//! repeat the call. Then a directory that was replaced in between seems to be removed.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::wire::request::Header;

/// How soon after a reply the next request of the same walk arrives. If this were too long, the thread's
/// next call might count as part of it.
const GAP_MAX: Duration = Duration::from_millis(250);
/// How long a thread is remembered that got ESTALE for a node.
const TOLD_MAX: Duration = Duration::from_secs(5);
/// Limit of remembered nodes of one walk, in each list.
const NODES_MAX: usize = 64;
/// Limit of remembered threads. If the table is full, a second walk counts as a first.
const THREADS_MAX: usize = 4096;

/// The requesting thread: its number, user and group.
pub type Thread = (u32, u32, u32);

/// The thread that sent a request.
pub fn thread_of(header: &Header) -> Thread {
    (header.pid, header.uid, header.gid)
}

/// A directory and a name in it.
pub type Place = (u64, Bytes);

/// A thread that got ESTALE.
#[derive(Clone, Debug)]
pub struct Walk {
    /// Nodes for which it got ESTALE, or ENOENT after that.
    told: Vec<u64>,
    told_at: Instant,
    /// Its second walk.
    steps: Option<Steps>,
    /// When the last reply was sent.
    since: Instant,
}

/// A second walk.
#[derive(Clone, Debug, Default)]
struct Steps {
    /// Where it began. The second path of a call begins there too. `None` before the first LOOKUP.
    start: Option<u64>,
    /// A second path has begun.
    again: bool,
    /// Nodes that it has found and not gone on from.
    found: Vec<u64>,
    /// Names that it has looked up in directories that it had just found.
    passed: Vec<Place>,
    /// It has looked up one more name in such a directory, as renames do.
    more: bool,
}

/// Threads that got ESTALE. A thread is not in the table while one of its requests is in flight.
#[derive(Debug, Default)]
pub struct Walks {
    threads: Mutex<HashMap<Thread, Walk>>,
}

impl Walks {
    /// A request of a thread has arrived: the walk that it may belong to.
    pub fn arrive(&self, thread: Thread) -> Option<Walk> {
        let mut walk = {
            let mut threads = self.threads.lock();
            if threads.is_empty() {
                return None;
            }
            threads.remove(&thread)?
        };
        if walk.since.elapsed() >= GAP_MAX {
            walk.steps = None;
        }
        Some(walk).filter(Walk::is_of_use)
    }

    /// The request is about to be answered.
    pub fn leave(&self, thread: Thread, walk: Option<Walk>) {
        let Some(walk) = walk else { return };
        // Threads outside our name space have no number of their own.
        if thread.0 == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            threads.retain(|_, walk| walk.is_of_use());
        }
        if threads.len() < THREADS_MAX {
            threads.insert(thread, Walk { since: Instant::now(), ..walk });
        }
    }
}

impl Walk {
    /// A thread gets ESTALE for these nodes, after an earlier walk or none. The second walk begins.
    pub fn begin(before: Option<Walk>, nodes: impl IntoIterator<Item = u64>) -> Walk {
        let told = before.map(|walk| walk.told).unwrap_or_default();
        let now = Instant::now();
        let mut walk = Walk { told, told_at: now, steps: Some(Steps::default()), since: now };
        nodes.into_iter().for_each(|node| add(&mut walk.told, node));
        walk
    }

    /// Has the thread got ESTALE for the node?
    pub fn was_told(&self, node: u64) -> bool {
        self.told.contains(&node)
    }

    /// The thread gets ENOENT because this directory is gone.
    pub fn tell(&mut self, node: u64) {
        add(&mut self.told, node);
    }

    /// Does a request come to this directory by no name that the kernel had cached before the walk? It looks
    /// up or changes names, `places`, or none.
    pub fn is_new(&self, node: u64, looks_up: bool, places: &[Place]) -> bool {
        let walked = |steps: &Steps| {
            // The kernel repeats a LOOKUP at once if it led elsewhere than before.
            let repeated = || steps.passed.last().is_some_and(|last| places.first() == Some(last));
            let changed = || places.iter().any(|place| place.0 == node && steps.passed.contains(place));
            let passed = if looks_up { repeated() } else { changed() };
            passed || steps.start.is_none() || steps.found.contains(&node)
        };
        self.was_told(node) || self.steps.as_ref().is_some_and(walked)
    }

    /// A LOOKUP is answered; it has found this node, or none.
    pub fn look_up(&mut self, place: Place, found: Option<u64>) {
        if self.steps.as_mut().is_some_and(|steps| !steps.go_on(place, found)) {
            self.steps = None;
        }
    }

    /// The call is answered that the walk was for.
    pub fn end(&mut self) {
        self.steps = None;
    }

    fn is_of_use(&self) -> bool {
        self.steps.is_some() || self.told_at.elapsed() < TOLD_MAX
    }
}

impl Steps {
    /// False if the LOOKUP does not belong to the walk.
    fn go_on(&mut self, place: Place, found: Option<u64>) -> bool {
        let node = place.0;
        let starts = self.start.is_none();
        if starts {
            self.start = Some(node);
        } else if self.found.contains(&node) {
            self.found.retain(|one| *one != node);
        } else if self.passed.last() == Some(&place) {
            // The kernel repeats a LOOKUP at once if it led elsewhere than before.
            self.passed.pop();
        } else if self.start == Some(node) && !self.again {
            self.again = true;
        } else {
            let more = !self.more && self.passed.iter().any(|(passed, _)| *passed == node);
            self.more = true;
            return more;
        }
        if self.passed.len() >= NODES_MAX {
            self.passed.remove(0);
        }
        self.passed.push(place);
        found.into_iter().for_each(|found| add(&mut self.found, found));
        true
    }
}

fn add(nodes: &mut Vec<u64>, node: u64) {
    if nodes.contains(&node) {
        return;
    }
    if nodes.len() >= NODES_MAX {
        nodes.remove(0);
    }
    nodes.push(node);
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: Thread = (7, 0, 0);
    const ROOT: u64 = 1;

    fn at(node: u64, name: &'static str) -> Place {
        (node, Bytes::from_static(name.as_bytes()))
    }

    #[test]
    fn what_a_second_walk_has_found_is_new_once() {
        let mut walk = Walk::begin(None, [9]);
        assert!(walk.is_new(ROOT, true, &[]), "it begins anywhere");
        walk.look_up(at(ROOT, "d"), Some(2));
        assert!(
            walk.is_new(2, true, &[])
                && walk.is_new(9, true, &[])
                && !walk.is_new(ROOT, true, &[])
                && !walk.is_new(3, true, &[])
        );
        walk.look_up(at(2, "new"), None);
        assert!(!walk.is_new(2, true, &[]), "another call may look up a name there");
        assert!(walk.is_new(2, false, &[at(2, "new")]), "the name is about to be made");
        assert!(!walk.is_new(2, false, &[at(2, "other")]));
        walk.end();
        assert!(!walk.is_new(2, false, &[at(2, "new")]) && walk.is_new(9, true, &[]));
    }

    #[test]
    fn two_paths_of_one_call_are_one_walk() {
        let mut walk = Walk::begin(None, []);
        walk.look_up(at(ROOT, "d"), Some(2));
        walk.look_up(at(ROOT, "e"), Some(3));
        assert!(walk.is_new(2, true, &[]) && walk.is_new(3, true, &[]));
        walk.look_up(at(2, "old"), Some(4));
        walk.look_up(at(3, "new"), None);
        assert!(
            walk.is_new(2, false, &[at(2, "old"), at(3, "new")])
                && walk.is_new(3, false, &[at(2, "old"), at(3, "new")])
        );
        walk.look_up(at(ROOT, "f"), Some(5));
        assert!(!walk.is_new(5, true, &[]), "there is no third path");
    }

    #[test]
    fn a_rename_within_a_directory_is_one_walk_and_another_call_is_not() {
        let mut walk = Walk::begin(None, []);
        walk.look_up(at(ROOT, "d"), Some(2));
        walk.look_up(at(2, "old"), Some(4));
        walk.look_up(at(2, "new"), None);
        assert!(walk.is_new(2, false, &[at(2, "old"), at(2, "new")]));
        assert!(!walk.is_new(2, false, &[at(2, "new")]), "that may be a call after the walk");
        walk.look_up(at(2, "next"), None);
        assert!(!walk.is_new(2, false, &[at(2, "old")]));
    }

    #[test]
    fn a_lookup_that_the_kernel_repeats_goes_on_with_the_walk() {
        let mut walk = Walk::begin(None, []);
        walk.look_up(at(ROOT, "d"), Some(2));
        walk.look_up(at(ROOT, "d"), Some(3));
        assert!(walk.is_new(2, true, &[at(2, "f")]) && walk.is_new(3, true, &[at(3, "f")]));
        walk.look_up(at(3, "f"), Some(4));
        assert!(walk.is_new(3, true, &[at(3, "f")]) && !walk.is_new(3, true, &[at(3, "g")]));
        walk.look_up(at(3, "f"), Some(5));
        walk.look_up(at(3, "g"), None);
        assert!(walk.is_new(3, false, &[at(3, "f"), at(3, "g")]));
    }

    #[test]
    fn a_walk_ends_where_the_thread_begins_another_one() {
        let mut walk = Walk::begin(None, []);
        walk.look_up(at(ROOT, "d"), Some(2));
        walk.look_up(at(5, "e"), Some(6));
        assert!(!walk.is_new(2, true, &[]) && !walk.is_new(6, true, &[]));
        assert!(Walk::begin(Some(walk), [6]).is_new(6, true, &[]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_walk_waits_for_a_request_in_flight_and_for_no_other_call() {
        let walks = Walks::default();
        walks.leave(THREAD, Some(Walk::begin(None, [9])));
        let mut walk = walks.arrive(THREAD).unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        walk.look_up(at(ROOT, "d"), Some(2));
        walks.leave(THREAD, Some(walk));
        assert!(walks.arrive((8, 0, 0)).is_none());
        assert!(walks.arrive(THREAD).is_some_and(|walk| walk.is_new(2, true, &[])));
        walks.leave(THREAD, Some(Walk::begin(None, [9])));
        tokio::time::advance(GAP_MAX).await;
        let walk = walks.arrive(THREAD).unwrap();
        assert!(walk.is_new(9, true, &[]) && !walk.is_new(2, true, &[]));
        walks.leave(THREAD, Some(walk));
        tokio::time::advance(TOLD_MAX).await;
        assert!(walks.arrive(THREAD).is_none());
        walks.leave((0, 0, 0), Some(Walk::begin(None, [9])));
        assert!(walks.arrive((0, 0, 0)).is_none(), "that may be any thread");
    }
}
