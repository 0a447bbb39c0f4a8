//! Directory cookies of 32 bits for back ends whose cookies have 64.
//!
//! A cookie that fits is sent unchanged. Any other is sent as a hash with the top bit set, and is
//! remembered. The table is bounded and a restart empties it. If a cookie is not in it, the server reads
//! the directory from its start until the cookie of an entry has that hash. A client can make up such a
//! cookie. So only one search runs at a time, and a search ends after [`SEARCHED_MAX`] entries or when the
//! cookies repeat.

use std::collections::HashMap;
use std::hash::Hasher;

use parking_lot::Mutex;
use siphasher::sip::SipHasher;
use tokio::sync::Semaphore;
use vfs::{Caller, Entry, Handle, Listing, Pass, ReadDir, Status};

use crate::exports::Export;

const HASHED: u32 = 1 << 31;
/// Cookies remembered at most. This suffices for the last ones of many directories that clients read at
/// once.
const REMEMBERED_MAX: usize = 4096;

/// Entries that one search looks at, at most.
const SEARCHED_MAX: usize = 1 << 20;

/// Hashed cookies that the server has sent.
#[derive(Debug)]
pub(crate) struct Cookies {
    remembered: Mutex<HashMap<(Handle, u32), u64>>,
    /// Permits one search at a time.
    searching: Semaphore,
}

impl Default for Cookies {
    fn default() -> Cookies {
        Cookies { remembered: Mutex::default(), searching: Semaphore::new(1) }
    }
}

impl Cookies {
    /// The 32-bit form of a cookie.
    pub(crate) fn shorten(cookie: u64) -> u32 {
        if cookie < HASHED.into() {
            return cookie as u32;
        }
        let mut hasher = SipHasher::new();
        hasher.write_u64(cookie);
        HASHED | hasher.finish() as u32
    }

    /// Remembers the cookie at which a client will continue.
    pub(crate) fn remember(&self, directory: &Handle, cookie: u64) {
        let short = Cookies::shorten(cookie);
        if short & HASHED != 0 {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert((*directory, short), cookie);
        }
    }

    /// The cookie for a 32-bit form that a client sent.
    pub(crate) async fn lengthen(
        &self,
        export: &Export,
        caller: &Caller,
        directory: &Handle,
        short: u32,
    ) -> vfs::Result<u64> {
        if short & HASHED == 0 {
            return Ok(short.into());
        }
        let known = || self.remembered.lock().get(&(*directory, short)).copied();
        if let Some(cookie) = known() {
            return Ok(cookie);
        }
        // The semaphore is never closed.
        let _turn = self.searching.acquire().await.map_err(|_| Status::ServerFault)?;
        if let Some(cookie) = known() {
            return Ok(cookie);
        }
        let mut search = Search { short, pass: Pass::default(), searched: 0 };
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: 1 << 16,
            plus: false,
            want_directory_lease: false,
            names_suffice: false,
        };
        loop {
            let listing = export.fs().readdir(caller, directory, part).await?;
            match search.look_at(&listing)? {
                Step::Found(cookie) => {
                    self.remember(directory, cookie);
                    return Ok(cookie);
                }
                Step::GoOn(cookie) => part = ReadDir { cookie, verifier: listing.verifier, ..part },
            }
        }
    }
}

/// Reads through a directory until the cookie of an entry has this hash.
struct Search {
    short: u32,
    pass: Pass,
    searched: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Found(u64),
    /// Continue from this cookie.
    GoOn(u64),
}

impl Search {
    /// Searches the next part of the directory.
    ///
    /// # Errors
    /// `BadCookie` at the end of the directory, and when the limit of the search is reached.
    fn look_at(&mut self, listing: &Listing) -> Result<Step, Status> {
        let is_it = |entry: &&Entry| Cookies::shorten(entry.cookie) == self.short;
        if let Some(entry) = listing.entries.iter().find(is_it) {
            return Ok(Step::Found(entry.cookie));
        }
        self.searched += listing.entries.len();
        match listing.entries.last() {
            Some(last)
                if !listing.eof && self.searched < SEARCHED_MAX && !self.pass.goes_round(last.cookie) =>
            {
                Ok(Step::GoOn(last.cookie))
            }
            _ => Err(Status::BadCookie),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Name;

    const PAGE: u64 = 1 << 12;

    /// A part of an endless directory whose cookies repeat after `period` entries.
    fn page(from: u64, period: u64) -> Listing {
        let first = from.saturating_sub(1 << 40);
        let cookie = |at| (1 << 40) + at % period + 1;
        let entry = |at| Entry {
            name: Name::new(b"name").unwrap(),
            fileid: 7,
            cookie: cookie(at),
            node: None,
            file_type: None,
        };
        let entries = (first..first + PAGE).map(entry).collect();
        Listing { entries, verifier: [0; 8], eof: false, directory: None, directory_lease: None }
    }

    /// The result of a search, and the number of parts that it read.
    fn searched(short: u32, period: u64) -> (Result<u64, Status>, u64) {
        let mut search = Search { short, pass: Pass::default(), searched: 0 };
        let (mut cookie, mut pages) = (0, 0);
        loop {
            pages += 1;
            match search.look_at(&page(cookie, period)) {
                Ok(Step::Found(found)) => return (Ok(found), pages),
                Ok(Step::GoOn(from)) => cookie = from,
                Err(status) => return (Err(status), pages),
            }
        }
    }

    #[test]
    fn the_search_for_a_made_up_cookie_ends() {
        for (period, most) in [(PAGE, 3), (3 * PAGE, 12), (u64::MAX, SEARCHED_MAX as u64 / PAGE)] {
            // No entry of the directory has a hash of zeros.
            let (found, pages) = searched(HASHED, period);
            assert_eq!(found, Err(Status::BadCookie));
            assert!(pages <= most, "{pages} pages of a period of {period}");
        }
        let far = (1 << 40) + 5 * PAGE;
        assert_eq!(searched(Cookies::shorten(far), u64::MAX), (Ok(far), 5));
    }
}
