//! Requests that meet a stale handle: directories that another client has removed.
//!
//! On a local file system, names in a removed directory do not exist, its attributes have no link, and it
//! lists nothing. A program that has it open, or works in it, sees that here too. But the kernel may also
//! have come by a path that it had cached, and the path may lead to another directory by now. Then the
//! reply must be ESTALE: Linux walks the path once more (`walks`). FUSE does not say how the kernel came.
//!
//! | request | reply for a removed directory |
//! |---|---|
//! | GETATTR, READDIR, STATFS | the attributes with no link, nothing, the statistics of the root. The kernel does not repeat these for a descriptor |
//! | LOOKUP | ENOENT, also if the path leads to a directory without such a name. mkdir(2) and its like do not repeat a LOOKUP that fails |
//! | other requests with names | ENOENT |
//! | OPENDIR, SETATTR, ACCESS, GETXATTR, LISTXATTR | those of an empty directory |
//!
//! In the last three rows the reply is ESTALE as long as a path may lead elsewhere. It cannot after the
//! second walk, nor once the kernel has dropped the directory's name. This front makes the kernel drop it
//! when it finds the directory gone.
//!
//! Nothing counts as removed while the root of the mount is stale too: then the export is gone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Attributes, Caller, Name, Principal, SetAttributes, SetTime, Status};

use super::attributes::{statfs_of, wanted};
use super::open::leads_nowhere;
use super::walks::{Place, Walk, thread_of};
use crate::credentials::caller;
use crate::files::{Directory, Position};
use crate::front::{Front, Interrupt, attr_of_removed, name, opening, wall};
use crate::inodes::{Inode, Removed};
use crate::wire::abi::{Fopen, ROOT};
use crate::wire::reply::{Answer, OpenOut, Outcome};
use crate::wire::request::{Header, Request, SetAttr};

/// How often a request is carried out if the objects that it makes or finds are removed each time.
const TRIES_MAX: usize = 16;
/// How long a call may be on its way from a name that the kernel has dropped to its next request.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// The deepest path, in removed directories, that is looked up again.
const DEPTH_MAX: usize = 64;

/// What a request with a path does.
#[derive(Clone, Debug)]
enum Kind {
    Lookup,
    /// Makes, removes or moves names. If the directories exist, it is carried out again.
    Names,
    Link,
    Getattr,
    Setattr(SetAttr),
    Access(u32),
    Statfs,
    Opendir,
    Readdir,
    Getxattr,
    Listxattr(u32),
    Open,
    Other,
}

/// A request with a path.
#[derive(Clone, Debug)]
pub struct PathCall {
    kind: Kind,
    node: u64,
    /// The file of a LINK.
    file: Option<u64>,
    /// The names that it looks up, changes or opens, with their directories.
    places: Vec<Place>,
    /// It is a LOOKUP by which the kernel revalidates a name. If that fails, the kernel looks the name up
    /// again before it repeats anything.
    revalidates: bool,
}

/// Does a directory exist whose request met a stale handle?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Exists,
    Gone,
    /// It is no directory, or the origin does not say.
    Unknown,
}

impl PathCall {
    /// `None` for a request on an open file.
    fn of(header: &Header, request: &Request) -> Option<PathCall> {
        let node = header.node;
        let (mut file, mut places) = (None, Vec::new());
        let kind = match request {
            Request::Lookup { name } if matches!(&name[..], b"." | b"..") => return None,
            Request::Lookup { name } => {
                places.push((node, name.clone()));
                Kind::Lookup
            }
            Request::Mknod { name, .. }
            | Request::Mkdir { name, .. }
            | Request::Symlink { name, .. }
            | Request::Create { name, .. }
            | Request::Unlink { name }
            | Request::Rmdir { name } => {
                places.push((node, name.clone()));
                Kind::Names
            }
            Request::Rename { name, new_parent, new_name, .. } => {
                places.extend([(node, name.clone()), (*new_parent, new_name.clone())]);
                Kind::Names
            }
            Request::Link { old, name } => {
                file = Some(*old);
                places.push((node, name.clone()));
                Kind::Link
            }
            Request::Getattr => Kind::Getattr,
            Request::Setattr(set) => Kind::Setattr(*set),
            Request::Access { mask } => Kind::Access(*mask),
            Request::Statfs => Kind::Statfs,
            Request::Opendir => Kind::Opendir,
            Request::Readdir { .. } => Kind::Readdir,
            Request::Getxattr { .. } => Kind::Getxattr,
            Request::Listxattr { size } => Kind::Listxattr(*size),
            Request::Open { .. } => Kind::Open,
            Request::Readlink | Request::Setxattr { .. } | Request::Removexattr { .. } => Kind::Other,
            _ => return None,
        };
        Some(PathCall { kind, node, file, places, revalidates: false })
    }

    /// Its directories. For a request without names: its node.
    fn directories(&self) -> Vec<u64> {
        let mut nodes: Vec<u64> = self.places.iter().map(|(node, _)| *node).collect();
        nodes.dedup();
        if nodes.is_empty() { vec![self.node] } else { nodes }
    }

    /// The walk of its thread after the reply.
    fn go_on(&self, walk: Option<Walk>, outcome: &Outcome) -> Option<Walk> {
        if *outcome == Err(Errno::STALE) && self.revalidates {
            return walk;
        }
        if *outcome == Err(Errno::STALE) {
            // link(2) goes on after a check of rights that failed, so these do not tell of a second walk.
            let is_check = matches!(self.kind, Kind::Getattr | Kind::Access(_));
            let told = self.directories().into_iter().chain(self.file).filter(|_| !is_check);
            return Some(Walk::begin(walk, told));
        }
        let mut walk = walk?;
        match (&self.kind, &self.places[..]) {
            (Kind::Lookup, [place]) => {
                let found = if let Ok(Answer::Entry(entry)) = outcome { Some(entry.node) } else { None };
                walk.look_up(place.clone(), found);
            }
            // These may come between two LOOKUPs of one walk.
            (Kind::Getattr | Kind::Readdir | Kind::Getxattr | Kind::Listxattr(_) | Kind::Other, _) => {}
            _ => walk.end(),
        }
        Some(walk)
    }
}

impl Front {
    /// Answers a request.
    pub async fn answer(self: Arc<Front>, header: Header, request: Request, interrupt: Interrupt) -> Outcome {
        let Some(mut call) = PathCall::of(&header, &request) else {
            return self.carry_out(&header, request, &interrupt).await;
        };
        let thread = thread_of(&header);
        let mut walk = self.walks.arrive(thread);
        if walk.is_some() && matches!(call.kind, Kind::Open) {
            call.places = self.places_of(header.node);
        }
        let mut tries = 0;
        let outcome = loop {
            let outcome = self.carry_out(&header, request.clone(), &interrupt).await;
            if outcome != Err(Errno::STALE) {
                break outcome;
            }
            tries += 1;
            match self.explain(&header, &mut call, walk.as_mut()).await {
                Some(outcome) => break outcome,
                // An object that the request has made or found was removed at once.
                None if tries < TRIES_MAX => {}
                None => break Err(Errno::STALE),
            }
        };
        if matches!(call.kind, Kind::Lookup) && outcome.is_err() {
            self.give_up_retry(&header).await;
        }
        let walk = call.go_on(walk, &outcome);
        self.walks.leave(thread, walk);
        outcome
    }

    /// The names by which an OPEN may open a file.
    fn places_of(&self, node: u64) -> Vec<Place> {
        let Some(inode) = self.inodes.get(node) else { return Vec::new() };
        let names = inode.state.lock().names.clone();
        names.into_iter().map(|(node, name)| (node, Bytes::copy_from_slice(name.as_bytes()))).collect()
    }

    /// The answer to a request that met a stale handle. `None` if it is to be carried out again.
    async fn explain(
        self: &Arc<Front>,
        header: &Header,
        call: &mut PathCall,
        mut walk: Option<&mut Walk>,
    ) -> Option<Outcome> {
        let caller = opening(&caller(header));
        let mut gone = Vec::new();
        for node in call.directories() {
            let Some(inode) = self.inodes.get(node) else { return Some(Err(Errno::STALE)) };
            match self.presence(&caller, &inode).await {
                Presence::Gone => gone.push(inode),
                Presence::Exists => {}
                Presence::Unknown => return Some(Err(Errno::STALE)),
            }
        }
        if gone.is_empty() {
            let was_told = |node| walk.as_ref().is_some_and(|walk| walk.was_told(node));
            return match (&call.kind, call.file) {
                (Kind::Names, _) => None,
                (Kind::Link, Some(file)) if was_told(file) => Some(Err(Errno::NOENT)),
                (Kind::Lookup, _) if was_told(call.node) => Some(Err(Errno::NOENT)),
                _ => Some(Err(Errno::STALE)),
            };
        }
        // The kernel may have come by another name of the file, in a directory that exists.
        if matches!(call.kind, Kind::Open) && gone.len() < call.directories().len() {
            return Some(Err(Errno::STALE));
        }
        let looks_up = matches!(call.kind, Kind::Lookup);
        if looks_up && let Some((directory, name)) = call.places.first() {
            call.revalidates = self.forget_name(*directory, name);
        }
        let is_new = |node| walk.as_ref().is_some_and(|walk| walk.is_new(node, looks_up, &call.places));
        let certain = gone.iter().any(|gone| is_new(gone.number) || !is_reached_by_a_path(gone));
        let answer = self.answer_gone(header, &caller, call, &gone, certain).await;
        if certain && let Some(walk) = &mut walk {
            gone.iter().for_each(|gone| walk.tell(gone.number));
        }
        Some(answer)
    }

    /// A name in a removed directory is looked up. Did the kernel know a file by it?
    fn forget_name(&self, directory: u64, text: &[u8]) -> bool {
        let Ok(name) = name(text) else { return false };
        let Some(inode) = self.inodes.named(directory, &name) else { return false };
        self.inodes.unname(&inode, &(directory, name));
        true
    }

    /// The answer to a request that names removed directories. `certain`: no path leads elsewhere.
    async fn answer_gone(
        self: &Arc<Front>,
        header: &Header,
        caller: &Caller,
        call: &PathCall,
        gone: &[Arc<Inode>],
        certain: bool,
    ) -> Outcome {
        let directory = gone.first().ok_or(Errno::STALE)?;
        match &call.kind {
            Kind::Getattr => return self.attributes_of_removed(directory),
            Kind::Readdir => return Ok(Answer::Listing(Bytes::new(), Vec::new())),
            Kind::Statfs => return self.statfs_at(caller, ROOT).await,
            _ => {}
        }
        // The link count that the kernel has cached is outdated.
        gone.iter().for_each(|gone| self.notifier.attributes(gone.number));
        match &call.kind {
            Kind::Lookup => {
                let (_, text) = call.places.first().ok_or(Errno::STALE)?;
                let name = name(text)?;
                let elsewhere = !certain && self.leads_elsewhere(caller, directory, Some(name)).await;
                Err(if elsewhere { Errno::STALE } else { Errno::NOENT })
            }
            Kind::Names | Kind::Link => {
                for directory in gone {
                    if certain || !self.leads_elsewhere(caller, directory, None).await {
                        return Err(Errno::NOENT);
                    }
                }
                Err(Errno::STALE)
            }
            _ if !certain => Err(Errno::STALE),
            Kind::Open => Err(Errno::NOENT),
            Kind::Opendir => Ok(self.open_removed(header, directory)),
            Kind::Setattr(set) => self.set_on_removed(directory, &wanted(set)),
            Kind::Access(mask) => {
                let may = known(directory).is_some_and(|known| may(caller, &known, *mask));
                if may { Ok(Answer::Done) } else { Err(Errno::ACCESS) }
            }
            Kind::Getxattr => Err(Errno::NODATA),
            Kind::Listxattr(0) => Ok(Answer::Size(0)),
            Kind::Listxattr(_) => Ok(Answer::Data(Bytes::new())),
            _ => Err(Errno::STALE),
        }
    }

    /// Was the directory removed? If another client has removed it, the kernel drops its name.
    async fn presence(self: &Arc<Front>, caller: &Caller, inode: &Arc<Inode>) -> Presence {
        {
            let state = inode.state.lock();
            if state.directory.removed.is_some() {
                return Presence::Gone;
            }
            if state.directory.seen.is_none() && inode.number != ROOT {
                return Presence::Unknown;
            }
        }
        let is_stale = |error: &vfs::Error| matches!(error.status, Status::Stale | Status::BadHandle);
        match self.fs.getattr(caller, &inode.handle()).await {
            Ok(_) => return Presence::Exists,
            Err(error) if is_stale(&error) && inode.number != ROOT => {}
            Err(_) => return Presence::Unknown,
        }
        let Some(root) = self.inodes.get(ROOT) else { return Presence::Unknown };
        if self.fs.getattr(caller, &root.handle()).await.is_err() {
            return Presence::Unknown;
        }
        let at = inode.state.lock().names.last().cloned();
        inode.is_removed(at.clone());
        if let Some(at) = at {
            self.drop_name(inode, at);
        }
        Presence::Gone
    }

    /// Makes the kernel drop the name of a directory that another client has removed.
    fn drop_name(&self, inode: &Arc<Inode>, at: (u64, Name)) {
        let dropped = self.notifier.name_gone(at.0, &at.1);
        let (this, inode) = (self.this.clone(), inode.clone());
        tokio::spawn(async move {
            if !dropped.await {
                return;
            }
            if let Some(front) = this.upgrade() {
                front.inodes.unname(&inode, &at);
            }
            if let Some(removed) = &mut inode.state.lock().directory.removed {
                removed.dropped = Some(Instant::now());
            }
        });
    }

    /// Does the path by which the kernel has come to a removed directory lead to another one now? With a
    /// name: to one that has it.
    async fn leads_elsewhere(
        self: &Arc<Front>,
        caller: &Caller,
        gone: &Arc<Inode>,
        name: Option<Name>,
    ) -> bool {
        let mut names: Vec<Name> = name.into_iter().collect();
        let mut directory = gone.clone();
        loop {
            let Some((parent, name)) = known_at(&directory) else { return false };
            let Some(parent) = self.inodes.get(parent) else { return false };
            names.push(name);
            directory = parent;
            match self.presence(caller, &directory).await {
                Presence::Exists => break,
                Presence::Gone if names.len() < DEPTH_MAX => {}
                _ => return true,
            }
        }
        let mut handle = directory.handle();
        while let Some(name) = names.pop() {
            match self.fs.lookup(caller, &handle, &name, vfs::Want::None).await {
                Ok(looked) => handle = looked.node.handle,
                Err(error) => return !leads_nowhere(error.status),
            }
        }
        true
    }

    fn attributes_of_removed(&self, inode: &Inode) -> Outcome {
        let known = known(inode).ok_or(Errno::STALE)?;
        Ok(Answer::Attr(Duration::ZERO, attr_of_removed(self, &known)))
    }

    fn open_removed(&self, header: &Header, inode: &Arc<Inode>) -> Answer {
        let (fh, caller) = (self.files.number(), caller(header));
        let position = tokio::sync::Mutex::new(Position::at_the_end());
        self.files.insert_directory(fh, Directory { inode: inode.clone(), caller, state: None, position });
        Answer::Open(OpenOut { fh, flags: Fopen::empty(), backing: 0 })
    }

    /// The attributes of a removed directory exist only here.
    fn set_on_removed(&self, inode: &Inode, set: &SetAttributes) -> Outcome {
        {
            let mut state = inode.state.lock();
            let left = &mut state.directory.removed.as_mut().ok_or(Errno::STALE)?.attributes;
            let now = wall();
            let time = |set: Option<SetTime>, old| match set {
                Some(SetTime::Client(time)) => time,
                Some(SetTime::Server) => now,
                None => old,
            };
            left.mode = set.mode.unwrap_or(left.mode);
            left.uid = set.uid.unwrap_or(left.uid);
            left.gid = set.gid.unwrap_or(left.gid);
            (left.atime, left.mtime) = (time(set.atime, left.atime), time(set.mtime, left.mtime));
            left.ctime = now;
        }
        self.attributes_of_removed(inode)
    }

    async fn statfs_at(&self, caller: &Caller, node: u64) -> Outcome {
        let inode = self.inode(node)?;
        let stat = self.fs.fsstat(caller, &inode.handle()).await.map_err(crate::errno::of)?;
        Ok(Answer::Statfs(statfs_of(&stat, self.limits.name_max)))
    }
}

fn known(inode: &Inode) -> Option<Attributes> {
    inode.state.lock().directory.removed.as_ref().map(|removed| removed.attributes)
}

/// The name by which the kernel has come to a directory.
fn known_at(inode: &Inode) -> Option<(u64, Name)> {
    let state = inode.state.lock();
    state.directory.removed.as_ref().map_or_else(|| state.names.last().cloned(), |removed| removed.at.clone())
}

/// May a path of the kernel lead to the removed directory, or a call be on its way from it?
fn is_reached_by_a_path(inode: &Inode) -> bool {
    let state = inode.state.lock();
    let Some(Removed { at: Some(_), dropped, .. }) = &state.directory.removed else { return false };
    dropped.is_none_or(|dropped| dropped.elapsed() < ON_THE_WAY)
}

/// access(2) by mode bits.
fn may(caller: &Caller, of: &Attributes, mask: u32) -> bool {
    let Principal::Unix(credential) = &caller.principal else { return true };
    let shift = if credential.uid == of.uid {
        6
    } else if credential.gid == of.gid || credential.groups.contains(&of.gid) {
        3
    } else {
        0
    };
    credential.uid == 0 || (of.mode >> shift) & mask & 7 == mask & 7
}
