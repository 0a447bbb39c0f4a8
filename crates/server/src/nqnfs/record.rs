//! The data that a restart needs: whether leases may be valid, and the highest `modifyrev`.
//!
//! One small file that is always replaced completely: `granted 1 | offset 8 | reached 8 | CRC32C 4`. It is
//! written when the first lease of an incarnation is granted. While the server gives out `modifyrev`
//! values, it is also written every ten seconds.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

const NAME: &str = "nqnfs";
const BYTES: usize = 1 + 8 + 8 + 4;

/// The contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// This incarnation has granted a lease, or recovery from the previous one was not over.
    pub(super) granted: bool,
    /// See [`super::revs`].
    pub(super) offset: u64,
    /// See [`super::revs`].
    pub(super) reached: u64,
}

/// See the module. Without a directory it stores nothing.
#[derive(Clone, Debug)]
pub(super) struct Record(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: Option<PathBuf>,
    /// The contents of the file, and whether this incarnation has granted a lease.
    contents: Mutex<(Contents, bool)>,
    /// The file says that this incarnation has granted a lease.
    granted: AtomicBool,
}

impl Record {
    /// A record without a file.
    pub(super) fn volatile() -> Record {
        Record(Arc::new(Inner {
            directory: None,
            contents: Mutex::default(),
            granted: AtomicBool::new(false),
        }))
    }

    /// Reads the record of the previous incarnation. A damaged record counts as one that says that leases
    /// may be valid: that costs a minute and breaks no promise.
    pub(super) fn open(directory: Option<&Path>) -> io::Result<(Record, Contents)> {
        let Some(directory) = directory else { return Ok((Record::volatile(), Contents::default())) };
        let before = match std::fs::read(directory.join(NAME)) {
            Ok(bytes) => decode(&bytes).unwrap_or_else(|| {
                tracing::warn!(
                    "the record of NQNFS in {} is damaged: leases may be out",
                    directory.display()
                );
                Contents { granted: true, ..Contents::default() }
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(error) => return Err(error),
        };
        let inner = Inner {
            directory: Some(directory.to_owned()),
            contents: Mutex::new((before, false)),
            granted: AtomicBool::new(false),
        };
        Ok((Record(Arc::new(inner)), before))
    }

    /// A lease is about to be granted.
    pub(super) async fn grant(&self) -> io::Result<()> {
        if self.0.granted.load(Ordering::Acquire) {
            return Ok(());
        }
        self.change(|contents, in_this_incarnation| (contents.granted, *in_this_incarnation) = (true, true))
            .await?;
        self.0.granted.store(true, Ordering::Release);
        Ok(())
    }

    /// No lease of the previous incarnation is valid any more.
    pub(super) async fn recovered(&self) -> io::Result<()> {
        self.change(|contents, in_this_incarnation| contents.granted = *in_this_incarnation).await
    }

    /// `modifyrev` has reached this value.
    pub(super) async fn reach(&self, offset: u64, reached: u64) -> io::Result<()> {
        self.change(move |contents, _| {
            contents.offset = contents.offset.max(offset);
            contents.reached = contents.reached.max(reached);
        })
        .await
    }

    async fn change(&self, change: impl FnOnce(&mut Contents, &mut bool) + Send + 'static) -> io::Result<()> {
        let inner = self.0.clone();
        let write = move || {
            let mut held = inner.contents.lock();
            let (mut next, mut in_this_incarnation) = *held;
            change(&mut next, &mut in_this_incarnation);
            if let Some(directory) = inner.directory.as_ref().filter(|_| next != held.0) {
                write(directory, next)?;
            }
            *held = (next, in_this_incarnation);
            Ok(())
        };
        if self.0.directory.is_none() {
            return write();
        }
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
    }
}

fn write(directory: &Path, contents: Contents) -> io::Result<()> {
    let fresh = directory.join(format!("{NAME}.new"));
    let mut file = File::create(&fresh)?;
    file.write_all(&encode(contents))?;
    file.sync_all()?;
    std::fs::rename(&fresh, directory.join(NAME))?;
    File::open(directory)?.sync_all()
}

fn encode(contents: Contents) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[0] = contents.granted.into();
    bytes[1..9].copy_from_slice(&contents.offset.to_be_bytes());
    bytes[9..17].copy_from_slice(&contents.reached.to_be_bytes());
    let check = crc32c::crc32c(&bytes[..17]);
    bytes[17..].copy_from_slice(&check.to_be_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Contents> {
    let (body, check) = bytes.split_last_chunk::<4>()?;
    let (granted, rest) = body.split_first()?;
    let (offset, rest) = rest.split_first_chunk::<8>()?;
    let (reached, rest) = rest.split_first_chunk::<8>()?;
    let complete = rest.is_empty() && crc32c::crc32c(body) == u32::from_be_bytes(*check) && *granted <= 1;
    complete.then_some(Contents {
        granted: *granted == 1,
        offset: u64::from_be_bytes(*offset),
        reached: u64::from_be_bytes(*reached),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_life_reads_what_this_one_wrote() {
        let home = tempfile::tempdir().unwrap();
        let (record, before) = Record::open(Some(home.path())).unwrap();
        assert_eq!(before, Contents::default());
        record.grant().await.unwrap();
        record.reach(3, 9).await.unwrap();
        record.reach(2, 11).await.unwrap();
        let next = Record::open(Some(home.path())).unwrap().1;
        assert_eq!(next, Contents { granted: true, offset: 3, reached: 11 });
        record.recovered().await.unwrap();
        assert!(Record::open(Some(home.path())).unwrap().1.granted, "one of this life is out");
        let (next, _) = Record::open(Some(home.path())).unwrap();
        next.recovered().await.unwrap();
        assert!(!Record::open(Some(home.path())).unwrap().1.granted);
    }

    #[test]
    fn a_damaged_record_says_that_leases_are_out() {
        let home = tempfile::tempdir().unwrap();
        let complete = encode(Contents { granted: false, offset: 1, reached: 2 });
        for at in 0..BYTES {
            let mut damaged = complete;
            damaged[at] ^= 1;
            std::fs::write(home.path().join(NAME), damaged).unwrap();
            assert!(Record::open(Some(home.path())).unwrap().1.granted, "byte {at}");
            std::fs::write(home.path().join(NAME), &complete[..at]).unwrap();
            assert!(Record::open(Some(home.path())).unwrap().1.granted, "cut at {at}");
        }
    }
}
