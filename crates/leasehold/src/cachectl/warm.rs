//! `warm`: walks the tree through the cache and fetches every file that is not complete.
//!
//! The walk reads directories as a client reads them, so the cache then also holds their names. Several
//! files are fetched at a time. Files that are complete and unchanged are skipped, so a warming that was
//! interrupted resumes where it stopped.

use std::collections::HashSet;
use std::sync::Arc;

use cache::{Cache, Completed};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use vfs::{Attributes, Caller, FileSystem, FileType, Handle, Pass, ReadDir, Status};

use super::execute::{Sink, Stop, found};
use super::path;

/// Files fetched at a time.
const FILES_AT_A_TIME: usize = 8;
/// Bytes of one READDIR.
const READDIR_BYTES: u32 = 64 << 10;

/// The work so far.
#[derive(Default)]
struct Tally {
    /// Files found.
    files: u64,
    /// Files finished, with any result.
    done: u64,
    complete: u64,
    fetched: u64,
    bytes: u64,
    /// The sizes of all files that the cache is to hold, in bytes.
    sizes: u64,
    skipped: u64,
    failed: u64,
    walking: bool,
}

impl Tally {
    fn to_json(&self) -> Value {
        json!({
            "files": self.files,
            "done": self.done,
            "complete": self.complete,
            "fetched": self.fetched,
            "bytes": self.bytes,
            "skipped": self.skipped,
            "failed": self.failed,
            "walking": self.walking,
        })
    }
}

type Fetched = (Vec<u8>, vfs::Result<Completed>);

struct Warming<'a> {
    cache: &'a Arc<Cache>,
    caller: Caller,
    newer: Option<i64>,
    tasks: JoinSet<Fetched>,
    tally: Tally,
    capacity: u64,
    sink: &'a mut Sink,
}

/// Fetches the files below paths.
pub async fn run(
    cache: &Arc<Cache>,
    paths: &[String],
    newer: Option<i64>,
    caller: Caller,
    sink: &mut Sink,
) -> Result<Value, Stop> {
    let starts = found(cache, paths, sink).await?;
    let capacity = cache.totals().await.soft_bytes;
    let tally = Tally { walking: true, ..Tally::default() };
    let mut warming = Warming { cache, caller, newer, tasks: JoinSet::new(), tally, capacity, sink };
    warming.walk(starts).await?;
    warming.tally.walking = false;
    while !warming.tasks.is_empty() {
        warming.wait().await?;
    }
    cache.flush().await;
    Ok(warming.tally.to_json())
}

impl Warming<'_> {
    async fn walk(&mut self, mut stack: Vec<(Vec<u8>, Handle)>) -> Result<(), Stop> {
        stack.reverse();
        let mut seen = HashSet::new();
        while let Some((path, handle)) = stack.pop() {
            let attributes = match self.cache.getattr(&self.caller, &handle).await {
                Ok(attributes) => attributes,
                Err(error) => {
                    self.tally.failed += 1;
                    self.sink.failed(&path, error.status).await?;
                    continue;
                }
            };
            if !attributes.is_dir() {
                self.file(path, handle, &attributes).await?;
            } else if seen.insert(handle) {
                let mut directories = self.directory(&path, &handle).await?;
                directories.reverse();
                stack.append(&mut directories);
            }
        }
        Ok(())
    }

    /// Reads a directory, fetches its files, and returns its subdirectories.
    async fn directory(&mut self, path: &[u8], handle: &Handle) -> Result<Vec<(Vec<u8>, Handle)>, Stop> {
        let mut directories = Vec::new();
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: READDIR_BYTES,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        let mut pass = Pass::default();
        loop {
            let listing = match self.cache.readdir(&self.caller, handle, part).await {
                Ok(listing) => listing,
                Err(error) => {
                    self.tally.failed += 1;
                    self.sink.failed(path, error.status).await?;
                    return Ok(directories);
                }
            };
            for entry in &listing.entries {
                if pass.goes_round(entry.cookie) {
                    self.tally.failed += 1;
                    self.sink.failed(path, Status::BadCookie).await?;
                    return Ok(directories);
                }
                let below = path::join(path, entry.name.as_bytes());
                let node = match entry.node {
                    Some(node) if node.attributes.is_some() => node,
                    // The attributes of an entry are optional in a READDIR reply.
                    _ => match self.cache.lookup(&self.caller, handle, &entry.name, vfs::Want::None).await {
                        Ok(looked) => looked.node,
                        Err(error) => {
                            self.tally.failed += 1;
                            self.sink.failed(&below, error.status).await?;
                            continue;
                        }
                    },
                };
                match node.attributes {
                    Some(attributes) if !attributes.is_dir() => {
                        self.file(below, node.handle, &attributes).await?;
                    }
                    _ => directories.push((below, node.handle)),
                }
            }
            let Some(last) = listing.entries.last().filter(|_| !listing.eof) else { return Ok(directories) };
            part = ReadDir { cookie: last.cookie, verifier: listing.verifier, ..part };
            self.progress().await?;
        }
    }

    async fn file(&mut self, path: Vec<u8>, handle: Handle, attributes: &Attributes) -> Result<(), Stop> {
        let changed = attributes.mtime.max(attributes.ctime).seconds;
        if self.newer.is_some_and(|newer| changed < newer) {
            return Ok(());
        }
        if attributes.file_type == FileType::Symlink {
            let _ = self.cache.readlink(&self.caller, &handle).await;
        }
        if attributes.file_type != FileType::Regular {
            return Ok(());
        }
        self.tally.files += 1;
        if !self.cache.takes(attributes) {
            // A file that the configured thresholds exclude is not a failure.
            self.tally.done += 1;
            self.tally.skipped += 1;
            return Ok(());
        }
        self.tally.sizes += attributes.size;
        if self.tally.sizes > self.capacity {
            return Err(format!(
                "what is to be fetched does not fit: the cleaner starts at {} bytes and would evict the files fetched first; raise --cache-size, or name fewer files",
                self.capacity
            ));
        }
        while self.tasks.len() >= FILES_AT_A_TIME {
            self.wait().await?;
        }
        let (cache, caller) = (self.cache.clone(), self.caller.clone());
        self.tasks.spawn(async move {
            let completed = cache.complete(&caller, &handle).await;
            (path, completed)
        });
        self.progress().await
    }

    /// Waits for one fetch to end.
    async fn wait(&mut self) -> Result<(), Stop> {
        let Some(Ok((path, completed))) = self.tasks.join_next().await else { return Ok(()) };
        self.tally.done += 1;
        match completed {
            Ok(Completed::Was) => self.tally.complete += 1,
            Ok(Completed::Now(bytes)) => {
                self.tally.fetched += 1;
                self.tally.bytes += bytes;
            }
            // The object has changed its type or size since the walk found it.
            Ok(Completed::NoFile | Completed::NotWanted) => self.tally.skipped += 1,
            Ok(Completed::Full) => {
                return Err(format!(
                    "no space for {}: the cache is at its limit and its files are pinned or in use, or the disk is full; unpin files, raise --cache-size, or free some space",
                    path::show(&path)
                ));
            }
            Ok(Completed::Stuck) => {
                self.tally.failed += 1;
                self.sink.failed(&path, "the file keeps changing or cannot be kept; try again later").await?;
            }
            Err(error) => {
                self.tally.failed += 1;
                self.sink.failed(&path, error.status).await?;
            }
        }
        self.progress().await
    }

    async fn progress(&mut self) -> Result<(), Stop> {
        let tally = &self.tally;
        self.sink.progress(|| tally.to_json()).await
    }
}
