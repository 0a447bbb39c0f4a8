//! The local disk: the cache directory, the index, and one data file per cached remote file.

pub mod codec;
pub mod directory;
pub mod index;
pub mod objects;
pub mod pins;
pub mod records;
pub mod sparse;

pub use directory::{Directory, OpenError, is_there};
pub use index::{Batch, Index, Table};
pub use objects::{FileId, ObjectFile, Objects, Pin};
pub use pins::{Pinned, Pins};
pub use records::{DataRecord, Kept, KeptListing, Place, Record, UseNote};
