//! One pass through a directory, and the detection of a listing that never ends.
//!
//! A cookie names one place in a directory. If a pass meets a cookie twice, the listing repeats: a fault of
//! the server (nfs-ganesha 4.3 has it on tmpfs). A reader would never reach the end, and a cache that
//! collects the entries would run out of memory. One remembered cookie is enough to detect this (Brent's
//! algorithm for cycles): the cookie of the last step whose number was a power of two.

/// The state of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    marked: Option<u64>,
    since: u64,
    until: u64,
}

impl Pass {
    /// Takes the next entry's cookie. True if the listing repeats; it is detected within three times the
    /// length of the repeated part and of the part before it. Never true for cookies that are all different.
    #[must_use]
    pub fn goes_round(&mut self, cookie: u64) -> bool {
        if self.marked == Some(cookie) {
            return true;
        }
        if self.since == self.until {
            *self = Pass { marked: Some(cookie), since: 0, until: self.until.saturating_mul(2).max(1) };
        }
        self.since += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noticed(cookies: impl IntoIterator<Item = u64>) -> Option<usize> {
        let mut pass = Pass::default();
        cookies.into_iter().position(|cookie| pass.goes_round(cookie))
    }

    #[test]
    fn the_same_cookie_again_and_again_is_noticed_at_once() {
        assert_eq!(noticed([7, 7, 7]), Some(1));
    }

    proptest! {
        #[test]
        fn what_goes_round_is_noticed_soon_and_what_does_not_never(
            cookies in proptest::collection::hash_set(any::<u64>(), 1..300),
            back in any::<prop::sample::Index>(),
        ) {
            let cookies: Vec<u64> = cookies.into_iter().collect();
            prop_assert_eq!(noticed(cookies.iter().copied()), None);
            let back = back.index(cookies.len());
            let endless = cookies.iter().chain(cookies[back..].iter().cycle()).copied();
            let at = noticed(endless.take(3 * cookies.len() + 3));
            prop_assert!(at.is_some_and(|at| at >= cookies.len()), "noticed at {:?} of {}", at, cookies.len());
        }
    }
}
