//! Sets of addresses as sorted ranges of numbers.
//!
//! Each call asks whether its peer is on a list. A binary search keeps the answer cheap for long lists.

/// Ranges of numbers in ascending order. None overlaps another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges<N> {
    firsts: Vec<N>,
    /// The last number of each range.
    lasts: Vec<N>,
}

impl<N: Copy + Ord> Ranges<N> {
    /// Joins ranges, each with its first and last number, that overlap.
    pub(super) fn new(mut ranges: Vec<(N, N)>) -> Ranges<N> {
        ranges.sort_unstable();
        let mut joined = Ranges::default();
        for (first, last) in ranges {
            match joined.lasts.last_mut() {
                Some(end) if first <= *end => *end = last.max(*end),
                _ => {
                    joined.firsts.push(first);
                    joined.lasts.push(last);
                }
            }
        }
        joined
    }

    /// Is the number in one of them?
    pub(super) fn contain(&self, number: N) -> bool {
        let begun = self.firsts.partition_point(|first| *first <= number);
        begun.checked_sub(1).and_then(|at| self.lasts.get(at)).is_some_and(|last| number <= *last)
    }
}

impl<N> Default for Ranges<N> {
    fn default() -> Ranges<N> {
        Ranges { firsts: Vec::new(), lasts: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::cmp::Ordering;

    /// A number that counts how often it is compared.
    #[derive(Clone, Copy)]
    struct Counted<'c>(u32, &'c Cell<u32>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }
    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Eq for Counted<'_> {}
    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    /// Each call pays for the length of the list. One network after another took a tenth of a GETATTR.
    #[test]
    fn a_list_of_64_networks_takes_a_call_few_comparisons() {
        let compared = Cell::new(0);
        let network = |at: u32| (Counted(at << 16, &compared), Counted((at << 16) + 9, &compared));
        let ranges = Ranges::new((0..64).map(network).collect());
        for (number, within) in [(63 << 16, true), ((63 << 16) + 10, false), (9, true), (10, false)] {
            compared.set(0);
            assert_eq!(ranges.contain(Counted(number, &compared)), within);
            assert!(compared.get() <= 9, "{} comparisons", compared.get());
        }
    }
}
