//! A directory of a walk: where it is, what is in it, and how far guesses have got in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Handle, Name};

use super::Action;
use super::roster::Roster;
use super::window::Position;

/// Attributes that came longer ago may be out of date. The guess finds out.
pub const OLD_MIN: Duration = Duration::from_secs(2);

/// The size of a directory up to which two names are worth its listing, in bytes.
const SMALL_BYTES: u64 = 16 << 10;

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
    /// When the roster came.
    pub listed: Option<Instant>,
    /// Names that were looked up since.
    pub misses: u32,
    /// Its size in bytes, as the origin tells it. Zero if that is not known.
    pub bytes: u64,
    /// The reader has been here since the last guess.
    pub used: bool,
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

    /// May the listing be small?
    pub fn is_small(&self) -> bool {
        self.bytes <= SMALL_BYTES
    }

    /// Has the listing come, and the reader not?
    pub fn is_unused(&self) -> bool {
        self.listed.is_some() && !self.used
    }

    /// Has the listing come so long ago that its attributes may not be believed any more?
    pub fn is_old(&self, now: Instant) -> bool {
        self.listed.is_some_and(|at| now.saturating_duration_since(at) >= OLD_MIN)
    }
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
