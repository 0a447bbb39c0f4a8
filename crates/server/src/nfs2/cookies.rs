//! Directory cookies of 32 bits for back ends that have 64.
//!
//! A cookie that fits goes out as it is. Any other goes out as a hash with the top bit set, and is remembered; if it is
//! forgotten (the table is bounded, a restart empties it), the directory is read from its start until an entry's cookie
//! has that hash.

use std::collections::HashMap;
use std::hash::Hasher;

use parking_lot::Mutex;
use siphasher::sip::SipHasher;
use vfs::{Caller, Handle, ReadDir, Status};

use crate::exports::Export;

const HASHED: u32 = 1 << 31;
/// Cookies remembered at most: those given last of many directories being read at once.
const REMEMBERED_MAX: usize = 4096;

/// Hashed cookies that were given out.
#[derive(Debug, Default)]
pub(crate) struct Cookies(Mutex<HashMap<(Handle, u32), u64>>);

impl Cookies {
    /// What goes out for a cookie of `directory`.
    pub(crate) fn shorten(cookie: u64) -> u32 {
        if cookie < HASHED.into() {
            return cookie as u32;
        }
        let mut hasher = SipHasher::new();
        hasher.write_u64(cookie);
        HASHED | hasher.finish() as u32
    }

    /// Remembers where a client will go on.
    pub(crate) fn remember(&self, directory: &Handle, cookie: u64) {
        let short = Cookies::shorten(cookie);
        if short & HASHED != 0 {
            let mut remembered = self.0.lock();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert((*directory, short), cookie);
        }
    }

    /// The cookie behind one that came back.
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
        if let Some(cookie) = self.0.lock().get(&(*directory, short)) {
            return Ok(*cookie);
        }
        let mut part = ReadDir { cookie: 0, verifier: [0; 8], bytes: 1 << 16, plus: false };
        loop {
            let listing = export.fs.readdir(caller, directory, part).await?;
            if let Some(entry) = listing.entries.iter().find(|entry| Cookies::shorten(entry.cookie) == short)
            {
                return Ok(entry.cookie);
            }
            match listing.entries.last() {
                Some(last) if !listing.eof => {
                    part = ReadDir { cookie: last.cookie, verifier: listing.verifier, ..part }
                }
                _ => return Err(Status::BadCookie.into()),
            }
        }
    }
}
