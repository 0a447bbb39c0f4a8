//! OPEN, CREATE, FLUSH, FSYNC, RELEASE: close-to-open consistency.
//!
//! An open uses the name under which the file was last found, so that it opens the file that the name leads
//! to **now**. It costs one GETATTR or OPEN of the layer below, and nothing under a lease. If the name
//! leads to another file or to none, the reply is ESTALE. Then the kernel looks the path up again and opens
//! what it finds (`reopen`). The kernel does not say by which name it came. So if a file was found under
//! several names, the open checks each of them.
//!
//! The attributes at the open decide which caches stay valid. Pages of another state are dropped;
//! attributes of another state are invalidated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::smallvec;
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
use crate::inodes::{Inode, Names, is_valid};
use crate::pages::Pages;
use crate::passthrough::Way;
use crate::wire::abi::Fopen;
use crate::wire::reply::{Answer, OpenOut, Outcome};
use crate::wire::request::Header;

/// `__FMODE_EXEC` of the kernel: the file is opened for execution.
pub const EXECUTION: u32 = 0x20;

/// The result of an open in the layer below.
pub struct Below {
    pub id: Option<OpenId>,
    pub handle: Handle,
    pub attributes: Attributes,
    pub lease: Option<Lease>,
}

impl Below {
    /// The result of an OPEN of the layer below.
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
        let (names, last_name) = {
            let state = inode.state.lock();
            (state.names.clone(), state.last_name.clone())
        };
        if let Some(at) =
            inode.opens.gone().filter(|_| names.is_empty() && matches!(which, Try::First | Try::ByHandle))
        {
            self.will_be_back(header, flags, smallvec![at]);
            return Err(Errno::STALE);
        }
        let by_handle = || self.open_node(&caller, flags, &inode, Names::new());
        let opened = match which {
            Try::Done(open) => Ok(open),
            Try::ByHandle => by_handle().await,
            Try::First | Try::Last => self.open_node(&caller, flags, &inode, names.clone()).await,
        };
        let open = match (opened, which) {
            (Err(Errno::STALE), Try::First) => {
                let found =
                    if names.is_empty() { last_name.map(|name| *name).into_iter().collect() } else { names };
                self.will_be_back(header, flags, found);
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
        names: Names,
    ) -> Result<OpenOut, Errno> {
        let (fh, access) = (self.files.number(), access_of(flags));
        let grant = self.begin_grant();
        let below = match self.open_below(caller, fh, access, inode, names).await {
            Ok(below) => below,
            // Execute permission suffices to read a file for execution, and the origin permits such a READ.
            // But the origin has no OPEN for it.
            Err(Errno::ACCESS) if flags & EXECUTION != 0 => {
                drop(grant);
                let below = self.open_without_opens(caller, AccessMask::EXECUTE, &inode.handle()).await?;
                return self.opened(caller, fh, access, inode, below).await;
            }
            Err(errno) => return Err(errno),
        };
        grant.succeeded(inode, below.lease);
        self.opened(caller, fh, access, inode, below).await
    }

    /// Opens by name if one is known, else by handle.
    async fn open_below(
        &self,
        caller: &Caller,
        fh: u64,
        access: Share,
        inode: &Inode,
        mut names: Names,
    ) -> Result<Below, Errno> {
        let last = names.pop();
        if !names.is_empty() {
            self.look_at_all(caller, inode, names).await?;
        }
        let found = last.and_then(|at| Some((self.inodes.get(at.0)?, at)));
        let Some((directory, at)) = found else {
            return self.open_handle(caller, fh, access, inode).await;
        };
        let request = request(fh, access, directory.handle(), Some(at.1.clone()));
        match self.fs.open(&opening(caller), &request).await {
            Ok(opened) if opened.handle == inode.handle() => Ok(Below::of(&opened)),
            Ok(other) => {
                if let Some(lease) = other.lease {
                    // No recall of this lease would reach the kernel, unless a node of the other file holds
                    // it.
                    self.give_back(lease.id, &other.handle);
                }
                let _ = self.fs.close(caller, other.id).await;
                self.found_elsewhere(inode, at).await
            }
            Err(error) => match error.status {
                Status::NotSupp => self.open_without_opens(caller, needed(access), &inode.handle()).await,
                // The caller may not search the directory, but may have the file if it came by another
                // path.
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
        match self.fs.open(&opening(caller), &request(fh, access, inode.handle(), None)).await {
            Ok(opened) => Ok(Below::of(&opened)),
            Err(error) if error.status == Status::NotSupp => {
                self.open_without_opens(caller, needed(access), &inode.handle()).await
            }
            Err(error) => Err(errno::of(error)),
        }
    }

    /// Replaces an open in a layer below without opens: gets the attributes and checks the rights.
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

    /// The name leads to another file or to none: the kernel and this front forget it.
    async fn found_elsewhere(&self, inode: &Inode, at: (u64, Name)) -> Result<Below, Errno> {
        self.inodes.unname(inode, &at);
        let others = !inode.state.lock().names.is_empty();
        if others {
            self.notifier.names(vec![at]).await;
        }
        Err(Errno::STALE)
    }

    /// Do all these names still lead to the file? Every name is checked: the kernel repeats a lookup only
    /// once, and only for the name that it came by. Names that lead elsewhere are invalidated.
    async fn look_at_all(&self, caller: &Caller, inode: &Inode, names: Names) -> Result<(), Errno> {
        let mut elsewhere = Vec::new();
        for at in names {
            // The kernel has forgotten this directory, so the open did not come through it.
            let Some(directory) = self.inodes.get(at.0) else {
                self.inodes.unname(inode, &at);
                continue;
            };
            match self.fs.lookup(&opening(caller), &directory.handle(), &at.1, vfs::Want::None).await {
                Ok(looked) if looked.node.handle == inode.handle() => {}
                // A caller without search permission did not come through this directory either.
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

    /// Finishes an open: decides which caches the kernel may keep, and how it reads.
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
            state.opened.looks += 1;
            let keep = state.opened.pages.open(fh, &below.attributes, leased);
            let now = below.attributes.wcc();
            (keep, state.told.take_if(|told| *told != now).is_some())
        };
        if stale {
            // This includes the size: otherwise the kernel would read up to the old end of file.
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
        // The kernel rejects an open with both flags.
        flags.set(Fopen::KEEP_CACHE, keep && !passed);
        flags.set(Fopen::PASSTHROUGH, passed);
        // A close needs no FLUSH if there is nothing to write and no lock to give up.
        flags.set(Fopen::NOFLUSH, access == Share::READ && !self.locks);
        Ok(OpenOut { fh, flags, backing })
    }

    /// CREATE: opens the file, and creates it if it does not exist.
    pub async fn create(&self, header: &Header, text: &[u8], flags: u32, mode: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let (fh, access) = (self.files.number(), access_of(flags));
        let how = if flags & libc::O_EXCL as u32 != 0 { CreateHow::Guarded } else { CreateHow::Unchecked };
        let mut set = mode_only(mode);
        set.size = (flags & libc::O_TRUNC as u32 != 0).then_some(0);
        let mut request = request(fh, access, directory.handle(), Some(name.clone()));
        request.create = Some((how, set));
        let grant = self.begin_grant();
        let below = match self.fs.open(&opening(&caller), &request).await {
            Ok(opened) => Below::of(&opened),
            Err(error) if error.status == Status::NotSupp => {
                let made = self.fs.create(&caller, &directory.handle(), &name, how, &set).await;
                let made = made.map_err(errno::of)?;
                let attributes = match made.node.attributes {
                    Some(attributes) => Ok(attributes),
                    None => self.fs.getattr(&caller, &made.node.handle).await,
                };
                let attributes = attributes.map_err(errno::of)?;
                Below { id: None, handle: made.node.handle, attributes, lease: None }
            }
            Err(error) => return Err(errno::of(error)),
        };
        let (entry, inode) = self.node_for_any_open(&below, (directory.number, name));
        grant.succeeded(&inode, below.lease);
        let opened = self.opened(&caller, fh, access, &inode, below).await;
        drop(inode);
        match opened {
            Ok(open) => Ok(Answer::Create(entry, open)),
            Err(errno) => {
                self.forget(entry.node, 1);
                Err(errno)
            }
        }
    }

    /// FLUSH, at each close of a descriptor: sends written data to the origin, or returns the error of
    /// that.
    pub async fn flush(&self, fh: u64, owner: u64) -> Outcome {
        let file = self.file(fh)?;
        if let Some(open) = file.open {
            let mut state = file.inode.state.lock();
            if state.locks.lockers.values().any(|locker| locker.open == open) {
                state.locks.leaving.insert(open, Instant::now());
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
        // This also covers data written through other descriptors, whatever this one was opened for.
        file.dirty.store(true, Ordering::Release);
        self.commit(&file).await.map(|()| Answer::Done)
    }

    /// Is the silly name the only name of the file? Then no program will read its data later, and a close
    /// need not flush it.
    async fn is_gone(&self, file: &File) -> bool {
        let removed = file.inode.opens.have_silly();
        let known = async { self.fs.getattr(&opening(&file.caller), &file.inode.handle()).await };
        removed && known.await.is_ok_and(|known| known.nlink <= 1)
    }

    /// The origin has refused data that is in the kernel's pages: drops the pages.
    pub(super) fn refused(&self, file: &File) {
        file.inode.state.lock().opened.pages = Pages::default();
        self.notifier.data(file.inode.number);
    }

    /// Flushes data that was written through this open, at a close: makes it durable, unless a lease
    /// permits a delay.
    async fn send(&self, file: &File) -> Result<(), Errno> {
        // An open for writing always flushes, even if another descriptor wrote: the first close gets a
        // pending write error.
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
                    // The origin has set other times than those that the kernel got meanwhile. This happens
                    // under a lease too, for data that the layer below sent on its own.
                    self.notifier.attributes(file.inode.number);
                }
                flushed.map_err(errno::of)
            }
        }
    }

    /// Does the kernel have the current attributes already? Under a lease the check costs no call. An
    /// invalidation would cost the kernel two requests, one of them for capabilities.
    async fn has_been_told(&self, file: &File) -> bool {
        if !file.inode.is_leased() {
            return false;
        }
        let known = self.fs.getattr(&file.caller, &file.inode.handle()).await;
        known.is_ok_and(|known| file.inode.state.lock().told == Some(known.wcc()))
    }

    /// Commits data that was written through this open.
    pub(super) async fn commit(&self, file: &File) -> Result<(), Errno> {
        if !file.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let written = file.unstable.lock().take();
        let result = self.fs.commit(&file.caller, &file.inode.handle(), 0, 0).await;
        match result {
            // The server has restarted since the WRITE and lost the data that it had not written to stable
            // storage.
            Ok(commit) if written.is_some_and(|written| written != commit.verifier) => {
                self.refused(file);
                Err(Errno::IO)
            }
            Ok(commit) => {
                let leased = file.inode.is_leased();
                file.inode.state.lock().opened.pages.wrote(&commit.wcc, leased);
                // The origin has set other times than those that the kernel got meanwhile, under a lease
                // too.
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
        let silly = file.inode.opens.end();
        if let Some(silly) = &silly {
            // From now on RMDIR waits for the name, also while the unlock is on its way.
            self.silly.leave(&silly.directory);
        }
        if let Some(owner) = flock_owner.filter(|_| self.locks) {
            self.unlock_all(&file, &lock_owner(owner, true)).await;
        }
        let unused = {
            let mut state = file.inode.state.lock();
            state.opened.pages.heard_of(fh);
            state.closed(file.access, file.passed);
            if state.opened.opens == state.opened.ordinary { state.opened.backing.take() } else { None }
        };
        if unused.is_some() {
            self.passed.leave(&file.inode);
        }
        drop(unused);
        // The kernel may write mapped pages after the last FLUSH. No caller waits for an error of these, so
        // log it. A removed file loses its silly name instead.
        if let Some(silly) = silly {
            self.remove_leaving(&silly).await;
        } else if file.dirty.load(Ordering::Acquire)
            && let Err(errno) = self.send(&file).await
        {
            tracing::warn!("what was written to {} after its close is lost: {errno}", file.inode.handle());
        }
        if let Some(id) = file.open
            && let Err(error) = self.fs.close(&file.caller, id).await
        {
            tracing::debug!("close of {}: {error}", file.inode.handle());
        }
        {
            // The locks of this open have ended with it.
            let mut state = file.inode.state.lock();
            if let Some(locks) = state.locks.used() {
                locks.lockers.retain(|_, locker| Some(locker.open) != file.open);
                locks.leaving.retain(|open, _| Some(*open) != file.open);
            }
        }
        file.inode.wake_lockers();
        Ok(Answer::Done)
    }
}

/// The name does not exist, or is not a file.
pub fn leads_nowhere(status: Status) -> bool {
    use Status::{BadHandle, Inval, IsDir, NoEnt, NotDir, Stale};
    matches!(status, NoEnt | Stale | BadHandle | IsDir | NotDir | Inval)
}

pub fn request(fh: u64, access: Share, handle: Handle, name: Option<Name>) -> OpenRequest {
    OpenRequest { want: Want::Any, ..OpenRequest::new(handle, name, open_owner(fh), access) }
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
