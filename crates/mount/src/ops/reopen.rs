//! The second attempt of an open: a program never gets an ESTALE that a fresh lookup would avoid.
//!
//! An OPEN names a node. That node may be outdated: its name leads to another file, or the file has left
//! passthrough. The reply is ESTALE. Linux then walks the path once more, with a LOOKUP for every name, and
//! opens what it finds. If that OPEN returns ESTALE too, the program gets it. Between the two requests,
//! another process or client may change the name again, or open the new node in the other way.
//!
//! So the second attempt is one step. The front remembers the thread that got ESTALE (`Retries`). The
//! thread's LOOKUP of the same name **opens the file at once**, by name, for the OPEN that follows; that
//! OPEN uses this open. Meanwhile the node cannot enter passthrough, since it has an ordinary open. If the
//! kernel asks for attributes in between, to check the rights, a file that is gone by then still has those
//! of its open. If no OPEN follows (the kernel refused the caller, or the thread ended), the file is closed
//! after `KEPT_MAX`.
//!
//! A thread that comes back to the same node without a LOOKUP has not come by a name
//! (`open_by_handle_at(2)`, `/proc`). Then the file is opened by its handle. `gone` is about calls other
//! than opens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use vfs::{AccessMask, Caller, Features, FileType, Name, Share, Status};

use super::open::{Below, EXECUTION, access_of, needed, request};
use super::opening::Looking;
use super::walks::{Thread, thread_of};
use crate::errno;
use crate::front::{Front, opening};
use crate::inodes::{Inode, Names, OrdinaryInode};
use crate::wire::reply::{Attr, EntryOut, OpenOut};
use crate::wire::request::Header;

/// How long the second attempt may take to arrive.
const KEPT_MAX: Duration = Duration::from_secs(5);
/// How often a name is looked up if its file is gone each time before it can be opened.
const FINDS_MAX: u32 = 64;
/// How many of these removals may be by another client.
const REMOVED_MAX: u32 = 3;
/// How many LOOKUPs are answered with a file that is open for the OPEN that follows. Linux sends two. If it
/// sends more, it gets no further with this file, for example because another client has removed it.
const REPEATS_MAX: u32 = 4;
/// Limit of remembered threads. If the table is full, a second attempt counts as a first.
const RETRIES_MAX: usize = 4096;

/// Threads that got ESTALE, with the request that they will repeat.
#[derive(Debug, Default)]
pub struct Retries {
    table: Mutex<HashMap<Thread, Retry>>,
    next: AtomicU64,
}

/// The request that a thread will repeat.
#[derive(Debug)]
struct Retry {
    number: u64,
    /// The node that it tried to open.
    node: u64,
    /// The flags of the OPEN that failed.
    flags: u32,
    /// The names by which the kernel may have found the node, and will look again.
    names: Names,
    /// The thread has looked one of them up, and nothing could be opened.
    looked: bool,
    opened: Option<Opened>,
}

/// A file that was opened at a LOOKUP. It owns one lookup of the node.
#[derive(Debug)]
struct Opened {
    at: (u64, Name),
    caller: Caller,
    entry: EntryOut,
    /// Its attributes, until the kernel has asked for them.
    attr: Option<Attr>,
    open: OpenOut,
    /// Number of later LOOKUPs that were answered with it.
    repeats: u32,
}

/// How to process an OPEN.
#[derive(Clone, Copy, Debug)]
pub enum Try {
    /// By name; after ESTALE the kernel tries again.
    First,
    /// By name, just after the LOOKUP of it; the kernel does not try again.
    Last,
    /// By the handle of the node.
    ByHandle,
    /// The LOOKUP has opened it already.
    Done(OpenOut),
}

impl Retries {
    fn take(&self, header: &Header) -> Option<Retry> {
        let mut table = self.table.lock();
        if table.is_empty() { None } else { table.remove(&thread_of(header)) }
    }

    fn take_if(&self, requester: Thread, number: u64) -> Option<Retry> {
        let mut table = self.table.lock();
        let same = table.get(&requester).is_some_and(|retry| retry.number == number);
        if same { table.remove(&requester) } else { None }
    }

    /// The flags with which the thread will open the name that it looks up, and the reply if it is open
    /// already.
    fn wanted(&self, header: &Header, at: &(u64, Name), caller: &Caller) -> Option<(u32, Option<EntryOut>)> {
        let mut table = self.table.lock();
        if table.is_empty() {
            return None;
        }
        let retry = table.get_mut(&thread_of(header))?;
        // The directory may have got another node; the name has not changed.
        let flags = retry.names.iter().any(|(_, name)| *name == at.1).then_some(retry.flags)?;
        let opened = retry
            .opened
            .as_mut()
            .filter(|opened| opened.at == *at && opened.caller.principal == caller.principal);
        let Some(opened) = opened else { return Some((flags, None)) };
        opened.repeats += 1;
        (opened.repeats <= REPEATS_MAX).then_some((flags, Some(opened.entry)))
    }

    /// The attributes of a file that was opened for this thread, at that open. Once for each open: the
    /// kernel asks for them once before its OPEN.
    pub fn attributes(&self, header: &Header) -> Option<Attr> {
        // Threads outside our name space have no number of their own.
        if header.pid == 0 {
            return None;
        }
        let mut table = self.table.lock();
        let opened = table.get_mut(&thread_of(header))?.opened.as_mut()?;
        if opened.entry.node == header.node { opened.attr.take() } else { None }
    }

    fn has_looked(&self, header: &Header) {
        if let Some(retry) = self.table.lock().get_mut(&thread_of(header)) {
            retry.looked = true;
        }
    }

    /// Keeps a file that was opened at a LOOKUP. Returns the file that it displaces, or itself if it came
    /// too late.
    fn keep(&self, header: &Header, opened: Opened) -> Option<Opened> {
        match self.table.lock().get_mut(&thread_of(header)) {
            Some(retry) => retry.opened.replace(opened),
            None => Some(opened),
        }
    }
}

impl Front {
    /// Is this OPEN the second attempt of a thread?
    pub async fn which_try(&self, header: &Header, caller: &Caller, flags: u32) -> Try {
        let Some(retry) = self.retries.take(header) else { return Try::First };
        match retry.opened {
            Some(opened) => {
                let meant = opened.entry.node == header.node && opened.caller.principal == caller.principal;
                if meant && retry.flags == flags {
                    // By now the kernel has its own lookups of the node.
                    self.forget(opened.entry.node, 1);
                    return Try::Done(opened.open);
                }
                self.give_up(opened).await;
                Try::First
            }
            None if retry.looked => Try::Last,
            None if retry.node == header.node => Try::ByHandle,
            None => Try::First,
        }
    }

    /// An OPEN gets ESTALE: remembers that the thread will come back.
    pub fn will_be_back(self: &Arc<Front>, header: &Header, flags: u32, names: Names) {
        let requester = thread_of(header);
        let number = self.retries.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut table = self.retries.table.lock();
            if table.len() >= RETRIES_MAX || table.contains_key(&requester) {
                return;
            }
            let (node, looked, opened) = (header.node, false, None);
            table.insert(requester, Retry { number, node, flags, names, looked, opened });
        }
        tokio::spawn(expire(Arc::downgrade(self), requester, number));
    }

    /// A LOOKUP of a thread that got ESTALE: opens the file that it finds, for the OPEN that follows. If
    /// that fails, looks the name up at the origin. Returns `None` for any other LOOKUP.
    pub async fn look_up_again(
        &self,
        header: &Header,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
    ) -> Option<vfs::Result<EntryOut>> {
        let at = (directory.number, name.clone());
        let (flags, known) = self.retries.wanted(header, &at, caller)?;
        if let Some(entry) = known {
            // At the first reply, Linux drops its old entry of the name, and looks the name up once more.
            // The name may lead elsewhere by then, so this reply is valid for this open only.
            let entry = EntryOut { entry_valid: Duration::ZERO, attr_valid: Duration::ZERO, ..entry };
            return self.inodes.tell_again(entry.node).then_some(Ok(entry));
        }
        let (entry, open) = match self.open_by_name(caller, directory, name, flags).await {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Some(Err(Status::NoEnt.into())),
            Err(_) => {
                self.retries.has_looked(header);
                let found = self.look_up(&opening(caller), directory, name).await;
                return Some(found.map(|(handle, attributes)| self.entry_of(&handle, &attributes, Some(at))));
            }
        };
        self.inodes.tell_again(entry.node);
        let opened = Opened { at, caller: caller.clone(), entry, attr: Some(entry.attr), open, repeats: 0 };
        if let Some(other) = self.retries.keep(header, opened) {
            self.give_up(other).await;
        }
        Some(Ok(entry))
    }

    /// An origin without opens does not keep a removed file for this one. So if this mount has removed the
    /// name meanwhile, the name is opened again: the removal may have missed this open (`opening`).
    async fn open_by_name(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
        flags: u32,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let (fh, access) = (self.files.number(), access_of(flags));
        let at = (directory.number, name.clone());
        let asked = request(fh, access, directory.handle(), Some(name.clone()));
        let mut looking = self.begin_look(at.clone());
        for _ in 0..FINDS_MAX {
            looking.restart();
            let grant = self.begin_grant();
            let below = match self.fs.open(&opening(caller), &asked).await {
                Ok(opened) => Below::of(&opened),
                Err(error) => {
                    drop((grant, looking));
                    let may_execute = error.status == Status::Access && flags & EXECUTION != 0;
                    let asked = match error.status {
                        Status::NotSupp => needed(access),
                        Status::Stale if !self.has(Features::STATE) => needed(access),
                        _ if may_execute => AccessMask::EXECUTE,
                        _ => return Err(errno::of(error)),
                    };
                    return self.find_and_open(caller, (fh, access, asked), directory, name).await;
                }
            };
            let (entry, inode) = self.node_for_any_open(&below, at.clone());
            grant.succeeded(&inode, below.lease);
            let in_flight = if self.has(Features::STATE) {
                self.count_open(&inode)
            } else {
                self.begin_open_found(&inode, &looking).await
            };
            if !self.has(Features::STATE) && looking.is_outdated() {
                if let Some(id) = below.id {
                    let _ = self.fs.close(caller, id).await;
                }
                self.take_back(entry.node, &at);
                continue;
            }
            let opened = self.opened(caller, fh, access, &inode, below).await;
            drop(in_flight);
            drop(inode);
            let open = opened.inspect_err(|_| self.forget(entry.node, 1))?;
            return Ok((entry, open));
        }
        Err(Errno::STALE)
    }

    /// Looks the name up and then opens the file, for a layer below without opens. If the file is removed
    /// in between, the name is looked up again. If another client keeps removing the files, the last one
    /// found is opened without asking the origin: it did exist. The kernel checks the mode at that open;
    /// the origin checks the rights at each READ and WRITE.
    async fn find_and_open(
        &self,
        caller: &Caller,
        (fh, access, asked): (u64, Share, AccessMask),
        directory: &Inode,
        name: &Name,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let at = (directory.number, name.clone());
        let mut looking = self.begin_look(at.clone());
        let mut removed_elsewhere = 0;
        for _ in 0..FINDS_MAX {
            looking.restart();
            let found = self.look_up(&opening(caller), directory, name).await;
            let (handle, attributes) = found.map_err(errno::of)?;
            let found = regular(Below { id: None, handle, attributes, lease: None })?;
            let (entry, inode) = self.node_for_any_open(&found, at.clone());
            let unasked = (removed_elsewhere == REMOVED_MAX).then_some(found);
            let opened = self.open_found(caller, (fh, access, asked), &inode, unasked, &looking).await;
            match opened {
                Ok(open) => return Ok((entry, open)),
                Err(Errno::STALE) => {
                    self.take_back(entry.node, &at);
                    removed_elsewhere += u32::from(!looking.is_outdated());
                }
                // The name does lead to the file.
                Err(errno) => {
                    self.forget(entry.node, 1);
                    return Err(errno);
                }
            }
        }
        Err(Errno::STALE)
    }

    async fn open_found(
        &self,
        caller: &Caller,
        (fh, access, asked): (u64, Share, AccessMask),
        inode: &Arc<Inode>,
        unasked: Option<Below>,
        looking: &Looking<'_>,
    ) -> Result<OpenOut, Errno> {
        let _opening = self.begin_open_found(inode, looking).await;
        if looking.is_outdated() {
            return Err(Errno::STALE);
        }
        let below = match unasked {
            Some(below) => below,
            None => self.open_without_opens(caller, asked, &inode.handle()).await?,
        };
        self.opened(caller, fh, access, inode, below).await
    }

    /// A node for a file that was just opened, with one lookup for the reply. The node accepts every open.
    pub fn node_for_any_open(&self, below: &Below, at: (u64, Name)) -> (EntryOut, OrdinaryInode) {
        let (inode, retired) = self.inodes.remember_ordinary(&below.handle);
        if let Some(retired) = retired {
            self.retire(&retired);
        }
        (self.entry_for(&inode, &below.attributes, Some(at)), inode)
    }

    /// A LOOKUP of a thread has failed, so no OPEN follows.
    pub async fn give_up_retry(&self, header: &Header) {
        if let Some(opened) = self.retries.take(header).and_then(|retry| retry.opened) {
            self.give_up(opened).await;
        }
    }

    /// Closes a file that was opened at a LOOKUP and that no OPEN has claimed.
    async fn give_up(&self, opened: Opened) {
        let _ = self.release(opened.open.fh, None).await;
        self.forget(opened.entry.node, 1);
    }
}

fn regular(below: Below) -> Result<Below, Errno> {
    if below.attributes.file_type == FileType::Regular { Ok(below) } else { Err(Errno::INVAL) }
}

async fn expire(front: Weak<Front>, requester: Thread, number: u64) {
    tokio::time::sleep(KEPT_MAX).await;
    let Some(front) = front.upgrade() else { return };
    if let Some(opened) = front.retries.take_if(requester, number).and_then(|retry| retry.opened) {
        front.give_up(opened).await;
    }
}
