//! What replies to READDIR have in common in every version: which entries pass, and where the next request
//! begins.
//!
//! The entries `.` and `..` are dropped, so a reply may have no entry to pass on although more entries
//! follow.

use vfs::{Listing, Name, ReadDir, Verifier};

use crate::cookie;

/// Space for any entry. No smaller reply is asked for.
pub(crate) const BYTES_MIN: u32 = 4096;
/// Most replies in a row without an entry to pass on.
pub(crate) const EMPTY_MAX: u32 = 4;

/// The start of a request: the origin's cookie, and its verifier.
pub(crate) type Place = (u64, Verifier);

/// The start for a request of the layer above.
pub(crate) fn place(part: &ReadDir) -> Place {
    let cookie = cookie::to_origin(part.cookie);
    (cookie, if cookie == 0 { [0; 8] } else { part.verifier })
}

/// One reply.
pub(crate) struct Part {
    pub(crate) listing: Listing,
    /// The origin's cookie of the last entry, even if that entry was dropped.
    pub(crate) last_cookie: Option<u64>,
}

impl Part {
    /// Does the reply have an entry to pass on, or the end?
    pub(crate) fn says_something(&self) -> bool {
        !self.listing.entries.is_empty() || self.listing.eof
    }

    /// The start of the next request. `None` if it would not advance.
    pub(crate) fn next(&self, begun: Place) -> Option<Place> {
        self.last_cookie.filter(|last| *last != begun.0).map(|last| (last, self.listing.verifier))
    }
}

/// The name and cookie of an entry. `None` for `.` and `..`.
///
/// # Errors
/// A description of an entry that no server may send.
pub(crate) fn name_of(name: &[u8], cookie: u64) -> Result<Option<(Name, u64)>, String> {
    if matches!(name, b"." | b"..") {
        return Ok(None);
    }
    let passed_on = Name::new(name).map_err(|_| format!("an entry named \"{}\"", name.escape_ascii()))?;
    let cookie = cookie::from_origin(cookie).ok_or_else(|| format!("an entry with cookie {cookie}"))?;
    Ok(Some((passed_on, cookie)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(last_cookie: Option<u64>) -> Part {
        let listing = Listing {
            entries: Vec::new(),
            verifier: [7; 8],
            eof: false,
            directory: None,
            directory_lease: None,
        };
        Part { listing, last_cookie }
    }

    #[test]
    fn an_answer_without_entries_leads_on_if_it_gets_anywhere() {
        assert_eq!(part(Some(12)).next((5, [1; 8])), Some((12, [7; 8])));
        assert_eq!(part(Some(5)).next((5, [1; 8])), None);
        assert_eq!(part(None).next((5, [1; 8])), None);
        assert!(!part(Some(12)).says_something());
    }

    #[test]
    fn the_beginning_has_no_verifier() {
        let from = |cookie| {
            place(&ReadDir {
                cookie,
                verifier: [7; 8],
                bytes: 1,
                plus: false,
                want_directory_lease: false,
                names_suffice: false,
            })
        };
        assert_eq!([from(0), from(2), from(3)], [(0, [0; 8]), (0, [0; 8]), (3, [7; 8])]);
    }

    #[test]
    fn what_is_no_name_is_told() {
        assert_eq!(name_of(b"..", 4), Ok(None));
        assert_eq!(name_of(b"f", 4), Ok(Some((Name::new(b"f").unwrap(), 4))));
        assert_eq!(name_of(b"a/b", 4), Err("an entry named \"a/b\"".into()));
        assert_eq!(name_of(b"f", 0), Err("an entry with cookie 0".into()));
    }
}
