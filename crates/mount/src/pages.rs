//! Decides whether the kernel's page cache of a file is still valid at an open. Pure bookkeeping for one
//! file.
//!
//! Pages belong to the state of the file (`WccAttributes`) that was known when they were read. An open that
//! shows the same state keeps them. Two changes may carry the same timestamp of the origin. So pages that
//! were read while the state was racy are kept until the next open only, unless a lease excludes changes by
//! other clients. This is the timestamp granularity rule of docs/semantics.md.
//!
//! The kernel needs time to drop pages and goes on reading them meanwhile. So an open that follows a change
//! does not keep pages, even if the kernel was already told to drop them. After an open that drops pages,
//! no other open keeps pages either, until a request of that open shows that the kernel has processed its
//! reply.
//!
//! The mount's own writes go through the page cache, which has their data. They keep the other pages if it
//! is proven that no other change came between.
//!
//! Promise: opens-through-a-mount

use std::time::Duration;

use tokio::time::Instant;
use vfs::{Attributes, Timestamp, Wcc, WccAttributes};

/// Lower bound of the timestamp granularity, as the cache assumes it.
const GRANULARITY_MIN: Duration = Duration::from_millis(10);
/// Limit of remembered opens that drop pages. The oldest is forgotten first: a request of the latest is the
/// most likely.
const DROPPING_MAX: usize = 64;
/// A shorter write fills no complete page.
const PAGE_MIN_BYTES: usize = 4096;
/// Bound of the difference between the origin's clock and ours.
pub const SKEW: Duration = Duration::from_secs(3);

/// The state of the kernel's pages of one file.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    /// The file state that the pages belong to, and when it was first seen.
    seen: Option<(WccAttributes, Instant)>,
    /// Some pages were read while the state was racy: a second change might carry the same timestamp.
    racy: bool,
    /// Some pages belong to an unknown or an outdated state.
    mixed: bool,
    /// Opens for which the kernel drops the pages, or may not have dropped them yet; all of the same state.
    dropping: Vec<u64>,
    /// The kernel may have complete pages: only those are read without a request.
    filled: bool,
}

impl Pages {
    /// No pages.
    pub const NONE: Pages =
        Pages { seen: None, racy: false, mixed: false, dropping: Vec::new(), filled: false };

    /// Records an open as `fh` with the current attributes. True if its pages may be kept.
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

    /// A request of the open `fh` arrived: if the kernel had to drop pages for that open, it has done so.
    pub fn heard_of(&mut self, fh: u64) {
        if self.dropping.contains(&fh) {
            self.dropping.clear();
        }
    }

    /// May the kernel have complete pages now or soon?
    pub fn are_filled(&self) -> bool {
        self.filled || !self.dropping.is_empty()
    }

    /// The kernel has copied its written bytes into its pages.
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

    /// The kernel cached its write at another offset than the bytes were written to. True if a program may
    /// read them there without a request.
    pub fn misplaced(&mut self, bytes: usize) -> bool {
        let read = self.are_filled() || bytes >= PAGE_MIN_BYTES;
        *self = Pages { filled: read, ..Pages::default() };
        read
    }

    /// Records a WRITE whose data the kernel has in its pages. Returns the states before and after it, if
    /// no other client wrote in between. Otherwise the next open shows a state that these pages are not
    /// proven to belong to.
    pub fn wrote(&mut self, wcc: &Wcc, leased: bool) -> Option<(WccAttributes, WccAttributes)> {
        let (seen, _) = self.seen?;
        let alone = leased || wcc.before.is_some_and(|before| before == seen);
        let after = wcc.after.filter(|_| alone)?.wcc();
        if after != seen {
            self.seen = Some((after, Instant::now()));
        }
        Some((seen, after))
    }

    /// Attributes are sent to the kernel while no open here writes. True if the pages belong to another
    /// state and must be dropped.
    pub fn told(&mut self, now: &Attributes) -> bool {
        let Some((seen, _)) = self.seen.filter(|(seen, _)| *seen != now.wcc()) else { return false };
        self.seen = Some((now.wcc(), Instant::now()));
        // The pages stay until the kernel has dropped them.
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

    /// An open, followed by a request of that open.
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
