//! Directory cookies: the origin's, and ours, which reserve 0, 1 and 2 for the fronts.
//!
//! An origin's cookies may be any number. Nearly all servers use 1 and 2 for `.` and `..`, which the client
//! drops, so other cookies pass unchanged. Some servers number entries from the first file, and then files
//! have the cookies 1 and 2. These two cookies are replaced by two numbers that no known file system uses:
//! just below 2⁶³-1, which is ext4's end of a directory. The replacements stay below 2⁶³, because a Linux
//! client treats a cookie as a signed file offset.

use vfs::Entry;

/// Replaces the origin's cookie 1.
const ALIAS_1: u64 = i64::MAX as u64 - 2;
/// Replaces the origin's cookie 2.
const ALIAS_2: u64 = i64::MAX as u64 - 1;

/// Converts a cookie of the origin. `None` if it has no replacement.
pub(crate) fn from_origin(cookie: u64) -> Option<u64> {
    match cookie {
        0 | ALIAS_1 | ALIAS_2 => None,
        1 => Some(ALIAS_1),
        2 => Some(ALIAS_2),
        _ => Some(cookie),
    }
}

/// Converts a cookie of ours.
pub(crate) fn to_origin(cookie: u64) -> u64 {
    match cookie {
        ALIAS_1 => 1,
        ALIAS_2 => 2,
        // A position after `.` or `..`, which only fronts have, is the start.
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
