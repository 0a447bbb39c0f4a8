//! `/dev/fuse`: the descriptors of one connection to the kernel.
//!
//! Each reader thread has its own descriptor, if the kernel can clone one, so that readers do not contend
//! for a lock. Any thread may write replies and notifications; a write is atomic.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::sys;
use crate::wire::abi::{IN_HEADER_BYTES, WRITE_OVERHEAD_BYTES};
use crate::wire::reply::{self, Outcome};

/// The FUSE device.
pub const PATH: &str = "/dev/fuse";

/// Messages up to this size are copied out of the buffer, so that the buffer can be reused. A new buffer
/// must be zeroed page by page, which takes longer than copying a quarter of it.
const COPY_MAX_BYTES: usize = 256 << 10;

/// Opens the device: a connection that is not mounted yet.
pub fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// One connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    fd: Arc<OwnedFd>,
}

impl Device {
    /// The connection of a mounted descriptor.
    pub fn new(fd: OwnedFd) -> Device {
        Device { fd: Arc::new(fd) }
    }

    /// Another descriptor of the same connection for a reader, or the same descriptor if the kernel cannot
    /// clone.
    pub fn another(&self) -> Device {
        let cloned = open().and_then(|new| sys::clone_device(new.as_fd(), self.as_fd()).map(|()| new));
        cloned.map_or_else(|_| self.clone(), Device::new)
    }

    /// Sends a reply.
    ///
    /// # Errors
    /// `NOENT` if the request no longer waits for a reply.
    pub fn reply(&self, unique: u64, outcome: &Outcome) -> Result<(), Errno> {
        reply::with_reply(unique, outcome, |parts| self.send(parts))
    }

    /// Sends a notification. Its node or name may not exist any more; that is no error.
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

    /// Registers a file for passthrough reads.
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

/// A file registered for passthrough. Dropping it unregisters it.
#[derive(Debug)]
pub struct Backing {
    device: Device,
    /// Its id within the connection.
    pub id: u32,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // The connection may be gone, and the id with it.
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
    /// A reader for WRITEs of at most `max_write` bytes.
    pub fn new(device: Device, max_write: u32) -> Reader {
        let size = max_write as usize + WRITE_OVERHEAD_BYTES;
        Reader { device, buffer: BytesMut::new(), size }
    }

    /// The descriptor that replies to these requests go to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The next request; `None` if the file system is unmounted or the connection was aborted.
    pub fn next(&mut self) -> Result<Option<Bytes>, Errno> {
        loop {
            self.buffer.resize(self.size, 0);
            match rustix::io::read(&self.device, &mut self.buffer[..]) {
                Ok(length) if length < IN_HEADER_BYTES => return Err(Errno::IO),
                Ok(length) => return Ok(Some(self.take(length))),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                // The request was interrupted while it was read: try the next one.
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
