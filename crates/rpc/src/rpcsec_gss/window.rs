//! The sequence window of a context (RFC 2203, section 5.3.3.1): each number is taken once, and none that is
//! far below the highest.

/// Numbers that may be in use at once. A client sends a call again, with a new number, once its number has
/// fallen out of the window, so the window is larger than the slots of a session.
pub const WINDOW: u32 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

/// The numbers that were taken.
#[derive(Debug)]
pub struct Window {
    /// The highest number so far.
    highest: u32,
    /// One bit for each number of the window, at the number modulo [`WINDOW`].
    taken: [u64; WORDS],
    is_fresh: bool,
}

impl Window {
    /// Nothing is taken.
    pub fn new() -> Window {
        Window { highest: 0, taken: [0; WORDS], is_fresh: true }
    }

    /// Takes a number. False if it was taken before, or may have been.
    pub fn take(&mut self, number: u32) -> bool {
        if self.is_fresh {
            self.is_fresh = false;
            self.highest = number;
        } else if number > self.highest {
            // A jump beyond the window forgets all of it.
            let steps = (number - self.highest).min(WINDOW);
            (0..steps).for_each(|back| self.clear(number - back));
            self.highest = number;
        } else if self.highest - number >= WINDOW {
            return false;
        }
        let (word, bit) = place(number);
        let was_taken = self.taken[word] & bit != 0;
        self.taken[word] |= bit;
        !was_taken
    }

    fn clear(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.taken[word] &= !bit;
    }
}

fn place(number: u32) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_number_is_taken_once_and_an_old_one_never() {
        let mut window = Window::new();
        assert!(window.take(0) && !window.take(0));
        assert!(window.take(5) && window.take(3) && !window.take(3) && !window.take(5));
        assert!(window.take(WINDOW + 4) && !window.take(4), "it has left the window untaken");
        assert!(window.take(6) && window.take(u32::MAX) && !window.take(7));
        assert!(window.take(u32::MAX - WINDOW + 1) && !window.take(u32::MAX - WINDOW));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set(numbers in proptest::collection::vec(0..4 * WINDOW, 1..400)) {
            let (mut window, mut taken) = (Window::new(), HashSet::new());
            let mut highest = numbers[0];
            for number in numbers {
                let is_old = number + WINDOW <= highest;
                highest = highest.max(number);
                prop_assert_eq!(window.take(number), !is_old && taken.insert(number));
            }
        }
    }
}
