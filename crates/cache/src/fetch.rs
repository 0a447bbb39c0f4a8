//! A READ of the origin that is under way, shared by all who wait for its bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::SetOnce;
use vfs::{Attributes, Error};

/// What a fetch brought.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The bytes from the start of the fetch's range on: all of it, or fewer if the file ends before.
    pub bytes: Bytes,
    /// The file ends with them.
    pub eof: bool,
    /// Attributes that came along.
    pub attributes: Option<Attributes>,
}

/// A READ of the origin that is under way.
#[derive(Debug)]
pub struct Fetch {
    /// What it reads.
    pub range: Range<u64>,
    /// Of which life of the object's data.
    pub generation: u64,
    /// When it was planned, in the sequence of all sendings.
    pub sequence: u64,
    /// The file's state was not settled when it was sent: what it brings is good until the next open only.
    pub racy: bool,
    /// A write of ours, or the end of trust in young data, overtook it: it may bring old bytes. Nobody else joins it,
    /// and nothing of it is stored.
    tainted: AtomicBool,
    done: SetOnce<Result<Fetched, Error>>,
}

impl Fetch {
    /// One that has not been sent yet.
    pub fn new(range: Range<u64>, generation: u64, sequence: u64, racy: bool) -> Fetch {
        Fetch { range, generation, sequence, racy, tainted: AtomicBool::new(false), done: SetOnce::new() }
    }

    /// From now on it may bring old bytes.
    pub fn taint(&self) {
        self.tainted.store(true, Ordering::Release);
    }

    /// May it bring old bytes?
    pub fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }

    /// Waits for what it brings.
    pub async fn wait(&self) -> Result<Fetched, Error> {
        self.done.wait().await.clone()
    }

    /// Tells everyone who waits. The first word counts.
    pub fn finish(&self, result: Result<Fetched, Error>) {
        let _ = self.done.set(result);
    }
}
