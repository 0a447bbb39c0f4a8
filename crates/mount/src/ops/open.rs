//! OPEN, CREATE, FLUSH, FSYNC, RELEASE: close-to-open.
//!
//! An open goes by the name that the file was last found under, so that it finds what is there **now**: one GETATTR or
//! OPEN of the layer below, nothing under a lease. If the name leads elsewhere, or nowhere, the kernel is told ESTALE:
//! it looks the path up once more, and opens what it finds (`reopen`). Nobody says by which name the kernel has come, so that a file
//! that was found under several is looked for under each of them.
//!
//! What the open shows decides about what the kernel has: pages of another state go, attributes of another state are
//! asked for again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{
    AccessMask, Attributes, Caller, CreateHow, Handle, Lease, Name, OpenId, OpenRequest, Share, Status, Want,
};

use super::names::mode_only;
use super::reopen::Try;
use crate::credentials::caller;
use crate::errno;
use crate::files::{File, lock_owner, open_owner};
use crate::front::{Front, name, opening};
use crate::inodes::{Inode, is_valid};
use crate::pages::Pages;
use crate::passthrough::Way;
use crate::wire::abi::Fopen;
use crate::wire::reply::{Answer, OpenOut, Outcome};
use crate::wire::request::Header;

/// `__FMODE_EXEC` of the kernel: the file is opened to be run.
pub const EXECUTION: u32 = 0x20;

/// What an open below gave.
pub struct Below {
    pub id: Option<OpenId>,
    pub handle: Handle,
    pub attributes: Attributes,
    pub lease: Option<Lease>,
}

impl Below {
    /// Of an open.
    pub fn of(opened: &vfs::Opened) -> Below {
        let (id, handle) = (Some(opened.id), opened.handle);
        Below { id, handle, attributes: opened.attributes, lease: opened.lease }
    }
}

impl Front {
    /// OPEN.
    pub async fn open(self: &Arc<Front>, header: &Header, flags: u32) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let which = self.which_try(header, &caller, flags).await;
        let _opening = self.begin_open(&inode).await;
        let (names, gone) = {
            let state = inode.state.lock();
            (state.names.clone(), state.gone.clone())
        };
        if let Some(at) = gone.filter(|_| names.is_empty() && matches!(which, Try::First | Try::ByHandle)) {
            self.will_be_back(header, flags, vec![at]);
            return Err(Errno::STALE);
        }
        let by_handle = || self.open_node(&caller, flags, &inode, Vec::new());
        let opened = match which {
            Try::Done(open) => Ok(open),
            Try::ByHandle => by_handle().await,
            Try::First | Try::Last => self.open_node(&caller, flags, &inode, names.clone()).await,
        };
        let open = match (opened, which) {
            (Err(Errno::STALE), Try::First) => {
                self.will_be_back(header, flags, names);
                Err(Errno::STALE)
            }
            (opened, _) => opened,
        };
        Ok(Answer::Open(open?))
    }

    async fn open_node(
        &self,
        caller: &Caller,
        flags: u32,
        inode: &Arc<Inode>,
        names: Vec<(u64, Name)>,
    ) -> Result<OpenOut, Errno> {
        let (fh, access) = (self.files.number(), access_of(flags));
        let flight = self.recalls.take_off();
        let below = match self.open_below(caller, fh, access, inode, names).await {
            Ok(below) => below,
            // Who may execute a file may read it for that, and the origin lets it: to the origin there is no open for it.
            Err(Errno::ACCESS) if flags & EXECUTION != 0 => {
                self.crashed(flight);
                let below = self.open_without_opens(caller, AccessMask::EXECUTE, &inode.handle).await?;
                return self.opened(caller, fh, access, inode, below).await;
            }
            Err(errno) => {
                self.crashed(flight);
                return Err(errno);
            }
        };
        self.landed(flight, inode, below.lease);
        self.opened(caller, fh, access, inode, below).await
    }

    /// By name where one is known, else by handle.
    async fn open_below(
        &self,
        caller: &Caller,
        fh: u64,
        access: Share,
        inode: &Inode,
        mut names: Vec<(u64, Name)>,
    ) -> Result<Below, Errno> {
        let last = names.pop();
        if !names.is_empty() {
            self.look_at_all(caller, inode, names).await?;
        }
        let found = last.and_then(|at| Some((self.inodes.get(at.0)?, at)));
        let Some((directory, at)) = found else {
            return self.open_handle(caller, fh, access, inode).await;
        };
        let request = request(fh, access, directory.handle, Some(at.1.clone()));
        match self.fs.open(&opening(caller), &request).await {
            Ok(opened) if opened.handle == inode.handle => Ok(Below::of(&opened)),
            Ok(other) => {
                if let Some(lease) = other.lease {
                    // Nobody would tell the kernel of its end, unless the other file has a node that has it.
                    self.give_back(lease.id, &other.handle);
                }
                let _ = self.fs.close(caller, other.id).await;
                self.found_elsewhere(inode, at).await
            }
            Err(error) => match error.status {
                Status::NotSupp => self.open_without_opens(caller, needed(access), &inode.handle).await,
                // Who may not search the directory may have the file all the same, if it came by another way.
                Status::Access => self.open_handle(caller, fh, access, inode).await,
                status if leads_nowhere(status) => self.found_elsewhere(inode, at).await,
                status => Err(errno::errno(status)),
            },
        }
    }

    async fn open_handle(
        &self,
        caller: &Caller,
        fh: u64,
        access: Share,
        inode: &Inode,
    ) -> Result<Below, Errno> {
        match self.fs.open(&opening(caller), &request(fh, access, inode.handle, None)).await {
            Ok(opened) => Ok(Below::of(&opened)),
            Err(error) if error.status == Status::NotSupp => {
                self.open_without_opens(caller, needed(access), &inode.handle).await
            }
            Err(error) => Err(errno::of(error)),
        }
    }

    /// A layer below without opens is asked for attributes and rights.
    pub async fn open_without_opens(
        &self,
        caller: &Caller,
        asked: AccessMask,
        handle: &Handle,
    ) -> Result<Below, Errno> {
        let caller = opening(caller);
        let accessed = self.fs.access(&caller, handle, asked).await.map_err(errno::of)?;
        if !accessed.granted.contains(asked) {
            return Err(Errno::ACCESS);
        }
        let attributes = match accessed.attributes {
            Some(attributes) => attributes,
            None => self.fs.getattr(&caller, handle).await.map_err(errno::of)?,
        };
        Ok(Below { id: None, handle: *handle, attributes, lease: None })
    }

    /// The name leads elsewhere: the kernel has to look again, and so have we.
    async fn found_elsewhere(&self, inode: &Inode, at: (u64, Name)) -> Result<Below, Errno> {
        self.inodes.unname(inode, &at);
        let others = !inode.state.lock().names.is_empty();
        if others {
            self.notifier.names(vec![at]).await;
        }
        Err(Errno::STALE)
    }

    /// Does each of these names lead to the file still? All are tried, since the kernel looks again but once, and only the
    /// one that it came by: of the others it is told.
    async fn look_at_all(
        &self,
        caller: &Caller,
        inode: &Inode,
        names: Vec<(u64, Name)>,
    ) -> Result<(), Errno> {
        let mut elsewhere = Vec::new();
        for at in names {
            // What the kernel has forgotten nobody has come through.
            let Some(directory) = self.inodes.get(at.0) else {
                self.inodes.unname(inode, &at);
                continue;
            };
            match self.fs.lookup(&opening(caller), &directory.handle, &at.1, vfs::Want::None).await {
                Ok(looked) if looked.node.handle == inode.handle => {}
                // Nor has who may not search the directory.
                Err(error) if error.status == Status::Access => {}
                Err(error) if !leads_nowhere(error.status) => return Err(errno::of(error)),
                _ => {
                    self.inodes.unname(inode, &at);
                    elsewhere.push(at);
                }
            }
        }
        if elsewhere.is_empty() {
            return Ok(());
        }
        self.notifier.names(elsewhere).await;
        Err(Errno::STALE)
    }

    /// The file is open: what the kernel may keep, and how it reads.
    pub async fn opened(
        &self,
        caller: &Caller,
        fh: u64,
        access: Share,
        inode: &Arc<Inode>,
        below: Below,
    ) -> Result<OpenOut, Errno> {
        let (keep, stale) = {
            let mut state = inode.state.lock();
            let leased = state.lease.is_some_and(|lease| is_valid(&lease));
            state.looks += 1;
            let keep = state.pages.open(fh, &below.attributes, leased);
            let now = below.attributes.wcc();
            (keep, state.told.take_if(|told| *told != now).is_some())
        };
        if stale {
            // Its size, too: the kernel would read as far as it believes the file to go.
            self.notifier.attributes(inode.number);
        }
        let way = self.way(caller, inode, access, &below.attributes, below.id).await;
        let (passed, backing) = match way {
            Way::Ordinary => (false, 0),
            Way::Passed(backing) => (true, backing),
            Way::Again => {
                self.retire(inode);
                if let Some(id) = below.id {
                    let _ = self.fs.close(caller, id).await;
                }
                return Err(Errno::STALE);
            }
        };
        let counter = if passed { &self.counters.opens_passed } else { &self.counters.opens_ordinary };
        counter.fetch_add(1, Ordering::Relaxed);
        self.files.insert(File {
            fh,
            inode: inode.clone(),
            caller: caller.clone(),
            open: below.id,
            access,
            passed,
            unstable: Mutex::new(None),
            dirty: AtomicBool::new(false),
        });
        let mut flags = Fopen::empty();
        // The kernel takes no open for both.
        flags.set(Fopen::KEEP_CACHE, keep && !passed);
        flags.set(Fopen::PASSTHROUGH, passed);
        // A close that has nothing to write and no locks to give up need not be told.
        flags.set(Fopen::NOFLUSH, access == Share::READ && !self.locks);
        Ok(OpenOut { fh, flags, backing })
    }

    /// CREATE: open, and make it if it is not there.
    pub async fn create(&self, header: &Header, text: &[u8], flags: u32, mode: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let (fh, access) = (self.files.number(), access_of(flags));
        let how = if flags & libc::O_EXCL as u32 != 0 { CreateHow::Guarded } else { CreateHow::Unchecked };
        let mut set = mode_only(mode);
        set.size = (flags & libc::O_TRUNC as u32 != 0).then_some(0);
        let mut request = request(fh, access, directory.handle, Some(name.clone()));
        request.create = Some((how, set));
        let flight = self.recalls.take_off();
        let below = match self.fs.open(&opening(&caller), &request).await {
            Ok(opened) => Below::of(&opened),
            Err(error) if error.status == Status::NotSupp => {
                let made = self.fs.create(&caller, &directory.handle, &name, how, &set).await;
                let made = made.map_err(errno::of).inspect_err(|_| self.crashed(flight))?;
                let attributes = match made.node.attributes {
                    Some(attributes) => Ok(attributes),
                    None => self.fs.getattr(&caller, &made.node.handle).await,
                };
                let attributes = attributes.map_err(errno::of).inspect_err(|_| self.crashed(flight))?;
                Below { id: None, handle: made.node.handle, attributes, lease: None }
            }
            Err(error) => {
                self.crashed(flight);
                return Err(errno::of(error));
            }
        };
        let (entry, inode) = self.node_for_any_open(&below, (directory.number, name));
        self.landed(flight, &inode, below.lease);
        let opened = self.opened(&caller, fh, access, &inode, below).await;
        inode.state.lock().leave_ordinary();
        match opened {
            Ok(open) => Ok(Answer::Create(entry, open)),
            Err(errno) => {
                self.forget(entry.node, 1);
                Err(errno)
            }
        }
    }

    /// FLUSH, at each close of a descriptor: what was written is at the origin, or the error is told here.
    pub async fn flush(&self, fh: u64, owner: u64) -> Outcome {
        let file = self.file(fh)?;
        if let Some(open) = file.open {
            let mut state = file.inode.state.lock();
            if state.lockers.values().any(|locker| locker.open == open) {
                state.leaving.insert(open, Instant::now());
            }
        }
        let flushed = if self.is_gone(&file).await { Ok(()) } else { self.send(&file).await };
        if self.locks {
            self.unlock_all(&file, &lock_owner(owner, false)).await;
        }
        flushed.map(|()| Answer::Done)
    }

    /// FSYNC.
    pub async fn fsync(&self, fh: u64) -> Outcome {
        let file = self.file(fh)?;
        // What another descriptor wrote is meant too, whatever this one was opened for.
        file.dirty.store(true, Ordering::Release);
        self.commit(&file).await.map(|()| Answer::Done)
    }

    /// Has the file no other name than the one that it has until it is closed? What is written to it then, nobody will read.
    async fn is_gone(&self, file: &File) -> bool {
        let removed = file.inode.state.lock().silly.is_some();
        let known = async { self.fs.getattr(&opening(&file.caller), &file.inode.handle).await };
        removed && known.await.is_ok_and(|known| known.nlink <= 1)
    }

    /// The origin has not taken what the kernel has in its pages: they go.
    pub(super) fn refused(&self, file: &File) {
        file.inode.state.lock().pages = Pages::default();
        self.notifier.data(file.inode.number);
    }

    /// Does what a close must do about what was written through this open: makes it durable, unless a lease lets it wait.
    async fn send(&self, file: &File) -> Result<(), Errno> {
        // A writer asks, though another descriptor wrote: an error that waits is told to whoever closes first.
        let Some(open) = file.open.filter(|_| file.access.contains(Share::WRITE)) else {
            return self.commit(file).await;
        };
        match self.fs.flush(&file.caller, open).await {
            Err(error) if error.status == Status::NotSupp => self.commit(file).await,
            flushed => {
                let wrote = file.dirty.swap(false, Ordering::AcqRel);
                *file.unstable.lock() = None;
                if flushed.is_err() {
                    self.refused(file);
                } else if wrote && !self.has_been_told(file).await {
                    // The origin has stamped other times than those that were shown meanwhile: of what was sent unasked,
                    // under a lease too.
                    self.notifier.attributes(file.inode.number);
                }
                flushed.map_err(errno::of)
            }
        }
    }

    /// Under a lease it costs no call to see whether the kernel knows what there is to know: to be told to ask would cost it
    /// two requests, one of them for capabilities.
    async fn has_been_told(&self, file: &File) -> bool {
        if !file.inode.is_leased() {
            return false;
        }
        let known = self.fs.getattr(&file.caller, &file.inode.handle).await;
        known.is_ok_and(|known| file.inode.state.lock().told == Some(known.wcc()))
    }

    /// Makes durable what was written through this open.
    pub(super) async fn commit(&self, file: &File) -> Result<(), Errno> {
        if !file.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let written = file.unstable.lock().take();
        let result = self.fs.commit(&file.caller, &file.inode.handle, 0, 0).await;
        match result {
            // The server has restarted in between, and what it had not written is lost.
            Ok(commit) if written.is_some_and(|written| written != commit.verifier) => {
                self.refused(file);
                Err(Errno::IO)
            }
            Ok(commit) => {
                let leased = file.inode.is_leased();
                file.inode.state.lock().pages.wrote(&commit.wcc, leased);
                // The origin has stamped other times than those that were shown meanwhile, under a lease too.
                self.notifier.attributes(file.inode.number);
                Ok(())
            }
            Err(error) => {
                self.refused(file);
                Err(errno::of(error))
            }
        }
    }

    /// RELEASE: the last descriptor of an open is closed.
    pub async fn release(&self, fh: u64, flock_owner: Option<u64>) -> Outcome {
        let Some(file) = self.files.remove(fh) else { return Err(Errno::BADF) };
        if let Some(owner) = flock_owner.filter(|_| self.locks) {
            self.unlock_all(&file, &lock_owner(owner, true)).await;
        }
        let (silly, unused) = {
            let mut state = file.inode.state.lock();
            state.pages.heard_of(fh);
            state.opens = state.opens.saturating_sub(1);
            state.writers -= u32::from(file.access.contains(Share::WRITE) && state.writers > 0);
            state.ordinary -= u32::from(!file.passed && state.ordinary > 0);
            let unused = if state.opens == state.ordinary { state.backing.take() } else { None };
            (state.take_silly(), unused)
        };
        if unused.is_some() {
            self.passed.leave(&file.inode);
        }
        drop(unused);
        // Pages that were mapped are written after the last FLUSH; there is nobody left to tell of a failure but the log.
        // What was removed loses its last name first.
        if let Some(silly) = silly {
            self.remove_silly(&silly).await;
        } else if file.dirty.load(Ordering::Acquire)
            && let Err(errno) = self.send(&file).await
        {
            tracing::warn!("what was written to {} after its close is lost: {errno}", file.inode.handle);
        }
        if let Some(id) = file.open
            && let Err(error) = self.fs.close(&file.caller, id).await
        {
            tracing::debug!("close of {}: {error}", file.inode.handle);
        }
        {
            // Its locks have ended with it.
            let mut state = file.inode.state.lock();
            state.lockers.retain(|_, locker| Some(locker.open) != file.open);
            state.leaving.retain(|open, _| Some(*open) != file.open);
        }
        file.inode.unlocked.notify_waiters();
        Ok(Answer::Done)
    }
}

/// What is not there, or is no file.
fn leads_nowhere(status: Status) -> bool {
    use Status::{BadHandle, Inval, IsDir, NoEnt, NotDir, Stale};
    matches!(status, NoEnt | Stale | BadHandle | IsDir | NotDir | Inval)
}

pub fn request(fh: u64, access: Share, handle: Handle, name: Option<Name>) -> OpenRequest {
    OpenRequest {
        handle,
        name,
        owner: open_owner(fh),
        access,
        deny: Share::empty(),
        create: None,
        want: Want::Any,
        reclaim: false,
        read_first: None,
        want_directory_lease: false,
    }
}

pub fn needed(access: Share) -> AccessMask {
    let mut needed = AccessMask::empty();
    needed.set(AccessMask::READ, access.contains(Share::READ));
    needed.set(AccessMask::MODIFY | AccessMask::EXTEND, access.contains(Share::WRITE));
    needed
}

pub fn access_of(flags: u32) -> Share {
    match flags & libc::O_ACCMODE as u32 {
        0 => Share::READ,
        1 => Share::WRITE,
        _ => Share::READ | Share::WRITE,
    }
}
