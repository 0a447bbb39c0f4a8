//! Leases of the kernel (fcntl(2), `F_SETLEASE`) on files of ours: how processes of this machine are noticed.
//!
//! While a *write* guard is held, no process opens the file, and while a *read* guard is held, none opens it for
//! writing or truncates it, before we have let go: the kernel holds it back, for `lease-break-time` at most. What is
//! **not** noticed is all that needs no open file: renames, links and removals, changes of mode, owner and times, and
//! extended attributes. Nor are processes that opened the file before; then no guard is to be had.
//!
//! The kernel does not tell our own opens from others'. A write guard needs its descriptor to be the only one, a read
//! guard that none is for writing. So a guarded file has one descriptor, which reads and writes share; that of a read
//! guard makes place for one of a write guard when something is to be written. (A range on its way to a client keeps
//! a descriptor alive; as long as it does, there may be no guard.)
//!
//! Guards need the owner's uid or `CAP_LEASE`, and a file system that knows them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::LeaseKind;

use crate::descriptors::{Node, OpenFiles};
use crate::identity;
use crate::sys::{self, KernelLease};
use crate::tree::Tree;

/// A lease of the kernel.
pub(crate) struct Guard {
    file: Arc<File>,
    kind: KernelLease,
}

/// What came of asking for a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarding {
    /// It is held.
    Held,
    /// A process has the file open.
    InUse,
    /// Not on this file, or not by this process.
    Unavailable,
}

/// What the kernel says of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nobody waits.
    Nothing,
    /// Somebody waits to read.
    Read,
    /// Somebody waits to write; or the guard is gone.
    Write,
}

impl Tree {
    /// Guards a file so that it may be leased. Keeps what is held if that is enough, else gives it up.
    pub(crate) fn guard(&self, node: &Node, kind: LeaseKind) -> Guarding {
        let kind = if kind == LeaseKind::Write { KernelLease::Write } else { KernelLease::Read };
        let mut data = node.data.lock();
        if data.guard.as_ref().is_some_and(|guard| guard.kind >= kind) {
            return Guarding::Held;
        }
        data.unguard();
        let Ok(opened) = identity::as_self(|| self.open_to_guard(node, kind)) else {
            return Guarding::Unavailable;
        };
        match opened {
            Ok((file, writable)) => data.take_guard(file, writable, kind),
            Err(Errno::AGAIN | Errno::TXTBSY) => Guarding::InUse,
            Err(_) => Guarding::Unavailable,
        }
    }

    /// Opens a guarded file for writing. If a process is in the way of a write guard, there is none afterwards.
    pub(crate) fn open_guarded_for_writing(
        &self,
        node: &Node,
        data: &mut OpenFiles,
    ) -> Result<Arc<File>, Errno> {
        data.unguard();
        let opened = identity::as_self(|| self.proc.open(&node.path, OFlags::RDWR));
        let opened = opened.unwrap_or(Err(Errno::ACCESS)).map(|file| Arc::new(File::from(file)));
        let held = match &opened {
            Ok(file) => data.take_guard(file.clone(), true, KernelLease::Write) == Guarding::Held,
            Err(_) => false,
        };
        if !held {
            data.guard_lost = true;
            data.writing = opened.as_ref().ok().cloned();
            self.leases.look_again();
        }
        opened
    }

    fn open_to_guard(&self, node: &Node, kind: KernelLease) -> Result<(Arc<File>, bool), Errno> {
        if kind == KernelLease::Write {
            match self.proc.open(&node.path, OFlags::RDWR) {
                Ok(file) => return Ok((Arc::new(file.into()), true)),
                Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                Err(_) => {}
            }
        }
        self.proc.open(&node.path, OFlags::RDONLY).map(|file| (Arc::new(file.into()), false))
    }
}

impl Node {
    /// What the kernel wants of us.
    pub(crate) fn wanted(&self) -> Wanted {
        let data = self.data.lock();
        let Some(guard) = &data.guard else {
            return if data.guard_lost { Wanted::Write } else { Wanted::Nothing };
        };
        match sys::lease(guard.file.as_fd()) {
            Ok(kind) if kind == guard.kind => Wanted::Nothing,
            Ok(KernelLease::Read) => Wanted::Read,
            _ => Wanted::Write,
        }
    }

    /// Lets processes of this machine at the file.
    pub(crate) fn unguard(&self) {
        let mut data = self.data.lock();
        data.unguard();
        data.guard_lost = false;
    }
}

impl OpenFiles {
    fn take_guard(&mut self, file: Arc<File>, writable: bool, kind: KernelLease) -> Guarding {
        let taken = identity::as_self(|| sys::set_lease(file.as_fd(), kind)).unwrap_or(Err(Errno::ACCESS));
        match taken {
            Ok(()) => {
                self.guard_lost = false;
                self.reading = Some(file.clone());
                self.writing = writable.then(|| file.clone());
                self.guard = Some(Guard { file, kind });
                Guarding::Held
            }
            Err(Errno::AGAIN) => Guarding::InUse,
            Err(_) => Guarding::Unavailable,
        }
    }

    /// Gives up the guard, and all descriptors with it: they would be in the way of the next one.
    fn unguard(&mut self) {
        if let Some(guard) = self.guard.take() {
            // Not left to the last reference to the descriptor: a range on its way may have one.
            let _ = identity::as_self(|| sys::set_lease(guard.file.as_fd(), KernelLease::None));
        }
        self.reading = None;
        self.writing = None;
    }
}
