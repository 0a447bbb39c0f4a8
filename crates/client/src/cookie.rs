//! Directory cookies: the origin's, and ours, which leave 0, 1 and 2 to the fronts.
//!
//! An origin's cookies may be any number. Nearly all servers use 1 and 2 for `.` and `..`, which are dropped here, so
//! cookies pass as they are; those that begin to count with the first file give 1 and 2 to files, and these two trade
//! places with two numbers that no file system is known to use: just below ext4's end of a directory, 2⁶³-1. They stay
//! below 2⁶³, because a Linux client takes a cookie for a signed file offset.

use vfs::Entry;

/// What stands for the origin's 1.
const ALIAS_1: u64 = i64::MAX as u64 - 2;
/// What stands for the origin's 2.
const ALIAS_2: u64 = i64::MAX as u64 - 1;

/// Ours for one of the origin's; `None` for those that nothing can stand for.
pub(crate) fn from_origin(cookie: u64) -> Option<u64> {
    match cookie {
        0 | ALIAS_1 | ALIAS_2 => None,
        1 => Some(ALIAS_1),
        2 => Some(ALIAS_2),
        _ => Some(cookie),
    }
}

/// The origin's for one of ours.
pub(crate) fn to_origin(cookie: u64) -> u64 {
    match cookie {
        ALIAS_1 => 1,
        ALIAS_2 => 2,
        // Behind `.` or `..`, which only fronts have, is the start.
        0..Entry::FIRST_COOKIE => 0,
        _ => cookie,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_come_back() {
        for cookie in
            (1..1000).chain([1 << 31, 1 << 32, i64::MAX as u64 - 3, i64::MAX as u64, 1 << 63, u64::MAX])
        {
            let ours = from_origin(cookie).unwrap();
            assert!(ours >= Entry::FIRST_COOKIE);
            assert_eq!(to_origin(ours), cookie);
        }
        assert!([0, ALIAS_1, ALIAS_2].iter().all(|&cookie| from_origin(cookie).is_none()));
        assert!([0, 1, 2].iter().all(|&cookie| to_origin(cookie) == 0));
    }
}
