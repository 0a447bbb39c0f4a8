//! The delayed writes of a file, and what remains of them.

use std::collections::VecDeque;

use crate::writes::Writes;

/// Delayed writes of a file.
#[derive(Debug, Default)]
pub struct DelayedData {
    /// The writes, if any.
    pub writes: Option<Box<Writes>>,
    /// The delayed writes that reached the origin. Attributes that were requested before may not show them.
    pub landings: VecDeque<Landing>,
    /// The file was removed before its delayed writes were sent: nobody has its contents any more.
    pub dropped: bool,
}

/// A delayed write that reached the origin.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    /// When.
    pub event: u64,
    /// Where the file ended then.
    pub end: u64,
    /// A number of the state of then that nobody else has. `None` if one client alone reads here.
    pub salt: Option<u64>,
}
