//! The format of handles of local files.
//!
//! | kind | bytes | names |
//! |---|---|---|
//! | 1 | tag 2, type 1, kernel handle | a file by the kernel's own handle (inode and generation) |
//! | 2 | tag 2, inode 8, birth 8 | a file through the [`table`] of names, without kernel handles |
//! | 3 | fsid 8, type 1, kernel handle | as 1, if the tags of two file systems collide |
//!
//! The tag names the file system (see [`crate::mounts`]). Handles of ext4 (12 bytes in all) and tmpfs (16)
//! are at most 19 bytes long, so that they fit NFSv2 with a server's wrapping. No handle is longer than 51
//! bytes.
//!
//! A handle survives renames and restarts. It is stale once the inode is gone, even if another file gets
//! the inode's number. The server checks whether a handle was ever given out: the kernel opens any file of
//! the file system by a valid handle.

pub(crate) mod table;

use vfs::Handle;

use crate::sys::KernelHandle;

const KERNEL: u8 = 1;
const TABLE: u8 = 2;
const KERNEL_LONG: u8 = 3;

/// The longest kernel handle that fits after a full fsid.
const LONG_MAX: usize = 51 - 1 - 8 - 1;

/// A parsed handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// The kernel's handle, in the file system with this tag.
    Kernel(u16, KernelHandle),
    /// The kernel's handle, in the file system with this fsid.
    KernelLong(u64, KernelHandle),
    /// An entry of the table.
    Table(Key),
}

/// The key of a file in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// The file system.
    pub(crate) tag: u16,
    /// Number of the inode.
    pub(crate) inode: u64,
    /// Creation time of the inode in nanoseconds; distinguishes it from others with the same number.
    pub(crate) birth: u64,
}

impl Parsed {
    /// Parses a handle; `None` if it is not one of this format.
    pub(crate) fn parse(handle: &Handle) -> Option<Parsed> {
        let (&kind, rest) = handle.as_bytes().split_first()?;
        match kind {
            KERNEL => {
                let (tag, rest) = rest.split_first_chunk()?;
                let (&kind, bytes) = rest.split_first()?;
                let kernels = KernelHandle::new(kind, bytes).filter(|_| !bytes.is_empty())?;
                Some(Parsed::Kernel(u16::from_be_bytes(*tag), kernels))
            }
            KERNEL_LONG => {
                let (fsid, rest) = rest.split_first_chunk()?;
                let (&kind, bytes) = rest.split_first()?;
                let fits = !bytes.is_empty() && bytes.len() <= LONG_MAX;
                let kernels = KernelHandle::new(kind, bytes).filter(|_| fits)?;
                Some(Parsed::KernelLong(u64::from_be_bytes(*fsid), kernels))
            }
            TABLE => Key::parse(rest).map(Parsed::Table),
            _ => None,
        }
    }

    /// Is this a handle of the kernel?
    pub(crate) fn is_kernels(handle: &Handle) -> bool {
        matches!(Parsed::parse(handle), Some(Parsed::Kernel(..) | Parsed::KernelLong(..)))
    }

    /// Builds a handle; `None` if the kernel's is too long.
    pub(crate) fn handle(&self) -> Option<Handle> {
        let mut bytes = Vec::with_capacity(51);
        match self {
            Parsed::Kernel(tag, kernels) => {
                bytes.push(KERNEL);
                bytes.extend(tag.to_be_bytes());
                bytes.push(kernels.kind);
                bytes.extend(kernels.as_bytes());
            }
            Parsed::KernelLong(_, kernels) if kernels.as_bytes().len() > LONG_MAX => return None,
            Parsed::KernelLong(fsid, kernels) => {
                bytes.push(KERNEL_LONG);
                bytes.extend(fsid.to_be_bytes());
                bytes.push(kernels.kind);
                bytes.extend(kernels.as_bytes());
            }
            Parsed::Table(key) => {
                bytes.push(TABLE);
                bytes.extend(key.to_bytes());
            }
        }
        Handle::new(&bytes)
    }
}

impl Key {
    /// Length of a key in bytes.
    pub(crate) const LENGTH: usize = 18;

    pub(crate) fn parse(bytes: &[u8]) -> Option<Key> {
        let bytes: &[u8; Key::LENGTH] = bytes.try_into().ok()?;
        let (tag, rest) = bytes.split_first_chunk()?;
        let (inode, rest) = rest.split_first_chunk()?;
        let (birth, _) = rest.split_first_chunk()?;
        Some(Key {
            tag: u16::from_be_bytes(*tag),
            inode: u64::from_be_bytes(*inode),
            birth: u64::from_be_bytes(*birth),
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; Key::LENGTH] {
        let mut bytes = [0; Key::LENGTH];
        bytes[..2].copy_from_slice(&self.tag.to_be_bytes());
        bytes[2..10].copy_from_slice(&self.inode.to_be_bytes());
        bytes[10..].copy_from_slice(&self.birth.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn handles_of_common_file_systems_are_short() {
        let ext4 = Parsed::Kernel(0, KernelHandle::new(1, &[7; 8]).unwrap()).handle().unwrap();
        let tmpfs = Parsed::Kernel(9, KernelHandle::new(1, &[7; 12]).unwrap()).handle().unwrap();
        let table = Parsed::Table(Key { tag: 1, inode: 2, birth: 3 }).handle().unwrap();
        assert_eq!([ext4, tmpfs, table].map(|handle| handle.as_bytes().len()), [12, 16, 19]);
    }

    proptest! {
        #[test]
        fn handles_come_back(kind in 0..4u8, tag: u16, fsid: u64, inode: u64, bytes in prop::collection::vec(any::<u8>(), 1..=41)) {
            let kernels = KernelHandle::new(kind, &bytes).unwrap();
            let key = Key { tag, inode, birth: fsid };
            for parsed in [Parsed::Kernel(tag, kernels), Parsed::KernelLong(fsid, kernels), Parsed::Table(key)] {
                prop_assert_eq!(Parsed::parse(&parsed.handle().unwrap()), Some(parsed));
            }
        }

        #[test]
        fn any_bytes_are_a_handle_or_none(bytes in prop::collection::vec(any::<u8>(), 0..=128)) {
            let handle = Handle::new(&bytes).unwrap();
            if let Some(parsed) = Parsed::parse(&handle) {
                prop_assert_eq!(parsed.handle(), Some(handle));
            }
        }
    }
}
