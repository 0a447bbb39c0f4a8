//! A [`vfs::FileSystem`] without any mount, behind a memory like that of a kernel's NFS client.
//!
//! A program on a kernel's NFS mount does not send a call for each of its system calls, and a comparison with clients
//! that do would flatter every cache. So this client remembers what Linux would: names, and that there are none, while
//! the directory does not change; attributes for `acregmin` to `acregmax`, `acdirmin` to `acdirmax`; pages while the
//! file's change attribute stays the same; rights until its ctime moves. It opens close-to-open (a GETATTR in version 3,
//! an OPEN in version 4, nothing under a delegation), reads ahead of sequential readers, keeps writes until the file is
//! closed, synced or locked, and sends them in pieces of `wsize` at once with one COMMIT behind, or alone as FILE_SYNC.
//! What the server delegates it keeps until the server wants it back.
//!
//! What it does not model: memory pressure by others, write-back by age, and locks that are waited for.

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

/// How long leaving may take once we are told to end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

/// How a client's memory behaves.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Opens are told to the server (version 4), or not (version 3).
    pub opens: bool,
    /// Bytes of pages, at most.
    pub memory_bytes: usize,
    /// `acregmin` and `acregmax`
    pub files: (Duration, Duration),
    /// `acdirmin` and `acdirmax`
    pub directories: (Duration, Duration),
    /// Every write is a call that is waited for, as in the clients of Linux 2.0 that Badros began with.
    pub synchronous: bool,
    /// Delegations are welcome.
    pub delegations: bool,
    /// Bytes in a READ and in a WRITE, at most.
    pub transfer_bytes: u32,
}

impl Habits {
    /// Those of Linux with 64 MiB of pages; version 4 or not.
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

    /// The same, and what was believed once is believed for this long (`actimeo`): counts that do not depend on how fast
    /// the machine is.
    #[must_use]
    pub fn with_actimeo(mut self, timeout: Duration) -> Habits {
        (self.files, self.directories) = ((timeout, timeout), (timeout, timeout));
        self
    }
}

/// See the module. Calls must come from threads that are none of the runtime's.
pub struct Unmounted {
    runtime: Runtime,
    client: Arc<Client>,
    interrupt: Interrupt,
}

impl Unmounted {
    /// Works below the directory `base` of a file system, which must be there; empty for its root.
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

    /// Calls end with an error once it is told, whether the server answers or not.
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
    /// Gives back what was delegated, as an unmount does.
    fn drop(&mut self) {
        let leave = async {
            self.client.give_all_back().await;
            // A server that keeps no record of us need not wait for us when it has been started again.
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
    /// Until it is closed.
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
            // As a program that ends without closing: nobody hears of an error.
            let _ = self.on.wait(self.on.client.close(open));
        }
    }
}

/// As `errno` would say it.
fn error(error: vfs::Error) -> io::Error {
    use io::ErrorKind;
    let kind = match error.status {
        Status::NoEnt => ErrorKind::NotFound,
        Status::Exist => ErrorKind::AlreadyExists,
        Status::Perm | Status::Access => ErrorKind::PermissionDenied,
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
