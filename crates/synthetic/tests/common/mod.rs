//! A computed tree, with helpers for the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::sync::Arc;

use bytes::Bytes;
use synthetic::{Options, Shape, Synthetic};
use vfs::{
    Attributes, Caller, Clock, CreateHow, Entry, FileSystem, Handle, Name, OpenRequest, Owner, ReadDir,
    SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, Want,
};

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn wall(&self) -> Timestamp {
        Timestamp::new(1_700_000_000, 0)
    }
}

pub struct Bench {
    pub fs: Synthetic,
    pub root: Handle,
}

pub async fn bench(shape: &str) -> Bench {
    bench_with(shape, |_| ()).await
}

pub async fn bench_with(shape: &str, change: impl FnOnce(&mut Options)) -> Bench {
    let mut options = Options { clock: Arc::new(Still), ..Options::default() };
    change(&mut options);
    let fs = Synthetic::with_options(shape.parse::<Shape>().unwrap(), options);
    let root = fs.root(&machine()).await.unwrap().handle;
    Bench { fs, root }
}

impl Bench {
    pub async fn lookup(&self, at: &Handle, file: &str) -> Result<Handle, Status> {
        let looked = self.fs.lookup(&machine(), at, &name(file), Want::None).await;
        looked.map(|looked| looked.node.handle).map_err(|error| error.status)
    }

    pub async fn create(&self, at: &Handle, file: &str) -> Result<Handle, Status> {
        let set = SetAttributes::default();
        let made = self.fs.create(&machine(), at, &name(file), CreateHow::Guarded, &set).await;
        made.map(|made| made.node.handle).map_err(|error| error.status)
    }

    pub async fn remove(&self, at: &Handle, file: &str) -> Result<(), Status> {
        self.fs.remove(&machine(), at, &name(file)).await.map(drop).map_err(|error| error.status)
    }

    pub async fn stat(&self, file: &Handle) -> Attributes {
        self.fs.getattr(&machine(), file).await.unwrap()
    }

    pub async fn read(&self, file: &Handle) -> Result<Bytes, Status> {
        let read = self.fs.read(&machine(), file, StateidBasis::Anonymous, 0, 1 << 20).await;
        read.map(|read| read.data.to_bytes().unwrap()).map_err(|error| error.status)
    }

    pub async fn write(&self, file: &Handle, offset: u64, data: &[u8]) -> Result<u32, Status> {
        let (by, data) = (StateidBasis::Anonymous, Bytes::copy_from_slice(data));
        let written = self.fs.write(&machine(), file, by, offset, data, Stability::Unstable).await;
        written.map(|written| written.count).map_err(|error| error.status)
    }

    pub async fn set(&self, file: &Handle, set: SetAttributes) -> Result<Attributes, Status> {
        let done = self.fs.setattr(&machine(), file, &set, None).await;
        done.map(|wcc| wcc.after.unwrap()).map_err(|error| error.status)
    }

    /// All entries, read in parts of `bytes`.
    pub async fn list(&self, directory: &Handle, bytes: u32, plus: bool) -> Vec<Entry> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut part = from_start(bytes, plus);
        loop {
            let listing = self.fs.readdir(&machine(), directory, part).await.unwrap();
            assert!(
                listing.eof || !listing.entries.is_empty(),
                "a part without entries that is not the last"
            );
            entries.extend(listing.entries);
            if listing.eof {
                return entries;
            }
            let cookie = entries.last().unwrap().cookie;
            part = ReadDir { cookie, verifier: listing.verifier, ..part };
        }
    }
}

pub fn from_start(bytes: u32, plus: bool) -> ReadDir {
    ReadDir { cookie: 0, verifier: [0; 8], bytes, plus, want_directory_lease: false, names_suffice: false }
}

pub fn machine() -> Caller {
    Caller::machine()
}

pub fn name(name: impl AsRef<[u8]>) -> Name {
    Name::new(name.as_ref()).unwrap()
}

pub fn mode(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(bits), ..SetAttributes::default() }
}

pub fn size(bytes: u64) -> SetAttributes {
    SetAttributes { size: Some(bytes), ..SetAttributes::default() }
}

pub fn open(handle: Handle, file: Option<&str>, owner: &str, access: Share) -> OpenRequest {
    let owner = Owner(Bytes::copy_from_slice(owner.as_bytes()));
    OpenRequest { want: Want::None, ..OpenRequest::new(handle, file.map(name), owner, access) }
}
