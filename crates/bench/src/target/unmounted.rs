//! A [`vfs::FileSystem`] without a mount, behind a cache like that of a kernel's NFS client.
//!
//! On a kernel's NFS mount, most system calls send no call to the server. A comparison with clients that send
//! one each time would flatter every cache. So this client caches as Linux does:
//!
//! - names and negative entries, while the directory does not change;
//! - attributes, for `acregmin` to `acregmax` and `acdirmin` to `acdirmax`;
//! - pages, while the file's change attribute stays the same;
//! - access rights, until the file's ctime changes.
//!
//! It opens close-to-open: a GETATTR in version 3, an OPEN in version 4, nothing under a delegation. It reads
//! ahead of sequential readers. It keeps writes until the file is closed, synced or locked. Then it sends
//! them in pieces of `wsize` at the same time, followed by one COMMIT, or a single piece as FILE_SYNC. It
//! keeps delegations until the server recalls them.
//!
//! Not modelled: memory pressure by others, write-back by age, and blocking locks.

mod files;
mod leases;
mod memory;
mod names;
mod pages;
mod writing;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle as Runtime;
use vfs::{Caller, FileSystem, Status};

use super::{How, Listed, OpenFile, Stat, Target};
use crate::interrupt::Interrupt;
use files::Open;
use memory::Client;

/// How long the shutdown may take after an interrupt.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// Behaviour of a client's cache.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// True if opens are sent to the server (version 4).
    pub opens: bool,
    /// The most bytes of cached pages.
    pub memory_bytes: usize,
    /// `acregmin` and `acregmax`
    pub files: (Duration, Duration),
    /// `acdirmin` and `acdirmax`
    pub directories: (Duration, Duration),
    /// Every write is a call whose reply the program waits for, as in the clients of Linux 2.0 that Badros
    /// started from.
    pub synchronous: bool,
    /// Accept delegations.
    pub delegations: bool,
    /// The most bytes in a READ and in a WRITE.
    pub transfer_bytes: u32,
}

impl Habits {
    /// The defaults of Linux with 64 MiB of pages. `opens` selects version 4.
    pub fn linux(opens: bool) -> Habits {
        let seconds = |low, high| (Duration::from_secs(low), Duration::from_secs(high));
        Habits {
            opens,
            memory_bytes: 64 << 20,
            files: seconds(3, 60),
            directories: seconds(30, 60),
            synchronous: false,
            delegations: true,
            transfer_bytes: 1 << 20,
        }
    }

    /// Sets all attribute timeouts to one value (`actimeo`), so that counts do not depend on the speed of the
    /// machine.
    #[must_use]
    pub fn with_actimeo(mut self, timeout: Duration) -> Habits {
        (self.files, self.directories) = ((timeout, timeout), (timeout, timeout));
        self
    }
}

/// A target without a mount; see the module. Calls must not come from threads of the runtime.
pub struct Unmounted {
    runtime: Runtime,
    client: Arc<Client>,
    interrupt: Interrupt,
}

impl Unmounted {
    /// Works below the directory `base` of a file system. It must exist; empty means the root.
    pub fn new(
        runtime: Runtime,
        fs: Arc<dyn FileSystem>,
        habits: Habits,
        base: &str,
    ) -> io::Result<Unmounted> {
        let caller =
            Caller::unix(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), &[]);
        let starting = async {
            let client = Client::start(fs, caller, habits).await?;
            client.change_root(base).await.map_err(error)?;
            io::Result::Ok(client)
        };
        let client = runtime.block_on(starting)?;
        Ok(Unmounted { runtime, client, interrupt: Interrupt::default() })
    }

    /// Makes calls fail after an interrupt, even if the server does not answer.
    #[must_use]
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Unmounted {
        self.interrupt = interrupt.clone();
        self
    }

    fn wait<T>(&self, work: impl Future<Output = vfs::Result<T>>) -> io::Result<T> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                done = work => done.map_err(error),
                () = self.interrupt.told() => Err(io::Error::other("interrupted")),
            }
        })
    }
}

impl Drop for Unmounted {
    /// Returns all delegations, as an unmount does.
    fn drop(&mut self) {
        let leave = async {
            self.client.give_all_back().await;
            // Without a record of this client, a restarted server need not wait for it.
            self.client.fs.shutdown().await;
        };
        self.runtime.block_on(async {
            tokio::select! {
                () = leave => {}
                // The server may have ended already.
                () = async { self.interrupt.told().await; tokio::time::sleep(LEAVE_PATIENCE).await } => {}
            }
        });
        self.client.stop();
    }
}

impl Target for Unmounted {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile + '_>> {
        let open = self.wait(self.client.open(path, how))?;
        Ok(Box::new(UnmountedFile { on: self, open: Some(open) }))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        let attributes = self.wait(self.client.stat(path))?;
        Ok(Stat { size: attributes.size, is_dir: attributes.is_dir() })
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        self.wait(self.client.list(path))
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.wait(self.client.mkdir(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.wait(self.client.remove(path, false))
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.wait(self.client.remove(path, true))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.wait(self.client.rename(from, to))
    }

    fn forget(&self) -> io::Result<()> {
        self.client.memory.lock().pages.clear();
        Ok(())
    }

    fn directory(&self) -> Option<&Path> {
        None
    }
}

struct UnmountedFile<'u> {
    on: &'u Unmounted,
    /// `None` once the file is closed.
    open: Option<Open>,
}

impl UnmountedFile<'_> {
    fn open(&mut self) -> io::Result<&mut Open> {
        self.open.as_mut().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl OpenFile for UnmountedFile<'_> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let on = self.on;
        on.wait(on.client.read(self.open()?, buffer, offset))
    }

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        let on = self.on;
        on.wait(on.client.write(self.open()?, data, offset))
    }

    fn size(&mut self) -> io::Result<u64> {
        let on = self.on;
        Ok(on.client.size(self.open()?))
    }

    fn sync(&mut self) -> io::Result<()> {
        let on = self.on;
        on.wait(on.client.flush(self.open()?))
    }

    fn lock(&mut self, exclusive: bool) -> io::Result<()> {
        let on = self.on;
        on.wait(on.client.lock(self.open()?, exclusive))
    }

    fn unlock(&mut self) -> io::Result<()> {
        let on = self.on;
        on.wait(on.client.unlock(self.open()?))
    }

    fn close(mut self: Box<Self>) -> io::Result<()> {
        let open = self.open.take().ok_or(io::ErrorKind::InvalidInput)?;
        self.on.wait(self.on.client.close(open))
    }
}

impl Drop for UnmountedFile<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            // Like a program that ends without closing: errors are lost.
            let _ = self.on.wait(self.on.client.close(open));
        }
    }
}

/// Converts the status to the error kind of its `errno`.
fn error(error: vfs::Error) -> io::Error {
    use io::ErrorKind;
    let kind = match error.status {
        Status::NoEnt => ErrorKind::NotFound,
        Status::Exist => ErrorKind::AlreadyExists,
        Status::Perm | Status::Access | Status::NoTicket => ErrorKind::PermissionDenied,
        Status::NotDir => ErrorKind::NotADirectory,
        Status::IsDir => ErrorKind::IsADirectory,
        Status::NotEmpty => ErrorKind::DirectoryNotEmpty,
        Status::NoSpc => ErrorKind::StorageFull,
        Status::Rofs => ErrorKind::ReadOnlyFilesystem,
        Status::Stale => ErrorKind::StaleNetworkFileHandle,
        Status::NotSupp => ErrorKind::Unsupported,
        Status::Inval => ErrorKind::InvalidInput,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
