//! How many guesses of one kind a walk may have that nobody has used yet.
//!
//! The window begins small. Each guess that is used soon makes it larger by one, so it doubles while the
//! reader follows. Soon means within some times what a guess takes to come. If the reader takes longer,
//! guesses are far enough ahead of it. If it takes much longer, the window shrinks: more guesses would be out
//! of date before they are used. The window halves when a guess has not been used for a while, unless others
//! are: the reader of a large tree comes late to what lies far ahead.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use vfs::Handle;

use super::place::EXPIRED_MIN;

/// The first size of a window of expectations.
pub const SIZE_MIN: usize = 8;
/// The size of a window that several readers share, at least.
const SHARED_MIN: usize = 16;
/// The largest size of a window.
const SIZE_MAX: usize = 512;
/// A guess that is used after so many times what guesses take to come was far enough ahead.
const AHEAD: u32 = 4;
/// The bounds of that time. Attributes are believed for 3 s by default.
const SOON_MIN: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(1);
/// One in so many of the guesses is too much if one is used later than twice that time.
const LATE_SHARE: usize = 16;
/// A guess that has not been used for so long was wrong.
const UNUSED_MAX: Duration = Duration::from_secs(30);

/// The place of an entry in the tree: the rank of each directory on the way to it, and its own. The order of
/// positions is that of a reader who goes depth first.
pub type Position = Vec<u32>;

#[derive(Debug)]
struct Unused {
    made: Instant,
    position: Position,
    bytes: u64,
}

/// The guesses of one kind.
#[derive(Debug)]
pub struct Window {
    size: usize,
    unused: HashMap<Handle, Unused>,
    /// Bytes of guesses that the reader has passed. It may come back to them.
    passed: HashMap<Handle, u64>,
    /// What a guess takes to come, of late. `None` if guesses do not go out of date.
    latency: Option<Duration>,
    /// The last time that a guess was used.
    used: Instant,
    checked: Instant,
}

impl Window {
    /// A window that begins now, with this size.
    pub fn new(size: usize, now: Instant) -> Window {
        let (unused, passed) = (HashMap::new(), HashMap::new());
        Window { size, unused, passed, latency: None, used: now, checked: now }
    }

    /// A window of listings: their attributes go out of date.
    pub fn of_listings(size: usize, now: Instant) -> Window {
        Window { latency: Some(SOON), ..Window::new(size, now) }
    }

    /// May another guess be made?
    pub fn is_open(&self) -> bool {
        self.unused.len() < self.size
    }

    /// May a guess at this position be made, for a reader that comes to positions in their order? Only the
    /// guesses that it comes to earlier count: an entry deep in the tree becomes known when much behind it
    /// was guessed before.
    pub fn is_open_at(&self, position: &Position) -> bool {
        let before = || self.unused.values().filter(|guess| guess.position < *position).count();
        self.unused.len() < 2 * SIZE_MAX && before() < self.size
    }

    /// How many guesses may be unused now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Several readers share the window from now on.
    pub fn widen(&mut self) {
        self.size = self.size.max(SHARED_MIN);
    }

    /// The window is as small as this one again.
    pub fn shrink(&mut self, size: usize) {
        self.size = self.size.min(size);
    }

    /// Is there an unused guess about this object?
    pub fn has(&self, handle: &Handle) -> bool {
        self.unused.contains_key(handle)
    }

    /// A guess about an object is made.
    pub fn guess(&mut self, handle: Handle, position: Position, bytes: u64, now: Instant) {
        self.unused.insert(handle, Unused { made: now, position, bytes });
    }

    /// A guess has brought so many bytes. Returns what was thought before. `None` if it is not known here any
    /// more.
    pub fn came(&mut self, handle: &Handle, bytes: u64, now: Instant) -> Option<u64> {
        let thought = match self.unused.get_mut(handle) {
            Some(guess) => {
                let took = now.saturating_duration_since(guess.made);
                let smooth = |old: Duration| if old == SOON { took } else { (old * 7 + took) / 8 };
                self.latency = self.latency.map(smooth);
                &mut guess.bytes
            }
            None => self.passed.get_mut(handle)?,
        };
        Some(std::mem::replace(thought, bytes))
    }

    fn soon(&self) -> Duration {
        self.latency.map_or(SOON, |latency| (latency * AHEAD).clamp(SOON_MIN, SOON))
    }

    /// A guess was not needed, or has failed. Returns its bytes.
    pub fn withdraw(&mut self, handle: &Handle) -> Option<u64> {
        self.unused.remove(handle).map(|guess| guess.bytes).or_else(|| self.passed.remove(handle))
    }

    /// A guess was used. Returns its bytes.
    pub fn used(&mut self, handle: &Handle, now: Instant) -> Option<u64> {
        let Some(guess) = self.unused.remove(handle) else { return self.passed.remove(handle) };
        self.used = now;
        let (age, soon) = (now.saturating_duration_since(guess.made), self.soon());
        if age < soon {
            self.size = (self.size + 1).min(SIZE_MAX);
        } else if age >= 2 * soon && self.size > SIZE_MIN && self.latency.is_some() {
            self.size -= self.size.div_ceil(LATE_SHARE);
        }
        Some(guess.bytes)
    }

    /// The reader has passed everything before this position: what was guessed there is not used any more.
    /// Returns the objects.
    pub fn pass(&mut self, position: &Position) -> Vec<Handle> {
        self.leave(|guess| guess.position < *position)
    }

    /// The reader needed a call, although nothing more could be guessed: earlier guesses lie elsewhere, so
    /// they give way.
    pub fn miss(&mut self, now: Instant) {
        if !self.is_open() {
            self.leave(|guess| now.saturating_duration_since(guess.made) >= SOON);
        }
    }

    /// Guesses that are out of date give way: they may be made again. Returns the objects.
    pub fn give_up(&mut self, now: Instant) -> Vec<Handle> {
        self.leave(|guess| now.saturating_duration_since(guess.made) >= EXPIRED_MIN)
    }

    fn leave(&mut self, wrong: impl Fn(&Unused) -> bool) -> Vec<Handle> {
        if self.passed.len() > SIZE_MAX {
            self.passed.clear();
        }
        let passed: Vec<_> = self.unused.extract_if(|_, guess| wrong(guess)).collect();
        let handles = passed.iter().map(|(handle, _)| *handle).collect();
        self.passed.extend(passed.into_iter().map(|(handle, guess)| (handle, guess.bytes)));
        handles
    }

    /// Forgets guesses that have not been used for long. Returns the objects.
    pub fn expire(&mut self, now: Instant) -> Vec<Handle> {
        if now.saturating_duration_since(self.checked) < Duration::from_secs(1) {
            return Vec::new();
        }
        self.checked = now;
        let old = |guess: &Unused| now.saturating_duration_since(guess.made) >= UNUSED_MAX;
        let expired: Vec<_> =
            self.unused.extract_if(|_, guess| old(guess)).map(|(handle, _)| handle).collect();
        if !expired.is_empty() && now.saturating_duration_since(self.used) >= SOON {
            self.size = (self.size / 2).max(1);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(n: u32) -> Handle {
        Handle::new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn a_window_doubles_while_guesses_are_used_and_halves_when_they_are_not() {
        let now = Instant::now();
        let mut window = Window::of_listings(SIZE_MIN, now);
        let mut next = 0;
        for expected in [SIZE_MIN, 2 * SIZE_MIN, 4 * SIZE_MIN] {
            let first = next;
            while window.is_open() {
                window.guess(handle(next), vec![next], 10, now);
                next += 1;
            }
            assert_eq!((next - first) as usize, expected);
            (first..next).for_each(|n| assert_eq!(window.used(&handle(n), now), Some(10)));
        }
        window.guess(handle(next), vec![next], 10, now);
        window.used(&handle(next), now + SOON);
        assert_eq!(window.size, 4 * SIZE_MIN * 2, "far enough ahead");
        for _ in 0..20 {
            window.guess(handle(next), vec![next], 10, now);
            window.used(&handle(next), now + 2 * SOON);
        }
        assert!(window.size < 2 * SIZE_MIN, "{}: too far ahead", window.size);
        window.size = 4 * SIZE_MIN * 2;
        window.guess(handle(next), vec![next], 10, now);
        window.expire(now + UNUSED_MAX);
        assert_eq!((window.size, window.has(&handle(next))), (4 * SIZE_MIN, false));
        for _ in 0..9 {
            let later = window.checked + UNUSED_MAX;
            window.guess(handle(0), vec![0], 10, window.checked);
            window.expire(later);
        }
        assert_eq!(window.size, 1, "one guess at a time finds out whether the reader follows again");
    }

    #[test]
    fn what_the_reader_has_passed_is_not_waited_for() {
        let now = Instant::now();
        let mut window = Window::new(SIZE_MIN, now);
        window.guess(handle(1), vec![0, 7], 10, now);
        window.guess(handle(2), vec![1], 10, now);
        window.pass(&vec![1]);
        assert!(!window.has(&handle(1)) && window.has(&handle(2)));
    }

    #[test]
    fn guesses_far_ahead_do_not_count_for_nearer_ones() {
        let now = Instant::now();
        let mut window = Window::new(SIZE_MIN, now);
        (10..18).for_each(|n| window.guess(handle(n), vec![n], 10, now));
        assert!(!window.is_open() && !window.is_open_at(&vec![20]));
        for n in 0..SIZE_MIN as u32 {
            assert!(window.is_open_at(&vec![n]));
            window.guess(handle(n), vec![n], 10, now);
        }
        assert!(!window.is_open_at(&vec![8]), "as many as the window has");
        (20..).take(2 * SIZE_MAX).for_each(|n| window.guess(handle(n), vec![n], 10, now));
        assert!(!window.is_open_at(&vec![0]), "there are too many in all");
    }

    #[test]
    fn a_guess_far_ahead_is_not_wrong_as_long_as_others_are_used() {
        let now = Instant::now();
        let mut window = Window::new(SIZE_MIN, now);
        window.guess(handle(1), vec![9], 10, now);
        let late = now + UNUSED_MAX;
        window.guess(handle(2), vec![1], 10, late);
        window.used(&handle(2), late);
        window.expire(late);
        assert_eq!(window.size, SIZE_MIN + 1);
    }
}
