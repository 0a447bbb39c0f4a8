//! When what the kernel has in its page cache is still good at an open: one file's bookkeeping, pure.
//!
//! Pages belong to the state of the file (`WccAttributes`) that was known when they were read. An open that shows the
//! same state keeps them. Two changes within one granule of the origin's time stamps look alike, so that pages read
//! while the last change was younger than a granule are kept until the next open and no longer (the granule rule of
//! docs/semantics.md), unless a lease says that nobody else changes the file.
//!
//! Telling the kernel to drop pages takes time, in which it goes on reading them. So an open that comes after a change is not
//! kept, though the kernel has been told already; and while an open that is not kept has been answered and the kernel
//! has not been heard of it since, no other open is kept either.
//!
//! Our own writes go through the page cache, which has them; they keep the rest if it is proven that nothing came
//! between.
//!
//! Promise: opens-through-a-mount

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Timestamp, Wcc, WccAttributes};

/// What a granule is at most, as the cache assumes it.
const GRANULARITY_MIN: Duration = Duration::from_millis(10);
/// Opens that are waited for to be heard of again; the last ones are the ones that will be.
const DROPPING_MAX: usize = 64;
/// A write that is shorter makes no page whole.
const PAGE_MIN_BYTES: usize = 4096;
/// How far the origin's clock may be from ours.
pub const SKEW: Duration = Duration::from_secs(3);

/// What is known of the pages of one file.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// The state that they are of, and when it was first seen.
    seen: Option<(WccAttributes, Instant)>,
    /// Some were read when a change in the same granule would not have shown.
    racy: bool,
    /// Some belong to no known state, or to one that is over.
    mixed: bool,
    /// Opens that the kernel drops the pages for, or may not yet have: all of the same state.
    dropping: Vec<u64>,
    /// Some may be whole: only those are read without asking.
    filled: bool,
}

impl Pages {
    /// The file is opened as `fh`, and this is what it is now. May its pages be kept?
    pub fn open(&mut self, fh: u64, now: &Attributes, leased: bool) -> bool {
        let state = now.wcc();
        let same = self.seen.is_some_and(|(seen, _)| seen == state);
        let keep = same && !self.mixed && self.dropping.is_empty() && (leased || !self.racy);
        if !same {
            self.seen = Some((state, Instant::now()));
            self.dropping.clear();
        }
        if !keep {
            (self.racy, self.mixed, self.filled) = (false, false, false);
            if self.dropping.len() == DROPPING_MAX {
                self.dropping.remove(0);
            }
            self.dropping.push(fh);
        }
        keep
    }

    /// The kernel asks for something of the open `fh`: if it was to drop pages for that, it has.
    pub fn heard_of(&mut self, fh: u64) {
        if self.dropping.contains(&fh) {
            self.dropping.clear();
        }
    }

    /// May the kernel have whole pages, or be about to get some?
    pub fn are_filled(&self) -> bool {
        self.filled || !self.dropping.is_empty()
    }

    /// The kernel has put into its pages what it wrote.
    pub fn put(&mut self, bytes: usize) {
        self.filled |= bytes >= PAGE_MIN_BYTES;
    }

    /// A READ of the kernel is about to be answered.
    pub fn read(&mut self, leased: bool, granularity: Duration, wall: Timestamp) {
        self.filled = true;
        let Some((state, since)) = self.seen else {
            self.mixed = true;
            return;
        };
        let old = wall.as_nanos() - state.mtime.max(state.ctime).as_nanos() > SKEW.as_nanos() as i128;
        self.racy |= !leased && !old && since.elapsed() < granularity.max(GRANULARITY_MIN);
    }

    /// The kernel has put what it wrote elsewhere than where it was written. May it be read there without our being asked?
    pub fn misplaced(&mut self, bytes: usize) -> bool {
        let read = self.are_filled() || bytes >= PAGE_MIN_BYTES;
        *self = Pages { filled: read, ..Pages::default() };
        read
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
        // Until the kernel has dropped them they are there.
        (self.racy, self.mixed) = (false, true);
        self.dropping.clear();
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

    /// An open that the kernel does something with.
    fn open(pages: &mut Pages, mtime: i64, leased: bool) -> bool {
        let keep = pages.open(1, &at(mtime), leased);
        pages.heard_of(1);
        keep
    }

    #[test]
    fn the_same_state_keeps_its_pages_and_another_one_does_not() {
        let mut pages = Pages::default();
        assert!(!open(&mut pages, 5, false), "nothing was known");
        pages.read(false, Duration::ZERO, WALL);
        assert!(open(&mut pages, 5, false));
        assert!(!open(&mut pages, 6, false));
        assert!(open(&mut pages, 6, false));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_within_a_granule_of_a_change_is_good_until_the_next_open() {
        let mut pages = Pages::default();
        open(&mut pages, 999, false);
        pages.read(false, Duration::ZERO, WALL);
        assert!(!open(&mut pages, 999, false), "a second change may look like the first");
        tokio::time::advance(Duration::from_millis(20)).await;
        pages.read(false, Duration::ZERO, WALL);
        assert!(open(&mut pages, 999, false), "this state has been seen for longer than a granule");
        pages.read(false, Duration::from_secs(1), WALL);
        assert!(open(&mut pages, 999, true), "under a lease nobody else changes it");
    }

    #[test]
    fn own_writes_keep_the_rest_if_nothing_else_came_between() {
        let mut pages = Pages::default();
        open(&mut pages, 5, false);
        pages.wrote(&Wcc::around(at(5).wcc(), Some(at(7))), false);
        assert!(open(&mut pages, 7, false));
        pages.wrote(&Wcc::around(at(8).wcc(), Some(at(9))), false);
        assert!(!open(&mut pages, 9, false), "somebody else wrote too");
        pages.wrote(&Wcc::seen(Some(at(10))), true);
        assert!(open(&mut pages, 10, true));
        pages.wrote(&Wcc::default(), false);
        assert!(!open(&mut pages, 11, false), "no proof");
    }

    #[test]
    fn a_change_that_is_told_takes_the_pages_with_it_once() {
        let mut pages = Pages::default();
        assert!(!pages.told(&at(5)), "there are none");
        open(&mut pages, 5, false);
        assert!(!pages.told(&at(5)) && pages.told(&at(6)) && !pages.told(&at(6)));
    }

    #[test]
    fn pages_that_the_kernel_was_told_to_drop_are_not_kept_before_it_has() {
        let mut pages = Pages::default();
        open(&mut pages, 5, false);
        pages.told(&at(6));
        assert!(!pages.open(2, &at(6), false), "whoever looked it up is not who dropped it");
        assert!(!pages.open(3, &at(6), false), "the answer to the other open may still be on its way");
        pages.heard_of(4);
        assert!(!pages.open(5, &at(6), true), "nor does a lease say what the kernel has");
        pages.heard_of(3);
        assert!(pages.open(6, &at(6), false));
    }

    #[test]
    fn what_was_put_elsewhere_is_read_there_only_from_whole_pages() {
        let mut pages = Pages::default();
        open(&mut pages, 5, false);
        assert!(!pages.misplaced(100), "the kernel has dropped all, and read nothing since");
        assert!(!open(&mut pages, 5, true), "what it has is of no state");
        pages.read(true, Duration::ZERO, WALL);
        assert!(pages.misplaced(100) && !open(&mut pages, 5, true));
        assert!(pages.misplaced(PAGE_MIN_BYTES));
        pages.open(2, &at(5), true);
        assert!(pages.misplaced(100), "the kernel may not have heard of it");
    }

    #[test]
    fn an_open_of_an_earlier_state_drops_nothing_of_a_later_one() {
        let mut pages = Pages::default();
        pages.open(1, &at(5), false);
        pages.open(2, &at(6), false);
        pages.heard_of(1);
        assert!(!pages.open(3, &at(6), false));
    }
}
