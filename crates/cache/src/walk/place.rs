//! A directory of a walk: where it is, what is in it, and how far guesses have got in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, Name};

use super::Action;
use super::roster::Roster;
use super::window::Position;
use crate::listing::LISTING_BYTES_MAX;

/// Attributes that came longer ago may be out of date. The guess finds out.
pub const OLD_MIN: Duration = Duration::from_secs(1);

/// Attributes that came longer ago are out of date, unless a lease vouches for them.
pub const EXPIRED_MIN: Duration = Duration::from_secs(3);

/// The size of a directory up to which two names are worth its listing, in bytes.
const SMALL_BYTES: u64 = 16 << 10;

/// The size of a directory up to which one reply may hold its listing, in bytes. An entry with attributes
/// takes about eight times as much there as in the directory.
const ONE_REPLY_BYTES: u64 = LISTING_BYTES_MAX as u64 / 8;

/// So many directories within one are guessed before the reader goes into any of them.
const VENTURE_MAX: u32 = 8;

/// A directory of a walk.
#[derive(Debug)]
pub struct Place {
    /// The directory in which it is, and its name there. `None` where the walk began.
    pub at: Option<(Handle, Name)>,
    pub position: Position,
    pub roster: Option<Arc<Roster>>,
    /// The ranks from which directories and files are guessed.
    pub ahead: [u32; 2],
    /// Steps before the roster was known.
    pub pending: Vec<Action>,
    /// The last file that was opened.
    pub opened: Option<Name>,
    /// The last name that was looked up.
    pub looked: Option<Name>,
    /// When the reader was last seen here.
    pub visited: Option<Instant>,
    /// When the reader last opened it.
    pub entered: Option<Instant>,
    /// When the roster came.
    pub listed: Option<Instant>,
    /// Its listing did not fit into one reply, or took too long.
    pub costly: bool,
    /// Names that were looked up since.
    pub misses: u32,
    /// Its size in bytes, as the origin tells it. Zero if that is not known.
    pub bytes: u64,
    /// The reader has been here since the last guess.
    pub used: bool,
    /// Listings that were guessed of directories in it, since the reader was last in one of them.
    pub ventured: u32,
}

/// Is an entry to be guessed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Now,
    /// Not as long as the earlier guess of it is believed.
    Later,
    Never,
}

impl Place {
    /// Has the listing come so lately that its attributes are believed for a while?
    pub fn is_recent(&self, now: Instant) -> bool {
        self.listed.is_some_and(|at| now.saturating_duration_since(at) < OLD_MIN)
    }

    /// Has the reader looked up so many names here that their calls cost more than the listing?
    pub fn is_needed(&self) -> bool {
        self.is_small() && (self.pending.len() >= 2 || self.misses >= 2)
    }

    /// Have so many directories in it been guessed in vain that the reader probably passes them?
    pub fn is_avoided(&self) -> bool {
        self.ventured >= VENTURE_MAX
    }

    /// May the listing be small?
    pub fn is_small(&self) -> bool {
        self.bytes <= SMALL_BYTES
    }

    /// Has the listing come, and not the reader?
    pub fn is_unused(&self) -> bool {
        self.listed.is_some() && !self.used
    }

    /// Are the attributes of the entries out of date?
    pub fn has_expired(&self, now: Instant) -> bool {
        self.listed.is_none_or(|at| now.saturating_duration_since(at) >= EXPIRED_MIN)
    }

    /// Are the entries known, and did their attributes come so long ago that they may not be believed any
    /// more?
    pub fn is_old(&self, now: Instant) -> bool {
        self.roster.is_some() && !self.is_recent(now)
    }
}

/// May one reply hold the listing of a directory of so many bytes?
pub fn is_one_reply(directory_bytes: u64) -> bool {
    directory_bytes <= ONE_REPLY_BYTES
}

/// Has a reader that goes depth first left this directory, and all directories in it?
pub fn is_passed(reader: &Position, directory: &Position) -> bool {
    directory < reader && !reader.starts_with(directory)
}

/// The key of a cursor at a rank of a directory.
pub fn key(directory: &Position, rank: u32) -> Position {
    let mut at = directory.clone();
    at.push(rank);
    at
}
