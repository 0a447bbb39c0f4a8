//! Times that are to be set once what is delayed is at the origin.
//!
//! The origin stamps a file when a WRITE arrives. Under a write lease that may be long after the program has closed the
//! file, and after it looked at its times: they are what they were then, so they are set when everything is durable. A
//! program that sets times itself while something is delayed under a write lease need not wait for either.
//!
//! Newer writes make a time of modification void.

use tokio::time::Instant;
use vfs::{Attributes, Caller, SetAttributes, SetTime, Timestamp};

/// Times to be set.
#[derive(Clone, Debug)]
pub struct Times {
    /// In whose name.
    pub caller: Caller,
    /// Last access, if it is to be set.
    pub atime: Option<Timestamp>,
    /// Last change of the data, if it is to be set.
    pub mtime: Option<Timestamp>,
    /// A program has asked for it, and is told if it fails.
    pub asked: bool,
    /// The number of the asking.
    pub first: u64,
    /// When that was.
    pub since: Instant,
}

impl Times {
    /// Those of a SETATTR that sets nothing else, with the origin's time for "now".
    pub fn of(set: &SetAttributes, now: Timestamp) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
        let (atime, mtime) = (set.atime, set.mtime);
        let alone = *set == SetAttributes { atime, mtime, ..SetAttributes::default() };
        let stamp = |time: SetTime| match time {
            SetTime::Server => now,
            SetTime::Client(time) => time,
        };
        (alone && *set != SetAttributes::default()).then(|| (atime.map(stamp), mtime.map(stamp)))
    }

    /// The SETATTR for them.
    pub fn set(&self) -> SetAttributes {
        let time = |time: Option<Timestamp>| time.map(SetTime::Client);
        SetAttributes { atime: time(self.atime), mtime: time(self.mtime), ..SetAttributes::default() }
    }

    /// What the file looks like with them.
    pub fn show(&self, attributes: &mut Attributes) {
        attributes.atime = self.atime.unwrap_or(attributes.atime);
        attributes.mtime = self.mtime.unwrap_or(attributes.mtime);
    }
}
