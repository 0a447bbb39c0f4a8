//! A file system in memory, with helpers for the tests.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::sync::Arc;

use bytes::Bytes;
use memory::{Memory, Options};
use parking_lot::Mutex;
use vfs::{
    Attributes, Caller, Clock, CreateHow, Entry, FileSystem, FsStat, Handle, Name, OpenRequest, Owner,
    ReadDir, SetAttributes, Share, Stability, StateidBasis, Status, Timestamp, Want,
};

/// A clock that stands still until a test sets it.
pub struct SetClock(pub Mutex<Timestamp>);

impl Clock for SetClock {
    fn wall(&self) -> Timestamp {
        *self.0.lock()
    }
}

pub struct Bench {
    pub fs: Memory,
    pub root: Handle,
    pub clock: Arc<SetClock>,
}

pub async fn bench() -> Bench {
    bench_with(|_| ()).await
}

pub async fn bench_with(change: impl FnOnce(&mut Options)) -> Bench {
    let clock = Arc::new(SetClock(Mutex::new(Timestamp::new(1_700_000_000, 0))));
    let mut options = Options { clock: clock.clone(), ..Options::default() };
    change(&mut options);
    let fs = Memory::new(options);
    let root = fs.root(&machine()).await.unwrap().handle;
    Bench { fs, root, clock }
}

impl Bench {
    pub async fn create(&self, caller: &Caller, at: &Handle, file: &str) -> Result<Handle, Status> {
        self.create_with(caller, at, file, CreateHow::Guarded, &mode(0o644)).await
    }

    pub async fn create_with(
        &self,
        caller: &Caller,
        at: &Handle,
        file: &str,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Handle, Status> {
        let made = self.fs.create(caller, at, &name(file), how, set).await;
        made.map(|made| made.node.handle).map_err(|error| error.status)
    }

    pub async fn mkdir(&self, caller: &Caller, at: &Handle, directory: &str, bits: u32) -> Handle {
        let made = self.fs.mkdir(caller, at, &name(directory), &mode(bits), Want::None).await;
        made.unwrap().node.handle
    }

    pub async fn lookup(&self, caller: &Caller, at: &Handle, file: &str) -> Result<Handle, Status> {
        let looked = self.fs.lookup(caller, at, &name(file), Want::None).await;
        looked.map(|looked| looked.node.handle).map_err(|error| error.status)
    }

    pub async fn stat(&self, file: &Handle) -> Attributes {
        self.fs.getattr(&machine(), file).await.unwrap()
    }

    pub async fn read(&self, caller: &Caller, file: &Handle) -> Result<Bytes, Status> {
        self.read_by(caller, file, StateidBasis::Anonymous).await
    }

    pub async fn read_by(&self, caller: &Caller, file: &Handle, by: StateidBasis) -> Result<Bytes, Status> {
        let read = self.fs.read(caller, file, by, 0, 1 << 20).await;
        read.map(|read| read.data.to_bytes().unwrap()).map_err(|error| error.status)
    }

    pub async fn write(
        &self,
        caller: &Caller,
        file: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Status> {
        self.write_by(caller, file, StateidBasis::Anonymous, (offset, data)).await
    }

    pub async fn write_by(
        &self,
        caller: &Caller,
        file: &Handle,
        by: StateidBasis,
        (offset, data): (u64, &[u8]),
    ) -> Result<u32, Status> {
        let data = Bytes::copy_from_slice(data);
        let written = self.fs.write(caller, file, by, offset, data, Stability::Unstable).await;
        written.map(|written| written.count).map_err(|error| error.status)
    }

    pub async fn set(
        &self,
        caller: &Caller,
        file: &Handle,
        set: SetAttributes,
    ) -> Result<Attributes, Status> {
        let done = self.fs.setattr(caller, file, &set, None).await;
        done.map(|wcc| wcc.after.unwrap()).map_err(|error| error.status)
    }

    pub async fn space(&self) -> FsStat {
        self.fs.fsstat(&machine(), &self.root).await.unwrap()
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

pub fn user(uid: u32) -> Caller {
    Caller::unix(uid, uid, &[])
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
