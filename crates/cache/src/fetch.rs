//! A READ of the origin in flight, shared by all readers that wait for its bytes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::SetOnce;
use vfs::{Attributes, Error};

/// The result of a fetch.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The bytes from the start of the fetch's range: all of them, or fewer if the file ends before.
    pub bytes: Bytes,
    /// The file ends with them.
    pub eof: bool,
    /// Attributes that the reply carried.
    pub attributes: Option<Attributes>,
}

/// A READ of the origin in flight.
#[derive(Debug)]
pub struct Fetch {
    /// The range that it reads.
    pub range: Range<u64>,
    /// The generation of the object's data that it belongs to.
    pub generation: u64,
    /// The event at which it was planned.
    pub sequence: u64,
    /// The file's state was racy when the READ was sent: the bytes are valid only until the next open.
    pub racy: bool,
    /// A write of ours, or the open that ended the trust in racy data, overtook the fetch: it may bring old
    /// bytes. No other reader joins it, and its bytes are not stored.
    tainted: AtomicBool,
    done: SetOnce<Result<Fetched, Error>>,
}

impl Fetch {
    /// A fetch that has not been sent yet.
    pub fn new(range: Range<u64>, generation: u64, sequence: u64, racy: bool) -> Fetch {
        Fetch { range, generation, sequence, racy, tainted: AtomicBool::new(false), done: SetOnce::new() }
    }

    /// From now on the fetch may bring old bytes.
    pub fn taint(&self) {
        self.tainted.store(true, Ordering::Release);
    }

    /// May the fetch bring old bytes?
    pub fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::Acquire)
    }

    /// Waits for the result.
    pub async fn wait(&self) -> Result<Fetched, Error> {
        self.done.wait().await.clone()
    }

    /// Gives the result to every waiter. Only the first result counts.
    pub fn finish(&self, result: Result<Fetched, Error>) {
        let _ = self.done.set(result);
    }
}
