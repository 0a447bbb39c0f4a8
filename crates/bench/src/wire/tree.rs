//! The files that the calls use: the small ones in `files/`, `large`, and a directory for writes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use bytes::Bytes;
use protocol::nfs3::{self, call};
use xdr::Bulk;

use super::server::{Server, filename};
use super::{Error, TreeOptions};

/// The directory that the benchmark makes if no tree was prepared.
const DIRECTORY: &str = "leasehold-bench";
const FILES: &str = "files";
const LARGE: &str = "large";
/// Size of a small file in bytes.
const SMALL_BYTES: usize = 4 << 10;
/// Bytes per READ and WRITE of the preparation.
const STEP_BYTES: u32 = 1 << 20;

/// Handles of the tree on one server.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: nfs3::Handle,
    pub(super) small: Vec<nfs3::Handle>,
    pub(super) large: nfs3::Handle,
    pub(super) large_bytes: u64,
    /// The directory for workloads that write.
    pub(super) scratch: nfs3::Handle,
    scratch_name: String,
    base: nfs3::Handle,
    /// Name of the base directory, if this run made it.
    ours: Option<String>,
}

/// Makes the files in a directory of this machine, for [`TreeOptions::prepared_in`]. An existing large file
/// of the right size is kept.
pub fn prepare(directory: &Path, options: &TreeOptions) -> Result<(), Error> {
    let files = directory.join(FILES);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Prepare { path, source }
    };
    fs::create_dir_all(&files).map_err(failed(&files))?;
    for index in 0..options.files {
        let path = files.join(small_name(index));
        fs::write(&path, &pattern(SMALL_BYTES)[..]).map_err(failed(&path))?;
    }
    let large = directory.join(LARGE);
    let has = fs::metadata(&large).map(|metadata| metadata.len()).ok();
    if has != Some(options.large_bytes) {
        let write = || -> io::Result<()> {
            let mut file = File::create(&large)?;
            let step = pattern(STEP_BYTES as usize);
            (0..options.large_bytes / u64::from(STEP_BYTES)).try_for_each(|_| file.write_all(&step))
        };
        write().map_err(failed(&large))?;
    }
    Ok(())
}

impl Tree {
    /// Finds the prepared tree, or makes one. Then reads it once to warm the caches. `name` distinguishes the
    /// trees of several servers, because they may export the same directory.
    pub(super) async fn open(
        server: &Server,
        options: &TreeOptions,
        name: Option<&str>,
    ) -> Result<Tree, Error> {
        if server.transfer_max < STEP_BYTES {
            let what =
                format!("moves at most {} bytes at once; the benchmark wants 1 MiB", server.transfer_max);
            return Err(Error::Unsuitable { server: server.address, what });
        }
        let (base, ours) = if let Some(path) = &options.prepared_in {
            (walk(server, path).await?, None)
        } else {
            let name = name.map_or(DIRECTORY.to_owned(), |name| format!("{DIRECTORY}-{name}"));
            (mkdir(server, server.root, &name).await?, Some(name))
        };
        let mut tree = Tree {
            files: base,
            small: Vec::new(),
            large: base,
            large_bytes: options.large_bytes,
            scratch: base,
            scratch_name: format!("scratch-{:08x}", random()),
            base,
            ours,
        };
        match tree.fill(server, options).await {
            Ok(()) => Ok(tree),
            Err(error) => {
                let _ = tree.remove(server).await;
                Err(error)
            }
        }
    }

    async fn fill(&mut self, server: &Server, options: &TreeOptions) -> Result<(), Error> {
        if self.ours.is_some() {
            self.files = mkdir(server, self.base, FILES).await?;
            for index in 0..options.files {
                self.small.push(create(server, self.files, &small_name(index)).await?);
                write(server, self.small[index], SMALL_BYTES as u64).await?;
            }
            self.large = create(server, self.base, LARGE).await?;
            write(server, self.large, self.large_bytes).await?;
        } else {
            self.files = server.lookup(self.base, FILES).await?;
            for index in 0..options.files {
                self.small.push(server.lookup(self.files, &small_name(index)).await?);
            }
            self.large = server.lookup(self.base, LARGE).await?;
        }
        self.scratch = mkdir(server, self.base, &self.scratch_name).await?;
        self.read_once(server).await
    }

    /// Reads all files once, so that the measurement does not depend on the disk.
    async fn read_once(&self, server: &Server) -> Result<(), Error> {
        for file in self.small.iter().copied() {
            read(server, file, 0, SMALL_BYTES as u32).await?;
        }
        for step in 0..self.large_bytes / u64::from(STEP_BYTES) {
            let count = read(server, self.large, step * u64::from(STEP_BYTES), STEP_BYTES).await?;
            if count < STEP_BYTES {
                let what =
                    format!("read {count} of {STEP_BYTES} bytes of {LARGE}: it is shorter than it should be");
                return Err(Error::Unsuitable { server: server.address, what });
            }
        }
        Ok(())
    }

    /// Removes everything that this run made. Also works after a partial setup.
    pub(super) async fn remove(&self, server: &Server) -> Result<(), Error> {
        if self.scratch != self.base {
            empty(server, self.scratch).await?;
            rmdir(server, self.base, &self.scratch_name).await?;
        }
        let Some(name) = &self.ours else { return Ok(()) };
        if self.files != self.base {
            empty(server, self.files).await?;
            rmdir(server, self.base, FILES).await?;
        }
        empty(server, self.base).await?;
        rmdir(server, server.root, name).await
    }
}

pub(super) fn small_name(index: usize) -> String {
    format!("f{index:04}")
}

/// Bytes that are not mistaken for zeros by any layer.
pub(super) fn pattern(bytes: usize) -> Bytes {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A random number to distinguish runs; not suitable for anything more.
pub(super) fn random() -> u32 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

async fn walk(server: &Server, path: &str) -> Result<nfs3::Handle, Error> {
    let mut handle = server.root;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        handle = server.lookup(handle, name).await?;
    }
    Ok(handle)
}

pub(super) fn place(dir: nfs3::Handle, name: &str) -> nfs3::DirOpArgs {
    nfs3::DirOpArgs { dir, name: filename(name) }
}

/// The handle of a new file. The server need not return it, so it may take a LOOKUP.
async fn made(
    server: &Server,
    dir: nfs3::Handle,
    name: &str,
    ok: &nfs3::CreateOk,
) -> Result<nfs3::Handle, Error> {
    match ok.obj {
        Some(handle) => Ok(handle),
        None => server.lookup(dir, name).await,
    }
}

async fn mkdir(server: &Server, dir: nfs3::Handle, name: &str) -> Result<nfs3::Handle, Error> {
    let attributes = nfs3::Sattr { mode: Some(0o755), ..nfs3::Sattr::default() };
    let args = nfs3::MkdirArgs { location: place(dir, name), attributes };
    let reply = server.call::<call::Mkdir>(&args).await?;
    if let nfs3::Reply::Fail(nfs3::Status::Exist, _) = reply {
        return Err(Error::Exists { server: server.address, name: name.to_owned() });
    }
    made(server, dir, name, &server.ok(reply, "MKDIR", name)?).await
}

pub(super) fn create_args(dir: nfs3::Handle, name: &str) -> nfs3::CreateArgs {
    let attributes = nfs3::Sattr { mode: Some(0o644), ..nfs3::Sattr::default() };
    nfs3::CreateArgs { location: place(dir, name), how: nfs3::CreateHow::Unchecked(attributes) }
}

pub(super) async fn create(server: &Server, dir: nfs3::Handle, name: &str) -> Result<nfs3::Handle, Error> {
    let reply = server.call::<call::Create>(&create_args(dir, name)).await?;
    made(server, dir, name, &server.ok(reply, "CREATE", name)?).await
}

async fn write(server: &Server, file: nfs3::Handle, bytes: u64) -> Result<(), Error> {
    let step = pattern(STEP_BYTES as usize);
    let mut offset = 0;
    while offset < bytes {
        let count = u64::from(STEP_BYTES).min(bytes - offset) as usize;
        let data = Bulk::Bytes(step.slice(..count));
        let stable = nfs3::StableHow::Unstable;
        let args = nfs3::WriteArgs { file, offset, count: count as u32, stable, data };
        let reply = server.call::<call::Write>(&args).await?;
        let written = server.ok(reply, "WRITE", DIRECTORY)?.count;
        if written == 0 {
            let what = "writes nothing and calls it success".to_owned();
            return Err(Error::Unsuitable { server: server.address, what });
        }
        offset += u64::from(written);
    }
    let args = nfs3::CommitArgs { file, offset: 0, count: 0 };
    let reply = server.call::<call::Commit>(&args).await?;
    server.ok(reply, "COMMIT", DIRECTORY).map(drop)
}

async fn read(server: &Server, file: nfs3::Handle, offset: u64, count: u32) -> Result<u32, Error> {
    let reply = server.call::<call::Read>(&nfs3::ReadArgs { file, offset, count }).await?;
    Ok(server.ok(reply, "READ", DIRECTORY)?.count)
}

pub(super) fn remove_args(dir: nfs3::Handle, name: &str) -> nfs3::RemoveArgs {
    nfs3::RemoveArgs { object: place(dir, name) }
}

async fn rmdir(server: &Server, dir: nfs3::Handle, name: &str) -> Result<(), Error> {
    let reply = server.call::<call::Rmdir>(&remove_args(dir, name)).await?;
    server.ok(reply, "RMDIR", name).map(drop)
}

/// Removes all files of a directory: reads it from the start until it is empty.
async fn empty(server: &Server, dir: nfs3::Handle) -> Result<(), Error> {
    loop {
        let args = nfs3::ReaddirArgs { dir, cookie: 0, cookieverf: [0; 8], count: 32 << 10 };
        let reply = server.call::<call::Readdir>(&args).await?;
        let entries = server.ok(reply, "READDIR", DIRECTORY)?.entries.into_vec();
        let mut removed = 0;
        for name in entries.into_iter().map(|entry| entry.name) {
            if &name[..] == b"." || &name[..] == b".." {
                continue;
            }
            let text = String::from_utf8_lossy(&name).into_owned();
            let args = nfs3::RemoveArgs { object: nfs3::DirOpArgs { dir, name } };
            let reply = server.call::<call::Remove>(&args).await?;
            server.ok(reply, "REMOVE", &text)?;
            removed += 1;
        }
        if removed == 0 {
            return Ok(());
        }
    }
}
