//! The second try of an open: why a program never sees an ESTALE that a fresh lookup cures.
//!
//! An OPEN names a node, and the node may be the wrong one by then: its name leads to another file, or the file has left
//! passthrough. The answer is ESTALE. Linux then walks the path once more, with a LOOKUP for every name, and opens what it
//! finds; if that OPEN says ESTALE too, the program gets it. Between the two requests another process or another client
//! may change the name again, or open the new node in the other way.
//!
//! So the second try is made in one step. The thread that was told ESTALE is remembered (`Retries`). Its LOOKUP of the same
//! name **opens the file at once**, by the name, for the OPEN that follows; that OPEN takes what is open already. Meanwhile
//! the node cannot enter passthrough, since it has an ordinary open. If no OPEN follows (the kernel refused the caller, or
//! the thread ended) the file is closed after `KEPT_MAX`.
//!
//! A thread that comes back to the same node without a LOOKUP has not come by a name (`open_by_handle_at(2)`, `/proc`):
//! the file is opened by its handle. A LOOKUP in a directory that was removed elsewhere gives ESTALE once: the kernel walks
//! the path anew; if that leads to the same directory, there is no such name. So does a LINK of a removed file.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use vfs::{AccessMask, Caller, Features, FileType, Name, Share, Status};

use super::open::{Below, EXECUTION, access_of, needed, request};
use super::opening::Looking;
use crate::errno;
use crate::front::{Front, opening};
use crate::inodes::Inode;
use crate::wire::reply::{EntryOut, OpenOut};
use crate::wire::request::Header;

/// How long a second try may take to come.
const KEPT_MAX: Duration = Duration::from_secs(5);
/// How often a name is looked up whose file is gone each time before it is open.
const FINDS_MAX: u32 = 64;
/// How often of these another client has removed it.
const REMOVED_MAX: u32 = 3;
/// Threads that are remembered, at most. One that finds no place tries again as if for the first time.
const RETRIES_MAX: usize = 4096;

/// A thread that asks: its number, user and group.
type Requester = (u32, u32, u32);

/// Threads that were told ESTALE, and what they come back for.
#[derive(Debug, Default)]
pub struct Retries {
    table: Mutex<HashMap<Requester, Retry>>,
    next: AtomicU64,
}

/// What a thread comes back for.
#[derive(Debug)]
struct Retry {
    number: u64,
    /// The node that it was to open, or the directory that it looked in.
    node: u64,
    /// The flags of the OPEN that failed; none if it was a LOOKUP.
    flags: Option<u32>,
    /// The names by which the kernel may have come to the node, and will come again.
    names: Vec<(u64, Name)>,
    /// It has looked one of them up, and there was nothing to be opened.
    looked: bool,
    opened: Option<Opened>,
}

/// A file that was opened with a LOOKUP. It has a count of the node of its own.
#[derive(Debug)]
struct Opened {
    at: (u64, Name),
    caller: Caller,
    entry: EntryOut,
    open: OpenOut,
}

/// How an OPEN is to be made.
#[derive(Clone, Copy, Debug)]
pub enum Try {
    /// By the name; the kernel tries again.
    First,
    /// By the name, which was looked up just now; the kernel does not try again.
    Last,
    /// By the handle of the node.
    ByHandle,
    /// It is open already.
    Done(OpenOut),
}

impl Retries {
    fn take(&self, header: &Header) -> Option<Retry> {
        let mut table = self.table.lock();
        if table.is_empty() { None } else { table.remove(&requester(header)) }
    }

    fn take_if(&self, requester: Requester, number: u64) -> Option<Retry> {
        let mut table = self.table.lock();
        let same = table.get(&requester).is_some_and(|retry| retry.number == number);
        if same { table.remove(&requester) } else { None }
    }

    /// With which flags the thread will open what it looks up here, and the answer if that is open already.
    fn wanted(&self, header: &Header, at: &(u64, Name), caller: &Caller) -> Option<(u32, Option<EntryOut>)> {
        let table = self.table.lock();
        if table.is_empty() {
            return None;
        }
        let retry = table.get(&requester(header))?;
        // The directory may have got another node; the name has not changed.
        let flags = retry.flags.filter(|_| retry.names.iter().any(|(_, name)| *name == at.1))?;
        let opened = retry
            .opened
            .as_ref()
            .filter(|opened| opened.at == *at && opened.caller.principal == caller.principal);
        Some((flags, opened.map(|opened| opened.entry)))
    }

    fn has_looked(&self, header: &Header) {
        if let Some(retry) = self.table.lock().get_mut(&requester(header)) {
            retry.looked = true;
        }
    }

    /// Keeps a file that was opened with a LOOKUP. What it takes the place of, or the file itself if it came too late.
    fn keep(&self, header: &Header, opened: Opened) -> Option<Opened> {
        match self.table.lock().get_mut(&requester(header)) {
            Some(retry) => retry.opened.replace(opened),
            None => Some(opened),
        }
    }
}

impl Front {
    /// A thread comes to open a node: does it come back?
    pub async fn which_try(&self, header: &Header, caller: &Caller, flags: u32) -> Try {
        let Some(retry) = self.retries.take(header) else { return Try::First };
        match retry.opened {
            Some(opened) => {
                let meant = opened.entry.node == header.node && opened.caller.principal == caller.principal;
                if meant && retry.flags == Some(flags) {
                    // The kernel has counts of its own by now.
                    self.forget(opened.entry.node, 1);
                    return Try::Done(opened.open);
                }
                self.give_up(opened).await;
                Try::First
            }
            None if retry.looked => Try::Last,
            None if retry.flags.is_some() && retry.node == header.node => Try::ByHandle,
            None => Try::First,
        }
    }

    /// An OPEN is answered with ESTALE: the thread will be back.
    pub fn will_be_back(self: &Arc<Front>, header: &Header, flags: u32, names: Vec<(u64, Name)>) {
        self.remember_retry(header, header.node, Some(flags), names);
    }

    /// A LOOKUP or LINK met a file or directory that is no more. The kernel walks the path anew, once.
    pub fn is_no_more(self: &Arc<Front>, header: &Header, node: u64) -> Errno {
        let told = self.retries.take(header);
        if told.is_some_and(|told| told.flags.is_none() && told.node == node) {
            return Errno::NOENT;
        }
        self.remember_retry(header, node, None, Vec::new());
        Errno::STALE
    }

    fn remember_retry(
        self: &Arc<Front>,
        header: &Header,
        node: u64,
        flags: Option<u32>,
        names: Vec<(u64, Name)>,
    ) {
        let requester = requester(header);
        let number = self.retries.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut table = self.retries.table.lock();
            if table.len() >= RETRIES_MAX || table.contains_key(&requester) {
                return;
            }
            table.insert(requester, Retry { number, node, flags, names, looked: false, opened: None });
        }
        tokio::spawn(expire(Arc::downgrade(self), requester, number));
    }

    /// A LOOKUP of a thread that was told ESTALE: opens what it finds, for the OPEN that follows. What cannot be opened is
    /// looked up at the origin. None if it is no such LOOKUP.
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
            // Linux gives up what it knew by the name with the first answer, and asks once more for the new one. The name may
            // lead elsewhere by then: it is told for this open alone.
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
        let opened = Opened { at, caller: caller.clone(), entry, open };
        if let Some(other) = self.retries.keep(header, opened) {
            self.give_up(other).await;
        }
        Some(Ok(entry))
    }

    async fn open_by_name(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
        flags: u32,
    ) -> Result<(EntryOut, OpenOut), Errno> {
        let (fh, access) = (self.files.number(), access_of(flags));
        let flight = self.recalls.take_off();
        let asked = request(fh, access, directory.handle, Some(name.clone()));
        let below = match self.fs.open(&opening(caller), &asked).await {
            Ok(opened) => Below::of(&opened),
            Err(error) => {
                self.crashed(flight);
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
        let (entry, inode) = self.node_for_any_open(&below, (directory.number, name.clone()));
        self.landed(flight, &inode, below.lease);
        let opened = self.opened(caller, fh, access, &inode, below).await;
        inode.state.lock().leave_ordinary();
        let open = opened.inspect_err(|_| self.forget(entry.node, 1))?;
        Ok((entry, open))
    }

    /// In two steps, where a layer below has no opens: the file may be removed between them. Then the name leads elsewhere. If
    /// another client removes one file after the other, the last one found is open all the same: it was there. Its rights are
    /// those that the kernel finds in its mode; what is read and written is held against the origin's.
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
            inode.state.lock().leave_ordinary();
            match opened {
                Ok(open) => return Ok((entry, open)),
                Err(errno) => {
                    self.inodes.unname(&inode, &at);
                    self.forget(entry.node, 1);
                    if errno != Errno::STALE {
                        return Err(errno);
                    }
                    removed_elsewhere += u32::from(!looking.is_outdated());
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
        let _opening = self.begin_open(inode).await;
        if looking.is_outdated() {
            return Err(Errno::STALE);
        }
        let below = match unasked {
            Some(below) => below,
            None => self.open_without_opens(caller, asked, &inode.handle).await?,
        };
        self.opened(caller, fh, access, inode, below).await
    }

    /// A node of the file that has just been opened, told to the kernel once, that takes every open: it does not enter
    /// passthrough before `leave_ordinary`.
    pub fn node_for_any_open(&self, below: &Below, at: (u64, Name)) -> (EntryOut, Arc<Inode>) {
        let (inode, retired) = self.inodes.remember_ordinary(&below.handle);
        if let Some(retired) = retired {
            self.retire(&retired);
        }
        (self.entry_for(&inode, &below.attributes, Some(at)), inode)
    }

    /// Nobody came for a file that was opened with a LOOKUP.
    async fn give_up(&self, opened: Opened) {
        let _ = self.release(opened.open.fh, None).await;
        self.forget(opened.entry.node, 1);
    }
}

fn regular(below: Below) -> Result<Below, Errno> {
    if below.attributes.file_type == FileType::Regular { Ok(below) } else { Err(Errno::INVAL) }
}

async fn expire(front: Weak<Front>, requester: Requester, number: u64) {
    tokio::time::sleep(KEPT_MAX).await;
    let Some(front) = front.upgrade() else { return };
    if let Some(opened) = front.retries.take_if(requester, number).and_then(|retry| retry.opened) {
        front.give_up(opened).await;
    }
}

fn requester(header: &Header) -> Requester {
    (header.pid, header.uid, header.gid)
}
