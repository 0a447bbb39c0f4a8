//! The journal: delayed writes outlast the process.
//!
//! Under a write lease a close sends nothing, so the origin may not have a file that a program has finished.
//! Everything that is delayed under a lease is therefore written to the local disk before it is answered. The
//! next process with the same cache sends what the last one has not sent.
//!
//! | module | responsibility |
//! |---|---|
//! | `entry` | the entries and their encoding |
//! | `log` | the segments on disk |
//! | `conflicts` | where writes go that cannot be sent |
//! | `listing` | which bytes of a file a list of entries has |
//! | `export` | copies of delayed writes for people |
//!
//! The journal stores. [`crate::writes`] decides which steps are entered, and what the next process does with
//! them.
//!
//! **Promise**: a write that was answered under a write lease survives the death of the process. It reaches
//! the origin in order, or is kept here and reported. Nothing is merged with another client's changes.
//!
//! A write that has been sent may be sent again: nobody else has changed the file, and later writes follow in
//! their order. The proof is the lease, if the origin has held it since. Otherwise it is the change
//! attribute: the file must be as this process last saw it.
//!
//! **Assumption**: the machine goes on, unless the journal is durable (`fsync=journal`). A journal that is
//! not is never synced, because the origin answers fsync; after a restart of the machine nothing of it is
//! sent. Synced entries of a durable one count then.

mod conflicts;
mod entry;
mod export;
mod listing;
mod log;

#[cfg(any(test, feature = "fuzzing"))]
pub use self::log::read_any;
pub use self::log::{Journal, Journaled, Restored};
pub use conflicts::{Kept, keep, kept, list_kept};
pub use entry::{Begin, Entry, Set};
pub use export::{copy_kept, export};
pub use listing::{oldest, ranges};
