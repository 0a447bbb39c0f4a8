//! The clients: they walk a tree, change it, take leases, or connect.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use client::{Origin, Url};
use synthetic::Change;
use tokio::runtime::Handle as Runtime;
use vfs::{
    Callbacks, Caller, CreateHow, Handle, Name, OpenRequest, Owner, ReadDir, SetAttributes, SetTime, Share,
    Stability, StateidBasis, Want,
};

use super::Error;

/// Bytes of a READDIR.
const LISTING_BYTES: u32 = 64 << 10;

/// Clients that hold what they took, each with its callbacks: a client without them gets no leases.
pub(super) type Taken = Vec<(Arc<dyn Origin>, Option<Callbacks>)>;
/// The clients, and the seconds until they had what they took.
pub(super) type Taking = Pin<Box<dyn Future<Output = Result<(Taken, f64), Error>> + Send>>;
/// Takes so many things at the origin with this URL.
pub(super) type Take = fn(String, u32) -> Taking;

/// A reader of a tree.
pub(super) enum Walker {
    /// By system calls, below this directory.
    Mounted(PathBuf),
    /// By our client.
    Client(Arc<dyn Origin>),
}

fn caller() -> Caller {
    Caller::unix(0, 0, &[])
}

fn failed(what: &str) -> impl Fn(vfs::Error) -> Error {
    move |error| Error::Client { what: what.to_owned(), why: error.to_string() }
}

async fn connect(url: &str) -> Result<Arc<dyn Origin>, Error> {
    let failed = |why: String| Error::Client { what: format!("connect to {url}"), why };
    let parsed = Url::parse(url).map_err(|error| failed(error.to_string()))?;
    client::connect(&parsed).await.map_err(|error| failed(error.to_string()))
}

impl Walker {
    pub(super) fn connect(runtime: &Runtime, url: &str) -> Result<Walker, Error> {
        Ok(Walker::Client(runtime.block_on(connect(url))?))
    }

    /// Lists every directory and stats every file. Returns how many files and directories there are below the
    /// root, and the seconds.
    pub(super) fn walk(&self, runtime: &Runtime) -> Result<(u64, f64), Error> {
        let begun = Instant::now();
        let found = match self {
            Walker::Mounted(root) => {
                let failed = |source| Error::Walk { what: root.display().to_string(), source };
                walk_directory(root).map_err(failed)?
            }
            Walker::Client(client) => runtime.block_on(walk_client(&**client)).map_err(failed("walk"))?,
        };
        Ok((found, begun.elapsed().as_secs_f64()))
    }

    pub(super) fn end(self, runtime: &Runtime) {
        if let Walker::Client(client) = self {
            runtime.block_on(client.shutdown());
        }
    }
}

fn walk_directory(root: &Path) -> std::io::Result<u64> {
    let (mut found, mut directories) = (0, vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let entry = entry?;
            found += 1;
            if entry.metadata()?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(found)
}

async fn walk_client(client: &dyn Origin) -> vfs::Result<u64> {
    let (mut found, mut directories) = (0, vec![client.root_handle()]);
    while let Some(directory) = directories.pop() {
        for (handle, is_dir) in list(client, &directory).await? {
            found += 1;
            if is_dir {
                directories.push(handle);
            }
            client.getattr(&caller(), &handle).await?;
        }
    }
    Ok(found)
}

/// The objects in a directory, and whether each is a directory.
async fn list(client: &dyn Origin, directory: &Handle) -> vfs::Result<Vec<(Handle, bool)>> {
    let mut entries = Vec::new();
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: LISTING_BYTES,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    loop {
        let listing = client.readdir(&caller(), directory, part).await?;
        part.verifier = listing.verifier;
        for entry in listing.entries {
            part.cookie = entry.cookie;
            let node = match entry.node {
                Some(node) => node,
                None => client.lookup(&caller(), directory, &entry.name, Want::None).await?.node,
            };
            let attributes = match node.attributes {
                Some(attributes) => attributes,
                None => client.getattr(&caller(), &node.handle).await?,
            };
            entries.push((node.handle, attributes.is_dir()));
        }
        if listing.eof {
            return Ok(entries);
        }
    }
}

/// Plays changes as a client. Returns how many more names there are.
pub(super) async fn play(url: &str, script: impl Iterator<Item = Change>) -> Result<i64, Error> {
    let client = connect(url).await?;
    let mut more = 0;
    for change in script {
        let what = format!("{change:?}");
        more += apply(&*client, change).await.map_err(failed(&what))?;
    }
    client.shutdown().await;
    Ok(more)
}

async fn apply(client: &dyn Origin, change: Change) -> vfs::Result<i64> {
    let set = SetAttributes::default();
    match change {
        Change::Touch { path } => {
            let file = look_up(client, &path).await?;
            let set = SetAttributes { mtime: Some(SetTime::Server), ..set };
            client.setattr(&caller(), &file, &set, None).await?;
            Ok(0)
        }
        Change::Rewrite { path, bytes } => {
            let file = look_up(client, &path).await?;
            let (by, stable) = (StateidBasis::Anonymous, Stability::FileSync);
            client.write(&caller(), &file, by, 0, bytes.into(), stable).await?;
            Ok(0)
        }
        Change::Add { path } => {
            let (directory, name) = place(client, &path).await?;
            client.create(&caller(), &directory, &name, CreateHow::Guarded, &set).await?;
            Ok(1)
        }
        Change::Remove { path } => {
            let (directory, name) = place(client, &path).await?;
            client.remove(&caller(), &directory, &name).await?;
            Ok(-1)
        }
    }
}

/// The directory and the name of a path.
async fn place(client: &dyn Origin, path: &str) -> vfs::Result<(Handle, Name)> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((look_up(client, above).await?, Name::new(name.as_bytes())?))
}

async fn look_up(client: &dyn Origin, path: &str) -> vfs::Result<Handle> {
    let mut at = client.root_handle();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let name = Name::new(name.as_bytes())?;
        at = client.lookup(&caller(), &at, &name, Want::None).await?.node.handle;
    }
    Ok(at)
}

/// One client opens the first files of the tree for reading, and closes them. It keeps the leases.
pub(super) fn take_leases(url: String, count: u32) -> Taking {
    Box::pin(async move {
        let client = connect(&url).await?;
        let callbacks = client.callbacks();
        let root = client.root_handle();
        let mut files = Vec::new();
        for (directory, _) in list(&*client, &root).await.map_err(failed("list"))? {
            let inside = list(&*client, &directory).await.map_err(failed("list"))?;
            files.extend(inside.into_iter().map(|(handle, _)| handle));
        }
        let begun = Instant::now();
        for file in files.into_iter().take(count as usize) {
            let owner = Owner(Bytes::from_static(b"scale"));
            let request =
                OpenRequest { want: Want::Read, ..OpenRequest::new(file, None::<Name>, owner, Share::READ) };
            let opened = client.open(&caller(), &request).await.map_err(failed("open"))?;
            client.close(&caller(), opened.id).await.map_err(failed("close"))?;
        }
        Ok((vec![(client, callbacks)], begun.elapsed().as_secs_f64()))
    })
}

/// So many clients connect.
pub(super) fn connect_clients(url: String, count: u32) -> Taking {
    Box::pin(async move {
        let begun = Instant::now();
        let mut clients = Vec::new();
        for _ in 0..count {
            let client = connect(&url).await?;
            let callbacks = client.callbacks();
            clients.push((client, callbacks));
        }
        Ok((clients, begun.elapsed().as_secs_f64()))
    })
}
