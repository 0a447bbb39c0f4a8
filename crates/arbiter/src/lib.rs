//! Who of our clients holds what: a `vfs::FileSystem` over another, under every front.
//!
//! The arbiter is where an operation meets what other clients hold. The check for a conflict, the recall that settles
//! it, the grant, and the operation itself are one transition here; fronts never reach below. What is held is kept by
//! pure state machines ([`shares`]), and the asynchronous trait is their shell.
//!
//! Today clients hold opens with share reservations; v2 and v3 clients, which hold nothing, are anonymous and are held
//! against the reservations of the others. Leases of our own come with the protocols that can recall them.

mod filesystem;
pub mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use vfs::{FileSystem, Handle, OpenId, Result, Share};

use shares::Shares;

/// See the module.
pub struct Arbiter {
    below: Arc<dyn FileSystem>,
    shares: Mutex<Shares>,
    next_open: AtomicU64,
}

impl Arbiter {
    /// An arbiter over `below`, with nothing held.
    pub fn new(below: Arc<dyn FileSystem>) -> Arbiter {
        Arbiter { below, shares: Mutex::default(), next_open: AtomicU64::new(1) }
    }

    fn open_id(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }

    /// May somebody without an open use the file so?
    fn admit_anonymous(&self, handle: &Handle, share: Share) -> Result<()> {
        self.shares.lock().admit(handle, share).map_err(Into::into)
    }
}
