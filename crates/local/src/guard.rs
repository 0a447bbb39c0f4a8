//! Guards: leases of the kernel (fcntl(2), `F_SETLEASE`) on exported files, which detect processes of this
//! machine.
//!
//! While this server holds a *write* guard, the kernel blocks every other open of the file. While it holds
//! a *read* guard, the kernel blocks opens for writing and truncations. It blocks them until the guard is
//! released, for `lease-break-time` at most. Operations without an open file are **not** detected: renames,
//! links and removals, changes of mode, owner and times, and extended attributes. Nor are processes that
//! opened the file before; in that case no guard is granted.
//!
//! The kernel does not distinguish the server's own opens. A write guard requires that its descriptor is
//! the only one, a read guard that none is for writing. So a guarded file has one descriptor for reads and
//! writes. For a write, the descriptor of a read guard is replaced by one of a write guard. (A range that a
//! reply has not sent yet keeps a descriptor open; until then there may be no guard.)
//!
//! While a guard is replaced, there is none for a moment. If the file has another ctime or size afterwards,
//! a process has changed it in that moment, and the guard counts as lost. On kernels without fine-grained
//! timestamps (before Linux 6.13), this misses a second change of the same size within one clock tick.
//!
//! Guards need the owner's uid or `CAP_LEASE`, and a file system that supports them.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use vfs::{LeaseKind, Timestamp};

use crate::attributes::Stat;
use crate::descriptors::{Node, OpenFiles};
use crate::identity;
use crate::sys::{self, KernelLease};
use crate::tree::Tree;

/// A lease of the kernel.
pub(crate) struct Guard {
    file: Arc<File>,
    kind: KernelLease,
}

/// The result of taking a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guarding {
    /// The guard is held.
    Held,
    /// A process has the file open.
    InUse,
    /// This file supports no guard, or this process may not take one.
    Unavailable,
}

/// The state of a guard, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// No process waits.
    Nothing,
    /// A process waits to read.
    Read,
    /// A process waits to write, or the guard is gone.
    Write,
}

impl Tree {
    /// Takes a guard so that a file may be leased. Keeps a sufficient guard, else releases it first.
    pub(crate) fn guard(&self, node: &Node, kind: LeaseKind) -> Guarding {
        let kind = if kind == LeaseKind::Write { KernelLease::Write } else { KernelLease::Read };
        let mut data = node.data.lock();
        if data.guard.as_ref().is_some_and(|guard| guard.kind >= kind) {
            return Guarding::Held;
        }
        data.begin_replacement(node);
        let Ok(opened) = identity::as_self(|| self.open_to_guard(node, kind)) else {
            return Guarding::Unavailable;
        };
        let taken = match opened {
            Ok((file, writable)) => data.take_guard(file, writable, kind),
            Err(Errno::AGAIN | Errno::TXTBSY) => Guarding::InUse,
            Err(_) => Guarding::Unavailable,
        };
        if taken == Guarding::Held && data.end_replacement(node) {
            self.leases.look_again();
        }
        taken
    }

    /// Opens a guarded file for writing. If a process prevents a write guard, the file has no guard
    /// afterwards.
    pub(crate) fn open_guarded_for_writing(
        &self,
        node: &Node,
        data: &mut OpenFiles,
    ) -> Result<Arc<File>, Errno> {
        data.begin_replacement(node);
        let opened = identity::as_self(|| self.proc.open(&node.path, OFlags::RDWR));
        let opened = opened.unwrap_or(Err(Errno::ACCESS)).map(|file| Arc::new(File::from(file)));
        let held = match &opened {
            Ok(file) => data.take_guard(file.clone(), true, KernelLease::Write) == Guarding::Held,
            Err(_) => false,
        };
        if !held {
            data.guard_lost = true;
            data.writing = opened.as_ref().ok().cloned();
        }
        if !held || data.end_replacement(node) {
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
    /// The access that the kernel wants this guard to permit.
    pub(crate) fn wanted(&self) -> Wanted {
        let data = self.data.lock();
        if data.guard_lost {
            return Wanted::Write;
        }
        let Some(guard) = &data.guard else { return Wanted::Nothing };
        match sys::lease(guard.file.as_fd()) {
            Ok(kind) if kind == guard.kind => Wanted::Nothing,
            Ok(KernelLease::Read) => Wanted::Read,
            _ => Wanted::Write,
        }
    }

    /// Releases the guard, so that processes of this machine can use the file.
    pub(crate) fn unguard(&self) {
        let mut data = self.data.lock();
        data.unguard();
        (data.guard_lost, data.replaced) = (false, None);
    }
}

/// The ctime and size of a file, one of which any change by another process moves. `None` if they cannot be
/// read.
#[derive(PartialEq)]
pub(crate) struct FileState(Option<(Timestamp, u64)>);

impl FileState {
    fn of(node: &Node) -> FileState {
        FileState(Stat::of(&node.path).ok().map(|stat| (stat.ctime(), stat.size())))
    }
}

impl OpenFiles {
    /// Releases the guard, if there is one, to take another one. Remembers the state that it vouches for,
    /// until a guard is held again.
    fn begin_replacement(&mut self, node: &Node) {
        if self.guard.is_some() {
            self.replaced = Some(FileState::of(node));
        }
        self.unguard();
    }

    /// The next guard is held. True if the file has changed in between; then the guard counts as lost.
    fn end_replacement(&mut self, node: &Node) -> bool {
        let Some(before) = self.replaced.take() else { return false };
        let missed = before.0.is_none() || before != FileState::of(node);
        self.guard_lost |= missed;
        missed
    }

    fn take_guard(&mut self, file: Arc<File>, writable: bool, kind: KernelLease) -> Guarding {
        let taken = identity::as_self(|| sys::set_lease(file.as_fd(), kind)).unwrap_or(Err(Errno::ACCESS));
        match taken {
            Ok(()) => {
                self.reading = Some(file.clone());
                self.writing = writable.then(|| file.clone());
                self.guard = Some(Guard { file, kind });
                Guarding::Held
            }
            Err(Errno::AGAIN) => Guarding::InUse,
            Err(_) => Guarding::Unavailable,
        }
    }

    /// Releases the guard and all descriptors, which would prevent the next guard.
    fn unguard(&mut self) {
        if let Some(guard) = self.guard.take() {
            // Explicitly: a range that a reply has not sent yet may hold a reference to the descriptor.
            let _ = identity::as_self(|| sys::set_lease(guard.file.as_fd(), KernelLease::None));
        }
        self.reading = None;
        self.writing = None;
    }
}
