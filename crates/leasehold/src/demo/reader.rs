//! Reads a whole tree as a program does: lists a directory, looks up each name, and reads each file to its
//! end.

use std::hash::Hasher;

use futures_util::{StreamExt, TryStreamExt, stream};
use indicatif::ProgressBar;
use vfs::{Caller, Error, FileSystem, FileType, Freshness, Handle, Name, ReadDir, StateidBasis};

use crate::Failure;

/// Files read at once.
const AT_ONCE: usize = 4;
const READ_BYTES: u32 = 1 << 20;

/// The amount that was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Over names and contents; independent of the order in which they were read.
    pub checksum: u64,
}

impl Reading {
    fn add(&mut self, other: Reading) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.checksum ^= other.checksum;
    }
}

/// Reads everything below the root of the export.
pub async fn read_tree(fs: &dyn FileSystem, progress: &ProgressBar) -> Result<Reading, Failure> {
    let caller = Caller::machine().with_freshness(Freshness::Open);
    let failed = |error: Error| Failure(format!("reading the sample tree failed: {error}"));
    let mut waiting = vec![fs.root(&caller).await.map_err(failed)?.handle];
    let mut total = Reading::default();
    while let Some(directory) = waiting.pop() {
        let names = list(fs, &caller, &directory).await.map_err(failed)?;
        let found: Vec<Found> = stream::iter(names)
            .map(|name| read_one(fs, &caller, &directory, name))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
            .map_err(failed)?;
        for one in found {
            match one {
                Found::Directory(handle) => waiting.push(handle),
                Found::Other(reading) => {
                    total.add(reading);
                    progress.inc(reading.files);
                }
            }
        }
    }
    Ok(total)
}

enum Found {
    Directory(Handle),
    Other(Reading),
}

async fn list(fs: &dyn FileSystem, caller: &Caller, directory: &Handle) -> Result<Vec<Name>, Error> {
    let mut names = Vec::new();
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 1 << 16,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    loop {
        let listing = fs.readdir(caller, directory, part).await?;
        part.verifier = listing.verifier;
        part.cookie = listing.entries.last().map_or(0, |last| last.cookie);
        names.extend(listing.entries.into_iter().map(|entry| entry.name));
        if listing.eof || part.cookie == 0 {
            return Ok(names);
        }
    }
}

async fn read_one(
    fs: &dyn FileSystem,
    caller: &Caller,
    directory: &Handle,
    name: Name,
) -> Result<Found, Error> {
    let node = fs.lookup(caller, directory, &name, vfs::Want::None).await?.node;
    let attributes = match node.attributes {
        Some(attributes) => attributes,
        None => fs.getattr(caller, &node.handle).await?,
    };
    match attributes.file_type {
        FileType::Directory => return Ok(Found::Directory(node.handle)),
        FileType::Regular => {}
        _ => return Ok(Found::Other(Reading::default())),
    }
    let mut sum = std::hash::DefaultHasher::new();
    sum.write(name.as_bytes());
    let mut bytes = 0;
    loop {
        let read = fs.read(caller, &node.handle, StateidBasis::Anonymous, bytes, READ_BYTES).await?;
        let data = read.data.to_bytes().map_err(|_| vfs::Status::Io)?;
        sum.write(&data);
        bytes += data.len() as u64;
        if read.eof || data.is_empty() {
            return Ok(Found::Other(Reading { files: 1, bytes, checksum: sum.finish() }));
        }
    }
}
