//! When what the kernel has in its page cache is still good at an open: one file's bookkeeping, pure.
//!
//! Pages belong to the state of the file (`WccAttributes`) that was known when they were read. An open that shows the
//! same state keeps them. Two changes within one granule of the origin's time stamps look alike, so that pages read
//! while the last change was younger than a granule are kept until the next open and no longer (the granule rule of
//! docs/semantics.md), unless a lease says that nobody else changes the file.
//!
//! Our own writes go through the page cache, which has them; they keep the rest if it is proven that nothing came
//! between.

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Timestamp, Wcc, WccAttributes};

/// What a granule is at most, as the cache assumes it.
const GRANULE_MIN: Duration = Duration::from_millis(10);
/// How far the origin's clock may be from ours.
pub const SKEW: Duration = Duration::from_secs(3);

/// What is known of the pages of one file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pages {
    /// The state that they are of, and when it was first seen.
    seen: Option<(WccAttributes, Instant)>,
    /// Some were read when a change in the same granule would not have shown.
    young: bool,
    /// Some belong to no known state.
    mixed: bool,
}

impl Pages {
    /// The file is opened, and this is what it is now. May its pages be kept?
    pub fn open(&mut self, now: &Attributes, leased: bool) -> bool {
        let state = now.wcc();
        let same = self.seen.is_some_and(|(seen, _)| seen == state);
        let keep = same && !self.mixed && (leased || !self.young);
        if !same {
            self.seen = Some((state, Instant::now()));
        }
        if !keep {
            (self.young, self.mixed) = (false, false);
        }
        keep
    }

    /// A READ of the kernel is about to be answered.
    pub fn read(&mut self, leased: bool, granule: Duration, wall: Timestamp) {
        let Some((state, since)) = self.seen else {
            self.mixed = true;
            return;
        };
        let old = wall.as_nanos() - state.mtime.max(state.ctime).as_nanos() > SKEW.as_nanos() as i128;
        self.young |= !leased && !old && since.elapsed() < granule.max(GRANULE_MIN);
    }

    /// We wrote, and the kernel has what we wrote. The states before and after, if nobody else wrote in between: else
    /// the next open shows a state that these pages are not proven to be of.
    pub fn wrote(&mut self, wcc: &Wcc, leased: bool) -> Option<(WccAttributes, WccAttributes)> {
        let (seen, _) = self.seen?;
        let alone = leased || wcc.before.is_some_and(|before| before == seen);
        let after = wcc.after.filter(|_| alone)?.wcc();
        if after != seen {
            self.seen = Some((after, Instant::now()));
        }
        Some((seen, after))
    }

    /// Attributes are told to the kernel while nobody writes here. True if the pages are of another state: they go.
    pub fn told(&mut self, now: &Attributes) -> bool {
        let Some((seen, _)) = self.seen.filter(|(seen, _)| *seen != now.wcc()) else { return false };
        self.seen = Some((now.wcc(), Instant::now()));
        (self.young, self.mixed) = (false, false);
        seen.mtime != now.mtime || seen.size != now.size || seen.change != now.change
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::{Device, FileType, Fsid};

    const WALL: Timestamp = Timestamp::new(1000, 0);

    fn at(mtime: i64) -> Attributes {
        let mtime = Timestamp::new(mtime, 0);
        Attributes {
            file_type: FileType::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 10,
            used: 0,
            rdev: Device::default(),
            fsid: Fsid::default(),
            fileid: 5,
            atime: mtime,
            mtime,
            ctime: mtime,
            change: mtime.seconds as u64,
        }
    }

    #[test]
    fn the_same_state_keeps_its_pages_and_another_one_does_not() {
        let mut pages = Pages::default();
        assert!(!pages.open(&at(5), false), "nothing was known");
        pages.read(false, Duration::ZERO, WALL);
        assert!(pages.open(&at(5), false));
        assert!(!pages.open(&at(6), false));
        assert!(pages.open(&at(6), false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_within_a_granule_of_a_change_is_good_until_the_next_open() {
        let mut pages = Pages::default();
        pages.open(&at(999), false);
        pages.read(false, Duration::ZERO, WALL);
        assert!(!pages.open(&at(999), false), "a second change may look like the first");
        tokio::time::advance(Duration::from_millis(20)).await;
        pages.read(false, Duration::ZERO, WALL);
        assert!(pages.open(&at(999), false), "this state has been seen for longer than a granule");
        pages.read(false, Duration::from_secs(1), WALL);
        assert!(pages.open(&at(999), true), "under a lease nobody else changes it");
    }

    #[test]
    fn own_writes_keep_the_rest_if_nothing_else_came_between() {
        let mut pages = Pages::default();
        pages.open(&at(5), false);
        pages.wrote(&Wcc { before: Some(at(5).wcc()), after: Some(at(7)) }, false);
        assert!(pages.open(&at(7), false));
        pages.wrote(&Wcc { before: Some(at(8).wcc()), after: Some(at(9)) }, false);
        assert!(!pages.open(&at(9), false), "somebody else wrote too");
        pages.wrote(&Wcc { before: None, after: Some(at(10)) }, true);
        assert!(pages.open(&at(10), true));
        pages.wrote(&Wcc::default(), false);
        assert!(!pages.open(&at(11), false), "no proof");
    }

    #[test]
    fn a_change_that_is_told_takes_the_pages_with_it_once() {
        let mut pages = Pages::default();
        assert!(!pages.told(&at(5)), "there are none");
        pages.open(&at(5), false);
        assert!(!pages.told(&at(5)) && pages.told(&at(6)) && !pages.told(&at(6)));
    }
}
