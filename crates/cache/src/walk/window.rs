//! How many guesses of one kind a walk may have that nobody has used yet.
//!
//! The window begins small. Each guess that is used soon makes it larger by one, so it doubles while the
//! reader follows. If the reader takes longer, guesses are far enough ahead of it: more of them would be out
//! of date before they are used. The window halves when a guess has not been used for a while.
//!
//! A [record](super::record) says whether guesses are made or only noted. A guess is wrong if the reader has
//! taken many more steps than there were guesses, or some steps since it has passed the guess: it may look
//! into a directory first, and then at the files beside it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use vfs::Handle;

use super::record::Record;

/// The largest size of a window.
const SIZE_MAX: usize = 512;
/// A guess that is used later than this was far enough ahead. Attributes are believed for 3 s by default.
const SOON: Duration = Duration::from_secs(1);
/// A guess that has not been used for so long was wrong.
const UNUSED_MAX: Duration = Duration::from_secs(30);
/// It was also wrong if the reader has taken so many times as many steps as the window has guesses.
const STEPS_MAX: u64 = 4;

/// The place of an entry in the tree: the rank of each directory on the way to it, and its own. The order of
/// positions is that of a reader who goes depth first.
pub type Position = Vec<u32>;

#[derive(Debug)]
struct Unused {
    made: Instant,
    position: Position,
    bytes: u64,
    /// The steps that the reader had taken.
    steps: u64,
    kind: Made,
}

/// How was a guess made?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// The reader will probably come to the object.
    Ahead,
    /// The same, but the guess was only noted.
    Noted,
    /// The reader is there.
    Here,
}

/// A guess that the reader has passed. It may come back.
#[derive(Debug)]
struct Passed {
    bytes: u64,
    steps: u64,
    kind: Made,
    /// It has been counted as wrong.
    judged: bool,
}

/// The guesses of one kind.
#[derive(Debug)]
pub struct Window {
    first: usize,
    size: usize,
    unused: HashMap<Handle, Unused>,
    passed: HashMap<Handle, Passed>,
    /// How many of them have not been judged.
    unjudged: usize,
    checked: Instant,
    record: Record,
    /// The object of the last step, and how many objects there were.
    stepped: Option<Handle>,
    steps: u64,
    /// Steps after which a guess that the reader has passed was wrong.
    patience: u64,
}

impl Window {
    /// A window that begins now, with a first size. The reader may come back within so many steps to a guess
    /// that it has passed.
    pub fn new(first: usize, patience: u64, now: Instant) -> Window {
        Window {
            first,
            size: first,
            unused: HashMap::new(),
            passed: HashMap::new(),
            unjudged: 0,
            checked: now,
            record: Record::default(),
            stepped: None,
            steps: 0,
            patience,
        }
    }

    /// May another guess be made?
    pub fn is_open(&self) -> bool {
        self.open() < self.size
    }

    /// Guesses of which it is not known whether they were right.
    fn open(&self) -> usize {
        self.unused.len() + self.unjudged
    }

    /// May a guess at this position be made? Guesses that lie further ahead leave some capacity to it.
    pub fn is_open_at(&self, position: &Position) -> bool {
        let before = || self.unused.values().filter(|guess| guess.position < *position).count();
        self.open() < 2 * self.size && before() < self.size / 2
    }

    /// Several readers share the window from now on.
    pub fn widen(&mut self) {
        self.size = self.size.max(2 * self.first);
    }

    /// Is there an unused guess about this object?
    pub fn has(&self, handle: &Handle) -> bool {
        self.unused.contains_key(handle)
    }

    /// Has a guess about this object been made, and not been used?
    pub fn has_made(&self, handle: &Handle) -> bool {
        self.unused.get(handle).is_some_and(|guess| guess.kind != Made::Noted)
    }

    /// Are guesses only noted now?
    pub fn only_notes(&self) -> bool {
        self.record.only_notes()
    }

    /// A guess about an object is made, or only noted. True if it is made.
    pub fn guess(&mut self, handle: Handle, position: Position, bytes: u64, now: Instant) -> bool {
        let noted = self.only_notes();
        let (bytes, kind) = if noted { (0, Made::Noted) } else { (bytes, Made::Ahead) };
        self.unused.insert(handle, Unused { made: now, position, bytes, steps: self.steps, kind });
        !noted
    }

    /// A guess about a directory is made in which the reader is.
    pub fn guess_here(&mut self, handle: Handle, position: Position, bytes: u64, now: Instant) {
        let steps = self.steps;
        self.unused.insert(handle, Unused { made: now, position, bytes, steps, kind: Made::Here });
    }

    /// A guess has brought so many bytes. Returns what was thought before. `None` if it is not known here any
    /// more.
    pub fn came(&mut self, handle: &Handle, bytes: u64) -> Option<u64> {
        let thought = match self.unused.get_mut(handle) {
            Some(guess) => &mut guess.bytes,
            None => &mut self.passed.get_mut(handle)?.bytes,
        };
        Some(std::mem::replace(thought, bytes))
    }

    /// A guess was not needed, or has failed. Returns its bytes.
    pub fn withdraw(&mut self, handle: &Handle) -> Option<u64> {
        let unused = self.unused.remove(handle).map(|guess| guess.bytes);
        unused.or_else(|| Some(self.come_back(handle)?.bytes))
    }

    /// The reader takes a step that this guess was about, if it was made. Returns its bytes.
    pub fn used(&mut self, handle: &Handle, now: Instant) -> Option<u64> {
        if self.stepped.replace(*handle) != Some(*handle) {
            self.steps += 1;
        }
        let Some(guess) = self.unused.remove(handle) else {
            let passed = self.come_back(handle)?;
            match passed.kind {
                Made::Here => {}
                _ if passed.judged => self.record.right_after_all(),
                _ => self.record.right(),
            }
            return (passed.kind != Made::Noted).then_some(passed.bytes);
        };
        if guess.kind != Made::Here {
            self.record.right();
        }
        if guess.kind == Made::Noted {
            return None;
        }
        if now.saturating_duration_since(guess.made) < SOON {
            self.size = (self.size + 1).min(SIZE_MAX);
        }
        Some(guess.bytes)
    }

    /// The reader has passed everything before this position: what was guessed there is not used any more.
    pub fn pass(&mut self, position: &Position) {
        self.leave(|guess| guess.position < *position);
    }

    /// The reader needed a call. If nothing more could be guessed, earlier guesses lie elsewhere, so they
    /// give way.
    pub fn miss(&mut self, now: Instant) {
        let (full, steps) = (!self.is_open(), self.steps);
        let steps_max = STEPS_MAX * (self.size.max(self.first) as u64);
        self.leave(|guess| {
            (full && now.saturating_duration_since(guess.made) >= SOON)
                || steps.saturating_sub(guess.steps) >= steps_max
        });
        self.judge();
    }

    fn come_back(&mut self, handle: &Handle) -> Option<Passed> {
        let passed = self.passed.remove(handle)?;
        self.unjudged -= usize::from(!passed.judged);
        Some(passed)
    }

    fn leave(&mut self, wrong: impl Fn(&Unused) -> bool) {
        if self.passed.len() > SIZE_MAX {
            self.passed.clear();
            self.unjudged = 0;
        }
        for (handle, Unused { bytes, kind, .. }) in self.unused.extract_if(|_, guess| wrong(guess)) {
            let judged = kind == Made::Here;
            self.unjudged += usize::from(!judged);
            if let Some(before) =
                self.passed.insert(handle, Passed { bytes, steps: self.steps, kind, judged })
            {
                self.unjudged -= usize::from(!before.judged);
            }
        }
    }

    /// Counts guesses as wrong that the reader has not come back to.
    fn judge(&mut self) {
        let old = |passed: &&mut Passed| !passed.judged && self.steps - passed.steps >= self.patience;
        let mut wrong = 0;
        for passed in self.passed.values_mut().filter(old) {
            passed.judged = true;
            self.unjudged -= 1;
            wrong += u32::from((passed.kind == Made::Noted) == self.record.only_notes());
        }
        self.count_wrong(wrong);
    }

    fn count_wrong(&mut self, guesses: u32) {
        let noted = self.only_notes();
        self.record.wrong(guesses);
        if self.only_notes() != noted {
            self.size = self.size.min(self.first);
        }
    }

    /// Forgets guesses that have not been used for long.
    pub fn expire(&mut self, now: Instant) {
        if now.saturating_duration_since(self.checked) < Duration::from_secs(1) {
            return;
        }
        self.checked = now;
        let before = self.unused.len();
        let mut ahead = 0;
        self.unused.retain(|_, guess| {
            let keeps = now.saturating_duration_since(guess.made) < UNUSED_MAX;
            ahead += u32::from(!keeps && guess.kind != Made::Here);
            keeps
        });
        if self.unused.len() < before {
            self.size = (self.size / 2).max(1);
            self.count_wrong(ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: usize = 8;

    fn handle(n: u32) -> Handle {
        Handle::new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn a_window_doubles_while_guesses_are_used_and_halves_when_they_are_not() {
        let now = Instant::now();
        let mut window = Window::new(FIRST, 0, now);
        let mut next = 0;
        for expected in [FIRST, 2 * FIRST, 4 * FIRST] {
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
        assert_eq!(window.size, 4 * FIRST * 2, "far enough ahead");
        window.guess(handle(next), vec![next], 10, now);
        window.expire(now + UNUSED_MAX);
        assert_eq!((window.size, window.has(&handle(next))), (4 * FIRST, false));
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
        let mut window = Window::new(FIRST, 0, now);
        window.guess(handle(1), vec![0, 7], 10, now);
        window.guess(handle(2), vec![1], 10, now);
        window.pass(&vec![1]);
        assert!(!window.has(&handle(1)) && window.has(&handle(2)));
    }

    /// The reader takes so many steps that no guess is about.
    fn stray(window: &mut Window, steps: u32, now: Instant) {
        for n in 0..steps {
            assert_eq!(window.used(&handle(u32::MAX - n), now), None);
            window.miss(now);
        }
    }

    #[test]
    fn guesses_of_a_reader_that_goes_elsewhere_are_only_noted_until_it_follows() {
        let now = Instant::now();
        let mut window = Window::new(FIRST, 0, now);
        let (mut next, mut made) = (0, 0);
        for _ in 0..100 {
            while window.is_open() {
                made += u32::from(window.guess(handle(next), vec![next], 10, now));
                next += 1;
            }
            stray(&mut window, 10, now);
        }
        assert!(next > 50 && made <= 2 * FIRST as u32, "{made} of {next}");
        assert!(window.only_notes());
        // A note is no guess, and has no bytes.
        for round in 0..20 {
            let made = window.guess(handle(next), vec![next], 10, now);
            assert_eq!(window.used(&handle(next), now), made.then_some(10), "{round}");
            next += 1;
        }
        assert!(!window.only_notes());
    }

    #[test]
    fn a_listing_of_the_directory_in_which_the_reader_is_says_nothing_about_those_ahead() {
        let now = Instant::now();
        let mut window = Window::new(FIRST, 0, now);
        for n in 0..100 {
            window.guess_here(handle(n), vec![n], 10, now);
            stray(&mut window, 4 * STEPS_MAX as u32, now);
        }
        assert!(!window.only_notes());
    }

    #[test]
    fn guesses_far_ahead_leave_capacity_to_nearer_ones() {
        let now = Instant::now();
        let mut window = Window::new(FIRST, 0, now);
        for n in 10..10 + FIRST as u32 {
            window.guess(handle(n), vec![n], 10, now);
        }
        assert!(!window.is_open() && !window.is_open_at(&vec![20]));
        for n in 0..FIRST as u32 / 2 {
            assert!(window.is_open_at(&vec![n]));
            window.guess(handle(n), vec![n], 10, now);
        }
        assert!(!window.is_open_at(&vec![5]), "half of them");
    }
}
