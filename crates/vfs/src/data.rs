//! File data on its way up: bytes in memory, or a pinned range of a file of this machine.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;

/// The data of a READ.
#[derive(Clone, Debug)]
pub enum Data {
    /// Bytes in memory, shared.
    Bytes(Bytes),
    /// A range of a local file that stays as it is until the value is dropped. A front sends it with `sendfile`.
    File(FileRange),
}

impl Data {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::File(range) => range.length as usize,
        }
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, read from the file if they are not in memory. Blocks while the disk does.
    pub fn to_bytes(&self) -> std::io::Result<Bytes> {
        match self {
            Data::Bytes(bytes) => Ok(bytes.clone()),
            Data::File(range) => {
                let mut buffer = vec![0; range.length as usize];
                std::os::unix::fs::FileExt::read_exact_at(&*range.file, &mut buffer, range.offset)?;
                Ok(buffer.into())
            }
        }
    }
}

impl Default for Data {
    fn default() -> Data {
        Data::Bytes(Bytes::new())
    }
}

/// A range of an open file, and whatever keeps it from changing.
#[derive(Clone)]
pub struct FileRange {
    /// The file, open for reading.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; all of them are there.
    pub length: u32,
    /// Held until the range has been sent; dropping it lets the owner of the file change the range again.
    pub pin: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

impl FileRange {
    /// Brings the range into the page cache, off the async workers if the disk has to be asked: `sendfile` would block
    /// a worker for as long as the disk takes. A range that is there costs two system calls.
    pub async fn fault_in(&self) {
        if self.length == 0 || (self.is_resident(0) && self.is_resident(u64::from(self.length) - 1)) {
            return;
        }
        let range = self.clone();
        // An error shows again when the range is sent; there the connection can be dropped.
        let _ = tokio::task::spawn_blocking(move || Data::File(range).to_bytes()).await;
    }

    fn is_resident(&self, at: u64) -> bool {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};
        let mut byte = [0];
        let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
        preadv2(&*self.file, &mut buffers, self.offset + at, ReadWriteFlags::NOWAIT) != Err(Errno::AGAIN)
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileRange({}..+{})", self.offset, self.length)
    }
}

/// All of a file as it is now, as a file of this machine.
#[derive(Clone)]
pub struct CompleteFile {
    /// The file, open for reading and writing, with all its bytes and no others.
    pub file: Arc<File>,
    /// What the file is that it has the bytes of.
    pub attributes: crate::attributes::Attributes,
    /// Held as long as the file is used: nobody changes its bytes until it is dropped. What the remote file becomes
    /// meanwhile goes elsewhere.
    pub pin: Arc<dyn Pinned>,
}

/// What keeps the bytes of a [`CompleteFile`] as they are until it is dropped.
pub trait Pinned: Send + Sync {
    /// The layer that gave the file forgets it and removes its name. From then on the holder may write the file. Blocks
    /// while the disk removes the name.
    fn part(&self);
}

impl fmt::Debug for CompleteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Whole({} bytes)", self.attributes.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_range_is_its_bytes() {
        let path = std::env::temp_dir().join(format!("vfs-data-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let range = FileRange { file: File::open(&path).unwrap().into(), offset: 3, length: 4, pin: None };
        range.fault_in().await;
        assert_eq!(Data::File(range).to_bytes().unwrap(), "3456");
        std::fs::remove_file(path).unwrap();
    }
}
