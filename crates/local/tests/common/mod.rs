//! A served directory, with helpers for the tests.
#![allow(dead_code, missing_docs, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};

use bytes::Bytes;
use local::{HandleKind, LocalFs, Options};
use tempfile::TempDir;
use vfs::{
    Caller, CreateHow, FileSystem, Handle, Listing, Name, Node, ReadDir, SetAttributes, Stability,
    StateidBasis, Status,
};

/// A served directory, with its state next to it.
pub struct Served {
    pub fs: LocalFs,
    pub options: Options,
    pub directory: PathBuf,
    pub home: TempDir,
}

pub fn serve() -> Served {
    serve_with(|_| ())
}

/// Handles from the table instead of the kernel.
pub fn serve_by_table() -> Served {
    serve_with(|options| options.handles = HandleKind::Table)
}

pub fn serve_with(change: impl FnOnce(&mut Options)) -> Served {
    serve_in(TempDir::new().unwrap(), change)
}

pub fn serve_in(home: TempDir, change: impl FnOnce(&mut Options)) -> Served {
    let directory = home.path().join("exported");
    std::fs::create_dir(&directory).unwrap();
    let mut options = Options::new(home.path().join("state"));
    change(&mut options);
    let fs = LocalFs::open(&directory, options.clone()).unwrap();
    Served { fs, options, directory, home }
}

impl Served {
    /// The same directory after a restart of the server.
    pub fn restarted(self) -> Served {
        let Served { fs, options, directory, home } = self;
        drop(fs);
        let fs = LocalFs::open(&directory, options.clone()).unwrap();
        Served { fs, options, directory, home }
    }

    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.directory.join(below)
    }

    pub async fn root(&self) -> Handle {
        self.fs.root(&machine()).await.unwrap().handle
    }

    pub async fn find(&self, caller: &Caller, path: &str) -> Result<Node, Status> {
        let mut node = self.fs.root(caller).await.map_err(|error| error.status)?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            node = self
                .fs
                .lookup(caller, &node.handle, &name(part), vfs::Want::None)
                .await
                .map_err(|error| error.status)?
                .node;
        }
        Ok(node)
    }

    pub async fn handle(&self, path: &str) -> Handle {
        self.find(&machine(), path).await.unwrap().handle
    }

    pub async fn create(&self, caller: &Caller, directory: &Handle, file: &str) -> Result<Handle, Status> {
        let set = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        let made = self.fs.create(caller, directory, &name(file), CreateHow::Guarded, &set).await;
        made.map(|made| made.node.handle).map_err(|error| error.status)
    }

    pub async fn read(
        &self,
        caller: &Caller,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<(Bytes, bool), Status> {
        let read = self
            .fs
            .read(caller, file, StateidBasis::Anonymous, offset, count)
            .await
            .map_err(|error| error.status)?;
        Ok((read.data.to_bytes().unwrap(), read.eof))
    }

    pub async fn write(
        &self,
        caller: &Caller,
        file: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Status> {
        let data = Bytes::copy_from_slice(data);
        let written =
            self.fs.write(caller, file, StateidBasis::Anonymous, offset, data, Stability::Unstable).await;
        written.map(|written| written.count).map_err(|error| error.status)
    }

    /// All entries, read in parts of `bytes`.
    pub async fn list(&self, directory: &Handle, bytes: u32, plus: bool) -> Vec<vfs::Entry> {
        let mut entries = Vec::new();
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes,
            plus,
            want_directory_lease: false,
            names_suffice: false,
        };
        loop {
            let Listing { entries: more, eof, verifier, .. } =
                self.fs.readdir(&machine(), directory, part).await.unwrap();
            assert!(eof || !more.is_empty(), "a part without entries that is not the last");
            part =
                ReadDir { cookie: more.last().map_or(part.cookie, |entry| entry.cookie), verifier, ..part };
            entries.extend(more);
            if eof {
                return entries;
            }
        }
    }
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

/// Reports whether the process is root. A test that needs root passes without it, with a message.
pub fn is_root() -> bool {
    let root = LocalFs::serves_all_users();
    if !root {
        eprintln!("skipped: only root can do this");
    }
    root
}
