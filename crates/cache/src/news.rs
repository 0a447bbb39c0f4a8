//! News of other clients: until when a negative entry is believed.
//!
//! Without a lease, nothing tells a cache that another client has made a name. The promise is this
//! (docs/semantics.md):
//! - A negative entry is believed for at most [`NEGATIVE_MAX`].
//! - A negative entry is not believed after this client has seen **later work of another client**. A program
//!   that reads a new reference therefore finds the new object, even if it has looked for the object in vain
//!   before.
//!
//! Later work is a state of any object that no change of ours explains. Its ctime must not be earlier than
//! the latest ctime that was known [`NEGATIVE_MAX`] ago. An earlier state cannot tell of a name that was made
//! after the negative entry was confirmed. No clocks are compared: all these ctimes are the origin's. A cold
//! walk through an old tree therefore brings no news.
//!
//! A byte-range lock that the origin grants is news as well: its last holder may have done anything. A lock
//! also ends the belief in positive entries, because the last holder may have removed names.
//!
//! Promise: negative-entries

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::Timestamp;

/// How long a negative entry is believed without a call, if no lease covers its directory.
pub const NEGATIVE_MAX: Duration = Duration::from_secs(1);

/// The latest observed work of other clients.
#[derive(Debug, Default)]
pub struct News {
    frontier: Mutex<Frontier>,
    /// The event of the latest news.
    latest: AtomicU64,
    /// Since this event, no other client can have held the lock that was granted last.
    locked: AtomicU64,
}

/// The latest ctime of the origin that is known, and the latest one that was known a while ago.
#[derive(Debug, Default)]
struct Frontier {
    now: Option<Timestamp>,
    /// Known for [`NEGATIVE_MAX`] or longer.
    before: Option<Timestamp>,
    moved: Option<Instant>,
}

impl Frontier {
    fn reach(&mut self, ctime: Timestamp) {
        if self.moved.is_none_or(|at| at.elapsed() >= NEGATIVE_MAX) {
            self.before = self.now;
            self.moved = Some(Instant::now());
        }
        self.now = self.now.max(Some(ctime));
    }
}

impl News {
    /// A change of our own left this ctime.
    pub fn own(&self, ctime: Timestamp) {
        self.frontier.lock().reach(ctime);
    }

    /// A state with this ctime was seen at this event, and no change of ours explains it.
    pub fn seen(&self, ctime: Timestamp, event: u64) {
        let mut frontier = self.frontier.lock();
        frontier.reach(ctime);
        if frontier.before.is_none_or(|before| ctime >= before) {
            self.heard(event);
        }
    }

    /// Another client may have done anything until this event.
    pub fn heard(&self, event: u64) {
        self.latest.fetch_max(event, Ordering::AcqRel);
    }

    /// The origin granted a byte-range lock. Until this event, another client may have held it.
    pub fn locked(&self, event: u64) {
        self.heard(event);
        self.locked.fetch_max(event, Ordering::AcqRel);
    }

    /// The event of the latest [`News::locked`]. A positive entry is not believed if its last confirmation
    /// was sent before.
    pub fn latest_lock(&self) -> u64 {
        self.locked.load(Ordering::Acquire)
    }

    /// The event of the latest news. A negative entry is not believed if its last confirmation was sent
    /// before.
    pub fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::new(seconds, 0)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_all_that_was_known_a_while_ago_is_no_news() {
        let news = News::default();
        news.seen(at(100), 1);
        assert_eq!(news.latest(), 1, "nothing was known");
        tokio::time::advance(NEGATIVE_MAX).await;
        news.seen(at(50), 2);
        assert_eq!(news.latest(), 1);
        news.seen(at(100), 3);
        assert_eq!(news.latest(), 3, "it may be of the same moment");
        news.seen(at(101), 4);
        assert_eq!(news.latest(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_later_changes_do_not_hide_work_of_others_within_the_lifetime() {
        let news = News::default();
        news.own(at(100));
        tokio::time::advance(NEGATIVE_MAX).await;
        news.own(at(200));
        news.seen(at(150), 7);
        assert_eq!(news.latest(), 7, "a negative entry may be as old as 100");
        tokio::time::advance(NEGATIVE_MAX).await;
        news.own(at(201));
        news.seen(at(150), 8);
        assert_eq!(news.latest(), 7, "all that are believed were confirmed after 200");
    }

    #[test]
    fn news_does_not_go_back() {
        let news = News::default();
        news.heard(5);
        news.heard(3);
        assert_eq!(news.latest(), 5);
    }
}
