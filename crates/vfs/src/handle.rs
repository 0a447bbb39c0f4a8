//! The name that a back end gives a file.
//!
//! A handle is opaque to all layers but the back end that made it. It stays valid across restarts and
//! renames, and is small enough to be passed by value. The server adds the export and the check against
//! forgery (law 6). Below the front, every handle is one that the back end has given out.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// An opaque file handle of at most [`Handle::MAX`] bytes.
#[derive(Clone, Copy)]
pub struct Handle {
    length: u8,
    bytes: [u8; Handle::MAX],
}

impl Handle {
    /// The longest handle of any protocol: `NFS4_FHSIZE` (RFC 8881, section 3.2).
    pub const MAX: usize = 128;

    /// The handle with these bytes, or `None` if there are more than [`Handle::MAX`] of them.
    pub fn new(bytes: &[u8]) -> Option<Handle> {
        if bytes.len() > Handle::MAX {
            return None;
        }
        let mut handle = Handle { length: bytes.len() as u8, bytes: [0; Handle::MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        Some(handle)
    }

    /// The bytes, as the back end made them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length as usize]
    }
}

impl PartialEq for Handle {
    fn eq(&self, other: &Handle) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl PartialOrd for Handle {
    fn partial_cmp(&self, other: &Handle) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Handle {
    fn cmp(&self, other: &Handle) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A handle in a table. A [`Handle`] takes 129 bytes, and most have a quarter of that. This one is stored
/// once, in its own length, and shared by all entries about its file. Tables are searched with
/// [`Handle::as_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedHandle(Arc<[u8]>);

impl SharedHandle {
    /// Stores a handle.
    pub fn new(handle: &Handle) -> SharedHandle {
        SharedHandle(handle.as_bytes().into())
    }

    /// The handle as a value.
    pub fn handle(&self) -> Handle {
        Handle::new(&self.0).unwrap_or_else(|| unreachable!("it was made of one"))
    }

    /// The bytes, as the back end made them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same bytes in memory, not only equal ones?
    pub fn is_shared_with(&self, other: &SharedHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl From<&Handle> for SharedHandle {
    fn from(handle: &Handle) -> SharedHandle {
        SharedHandle::new(handle)
    }
}

impl Borrow<[u8]> for SharedHandle {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_bytes() {
        let handle = Handle::new(b"\x01\xff").unwrap();
        assert_eq!(handle.as_bytes(), b"\x01\xff");
        assert_eq!(handle.to_string(), "01ff");
        assert_ne!(handle, Handle::new(b"\x01\xff\x00").unwrap());
        assert!(Handle::new(&[0; 129]).is_none());
        assert_eq!(SharedHandle::from(&handle).handle(), handle);
    }
}
