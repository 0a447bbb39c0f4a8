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
    /// A range of a local file. Its bytes do not change until the value is dropped. A front sends it with
    /// `sendfile`.
    File(FileRange),
}

impl Data {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::File(range) => range.length as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes. If they are not in memory, this reads them from the file and blocks while the disk does.
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

/// A range of an open file, with the pin that keeps it from changing.
#[derive(Clone)]
pub struct FileRange {
    /// The file, open for reading.
    pub file: Arc<File>,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; the file has all of them.
    pub length: u32,
    /// The front holds the pin until it has sent the range. Then the owner of the file may change the range
    /// again.
    pub pin: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

impl FileRange {
    /// Brings the range into the page cache. If the disk must be read, a blocking thread does it, since
    /// `sendfile` would block an async worker meanwhile. A range in the page cache costs two system calls.
    pub async fn fault_in(&self) {
        if self.length == 0 || (self.is_resident(0) && self.is_resident(u64::from(self.length) - 1)) {
            return;
        }
        let range = self.clone();
        // The same error occurs when the front sends the range. The front can drop the connection then.
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

/// All bytes of a remote file, as a file of this machine.
#[derive(Clone)]
pub struct CompleteFile {
    /// The local file, open for reading and writing. It has exactly the bytes of the remote file.
    pub file: Arc<File>,
    /// Attributes of the remote file.
    pub attributes: crate::attributes::Attributes,
    /// The user of the file holds the pin. Until it is dropped, the cache does not change the file's bytes
    /// and stores newer bytes of the remote file elsewhere.
    pub pin: Arc<dyn Pinned>,
}

/// Keeps the bytes of a [`CompleteFile`] from changing until it is dropped.
pub trait Pinned: Send + Sync {
    /// The layer that returned the file forgets it and removes its name. From then on the holder may write
    /// the file. Blocks while the disk removes the name.
    fn part(&self);
}

impl fmt::Debug for CompleteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompleteFile({} bytes)", self.attributes.size)
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
