//! `/dev/fuse`: the descriptors of one connection to the kernel.
//!
//! Each reader thread has a descriptor of its own where the kernel can clone one, so that they do not queue for a lock.
//! Replies and notifications may be written by any thread; a write is atomic.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys;
use crate::wire::abi::{IN_HEADER_BYTES, WRITE_OVERHEAD_BYTES};
use crate::wire::reply::{self, Outcome};

/// Where the kernel offers FUSE.
pub const PATH: &str = "/dev/fuse";

/// Messages up to this size are copied out of the buffer, so that it can be used again: a new one has to be cleared, page
/// by page, which takes longer than to copy a quarter of it.
const COPY_MAX_BYTES: usize = 256 << 10;

/// Opens the device: a connection that is mounted nowhere yet.
pub fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// One connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    fd: Arc<OwnedFd>,
}

impl Device {
    /// The connection of a descriptor that has been mounted.
    pub fn new(fd: OwnedFd) -> Device {
        Device { fd: Arc::new(fd) }
    }

    /// Another descriptor of the same connection, for a reader; the same one, where the kernel cannot clone.
    pub fn another(&self) -> Device {
        let cloned = open().and_then(|new| sys::clone_device(new.as_fd(), self.as_fd()).map(|()| new));
        cloned.map_or_else(|_| self.clone(), Device::new)
    }

    /// Sends a reply.
    ///
    /// # Errors
    /// `NOENT` if nobody waits for it any more.
    pub fn reply(&self, unique: u64, outcome: &Outcome) -> Result<(), Errno> {
        reply::with_reply(unique, outcome, |parts| self.send(parts))
    }

    /// Sends a notification. What it speaks of may be gone; that is no error.
    ///
    /// # Errors
    /// `NODEV` if the file system is no longer mounted.
    pub fn notify(&self, notification: &[u8]) -> Result<(), Errno> {
        match self.send(&[IoSlice::new(notification)]) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            other => other,
        }
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&*self.fd, parts)).map(drop)
    }

    /// Registers a file that reads may go to.
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> Result<Backing, Errno> {
        let id = sys::open_backing(self.as_fd(), file)?;
        Ok(Backing { device: self.clone(), id })
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file that the kernel reads by itself, until it is dropped.
#[derive(Debug)]
pub struct Backing {
    device: Device,
    /// Its number with the connection.
    pub id: u32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // The connection may be gone, and the number with it.
        let _ = sys::close_backing(self.device.as_fd(), self.id);
    }
}

/// Reads requests.
#[derive(Debug)]
pub struct Reader {
    device: Device,
    buffer: BytesMut,
    size: usize,
}

impl Reader {
    /// A reader for writes of at most `max_write` bytes.
    pub fn new(device: Device, max_write: u32) -> Reader {
        let size = max_write as usize + WRITE_OVERHEAD_BYTES;
        Reader { device, buffer: BytesMut::new(), size }
    }

    /// Where replies to what it reads go.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The next request; `None` when the file system is unmounted or the connection was aborted.
    pub fn next(&mut self) -> Result<Option<Bytes>, Errno> {
        loop {
            self.buffer.resize(self.size, 0);
            match rustix::io::read(&self.device, &mut self.buffer[..]) {
                Ok(length) if length < IN_HEADER_BYTES => return Err(Errno::IO),
                Ok(length) => return Ok(Some(self.take(length))),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // Interrupted while it was being read: the next one.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn take(&mut self, length: usize) -> Bytes {
        if length <= COPY_MAX_BYTES {
            return Bytes::copy_from_slice(&self.buffer[..length]);
        }
        self.buffer.split_to(length).freeze()
    }
}
