//! The tests' setting around the origin: a cache directory, callers, and requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cache::{Cache, Options, WriteBehind};
use vfs::{
    Caller, FileSystem, Freshness, Handle, OpenRequest, Owner, ReadDir, Share, Stability, StateidBasis,
    Verifier, Written,
};

use super::{Origin, ROOT, Scratch, TestClock, copy, handle, name, scratch};

/// An origin, a cache directory, and the caches that were opened on it.
pub struct Bench {
    pub origin: Arc<Origin>,
    pub directory: Scratch,
    /// The options for delayed writes, if the caches delay them.
    pub behind: Option<WriteBehind>,
}

impl Bench {
    pub fn new() -> Bench {
        Bench::over(Origin::new())
    }

    pub fn over(origin: Arc<Origin>) -> Bench {
        Bench { origin, directory: scratch(), behind: None }
    }

    /// The state that a process leaves behind if it is killed now.
    pub fn killed(&self) -> Bench {
        let directory = scratch();
        copy(self.directory.path(), directory.path());
        Bench { origin: self.origin.clone(), directory, behind: self.behind }
    }

    /// The state that a process leaves behind if it is killed after the next call has taken effect.
    pub fn killed_at_next_call(&self) -> Bench {
        self.killed_at_next(None)
    }

    /// The same, for the next call of one kind.
    pub fn killed_at_next(&self, call: Option<&'static str>) -> Bench {
        let directory = scratch();
        let (from, to) = (self.directory.path().to_owned(), directory.path().to_owned());
        *self.origin.after_effect.lock() = Some((call, Box::new(move || copy(&from, &to))));
        Bench { origin: self.origin.clone(), directory, behind: self.behind }
    }

    pub fn options(&self) -> Options {
        let mut options = Options::new(self.directory.path().join("cache"), "nfs://origin/export");
        options.clock = Arc::new(TestClock { origin: self.origin.clone(), ahead_seconds: 0 });
        options.limits.min_free_bytes = 0;
        options.write_behind = self.behind;
        // The tests decide when to write to the index.
        options.flush_interval = Duration::from_secs(3600);
        options
    }

    /// The same, and the cache fetches ahead of readers who go through a tree.
    pub fn eager(&self) -> Options {
        let mut options = self.options();
        options.prefetch_max_bytes = 64 << 20;
        options
    }

    pub async fn open(&self) -> Arc<Cache> {
        self.open_with(self.options()).await
    }

    /// Opens the cache. If an earlier one is still being dropped, waits for that.
    pub async fn open_with(&self, options: Options) -> Arc<Cache> {
        for _ in 0..4000 {
            match Cache::open(self.origin.clone(), options.clone()).await {
                Err(cache::OpenError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                other => return other.unwrap(),
            }
        }
        panic!("the directory is never let go of");
    }
}

pub fn root() -> Handle {
    handle(ROOT)
}

/// A v3 client's request: it counts as an open.
pub fn opener(uid: u32) -> Caller {
    Caller::unix(uid, uid, &[]).with_freshness(Freshness::Open)
}

pub async fn read(cache: &Cache, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Bytes {
    let read = cache.read(caller, handle, StateidBasis::Anonymous, offset, count).await.unwrap();
    read.data.to_bytes().unwrap()
}

pub async fn write(cache: &Cache, caller: &Caller, handle: &Handle, offset: u64, data: &[u8]) -> Written {
    let data = Bytes::copy_from_slice(data);
    cache.write(caller, handle, StateidBasis::Anonymous, offset, data, Stability::Unstable).await.unwrap()
}

/// A v4 client's OPEN. The front gives it the same freshness as other requests.
pub fn v4_opener(uid: u32, client: u64) -> Caller {
    v4(uid, client)
}

/// Any other request of a v4 client.
pub fn v4(uid: u32, client: u64) -> Caller {
    Caller { holder: Some(vfs::HolderId(client)), ..opener(uid) }.with_freshness(Freshness::Timeout)
}

/// The open owner of a v4 client.
pub fn owner(client: u64) -> Owner {
    Owner(Bytes::copy_from_slice(&client.to_be_bytes()))
}

/// An OPEN for reading by name.
pub fn open_request(directory: &Handle, text: &str, client: u64, access: Share) -> OpenRequest {
    OpenRequest {
        want: vfs::Want::Any,
        ..OpenRequest::new(*directory, Some(name(text)), owner(client), access)
    }
}

/// A READDIR of a whole directory with attributes, which may lack if `names_suffice`.
pub fn whole(names_suffice: bool) -> ReadDir {
    ReadDir {
        cookie: 0,
        verifier: Verifier::default(),
        bytes: 256 << 10,
        plus: true,
        want_directory_lease: false,
        names_suffice,
    }
}

/// An OPEN by handle.
pub fn open_handle(handle: &Handle, client: u64, access: Share) -> OpenRequest {
    OpenRequest { name: None, ..open_request(handle, "x", client, access) }
}
