//! OPENDIR, READDIR and READDIRPLUS.
//!
//! `open(".")` asks the origin, like any open. The kernel reads a directory one page at a time; this front
//! fetches more at once and keeps it with the open. Cookies are those of the layer below, which never uses
//! 0, 1 and 2. Here 1 and 2 are `.` and `..`.
//!
//! The kernel keeps a listing that it has read from beginning to end. An open may use it again if it finds
//! the directory unchanged and that state was nonracy. A change through this mount invalidates the listing
//! in the kernel. The listing also expires with the file attributes that came with it. Then one READDIRPLUS
//! replaces one request for each file.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{AccessMask, Attributes, Caller, Entry, FileType, ReadDir, Status};

use super::opening::Fetched;
use crate::credentials::caller;
use crate::errno;
use crate::files::{Directory, Position};
use crate::front::{Front, file_mode, opening, wall};
use crate::inodes::{Inode, Listed};
use crate::pages::SKEW;
use crate::wire::abi::{Fopen, ROOT};
use crate::wire::reply::{Answer, EntryOut, OpenOut, Outcome, put_dirent};
use crate::wire::request::Header;

/// The cookies of `.` and `..`.
const SELF: u64 = 1;
const PARENT: u64 = 2;
/// Bytes of entries to fetch at a time, approximately.
const FETCH_BYTES: u32 = 256 << 10;
/// How long the kernel may use a listing at most.
const LISTED_MAX: Duration = Duration::from_secs(3600);

impl Front {
    /// OPENDIR.
    pub async fn opendir(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let fh = self.files.number();
        let attributes = self.fs.getattr(&opening(&caller), &inode.handle()).await.map_err(errno::of)?;
        let now = attributes.wcc();
        let (stale, verifier, fills) = {
            let mut state = inode.state.lock();
            let part = &mut state.directory;
            part.listed.take_if(|listed| listed.state != now || listed.until <= Instant::now());
            let stale = state.told.take_if(|told| *told != now).is_some();
            // One reader at a time: two that read different states would mix them in the kernel's listing.
            if state.directory.listed.is_none() && is_old(&attributes) {
                state.directory.lister.get_or_insert(fh);
            }
            let verifier = state.directory.listed.as_ref().map(|listed| listed.verifier);
            (stale, verifier, state.directory.lister == Some(fh))
        };
        if stale {
            self.notifier.attributes(inode.number);
        }
        let kept = verifier.is_some() && self.may_list(&caller, &inode).await;
        let mut flags = Fopen::empty();
        flags.set(Fopen::CACHE_DIR, kept || fills);
        flags.set(Fopen::KEEP_CACHE, kept);
        let position = tokio::sync::Mutex::new(Position::behind(0, false, verifier.unwrap_or_default()));
        self.files.insert_directory(fh, Directory { inode, caller, state: fills.then_some(now), position });
        Ok(Answer::Open(OpenOut { fh, flags, backing: 0 }))
    }

    /// May the caller read the listing that the kernel keeps? Without a READDIR, nothing else checks this
    /// credential at the origin; the layer below remembers the rights of earlier readers. If the caller may
    /// not, the kernel drops the listing and sends a READDIR, which fails.
    async fn may_list(&self, caller: &Caller, inode: &Inode) -> bool {
        let accessed = self.fs.access(caller, &inode.handle(), AccessMask::READ).await;
        let may = accessed.is_ok_and(|accessed| accessed.granted.contains(AccessMask::READ));
        if !may {
            inode.state.lock().directory.listed = None;
        }
        may
    }

    /// RELEASEDIR.
    pub fn releasedir(&self, fh: u64) {
        if let Some(directory) = self.files.remove_directory(fh) {
            directory.inode.state.lock().directory.lister.take_if(|lister| *lister == fh);
        }
    }

    /// READDIR and READDIRPLUS.
    pub async fn readdir(&self, fh: u64, offset: u64, size: usize, plus: bool) -> Outcome {
        let directory = self.files.directory(fh).ok_or(Errno::BADF)?;
        let mut position = directory.position.lock().await;
        let mut page = Vec::with_capacity(size.min(1 << 20));
        let mut offset = offset;
        for (cookie, name) in [(SELF, &b"."[..]), (PARENT, b"..")] {
            if offset >= cookie {
                continue;
            }
            let nothing = EntryOut::default();
            let kind = file_mode(FileType::Directory) >> 12;
            let number = self.own_number(&directory, cookie).await;
            if !put_dirent(&mut page, size, plus.then_some(&nothing), (number, kind), (cookie, name)) {
                return Ok(Answer::Listing(page.into(), Vec::new()));
            }
            offset = cookie;
        }
        let mut told = Vec::new();
        let from = if offset <= PARENT { 0 } else { offset };
        // From the beginning everything is fetched anew, as rewinddir(3) requires.
        let anew = from == 0 && !page.is_empty();
        let lacking = plus && !position.plus;
        if anew || lacking || (position.cookie != from && !position.seek(from)) {
            let verifier = if from == 0 { [0; 8] } else { position.verifier };
            *position = Position::behind(from, plus, verifier);
            position.good = (from == 0 && plus).then(|| Instant::now() + LISTED_MAX);
        }
        loop {
            if position.next().is_none() {
                if position.eof {
                    break;
                }
                match self.fetch(&directory, &mut position).await {
                    Ok(()) if position.next().is_none() => break,
                    Ok(()) => {}
                    Err(_) if !page.is_empty() => break,
                    Err(errno) => return Err(errno),
                }
            }
            if !self.put_entries(&directory.inode, &mut position, (&mut page, size), plus, &mut told) {
                break;
            }
        }
        if page.is_empty() && position.eof {
            read_to_the_end(&directory, &position);
        }
        Ok(Answer::Listing(page.into(), told))
    }

    /// Moves entries to the page, and their nodes to `told`. False if the page is full.
    fn put_entries(
        &self,
        parent: &Inode,
        position: &mut Position,
        (page, size): (&mut Vec<u8>, usize),
        plus: bool,
        told: &mut Vec<u64>,
    ) -> bool {
        // Another client has changed the directory since the fetch, so these entries may be outdated.
        let is_doubted = position.doubted.is_some_and(|doubted| doubted != self.doubted(parent));
        while let Some(entry) = position.next() {
            let fetched = position.fetched.as_ref();
            let (out, number, kind) =
                if plus { self.entry_plus(parent, entry, fetched) } else { bare(self, entry) };
            let kept = |out: EntryOut| {
                let entry_valid = if is_doubted { Duration::ZERO } else { out.entry_valid };
                EntryOut { entry_valid, ..out }
            };
            let out = out.map(kept);
            let name = entry.name.as_bytes();
            if !put_dirent(page, size, out.as_ref(), (number, kind), (entry.cookie, name)) {
                // The kernel does not get this entry, so it will not forget the node.
                if let Some(out) = out.filter(|out| out.node != 0) {
                    self.forget(out.node, 1);
                }
                return false;
            }
            let out = out.filter(|out| out.node != 0);
            told.extend(out.map(|out| out.node));
            let valid = out.map(|out| out.attr_valid.min(out.entry_valid));
            let until = valid.map(|valid| Instant::now() + valid);
            position.good = position.good.zip(until).map(|(good, until)| good.min(until));
            if !plus {
                position.good = None;
            }
            position.advance();
        }
        true
    }

    /// An entry with attributes. If a removal of its name has ended since it was fetched, the name may lead
    /// nowhere or elsewhere: then the kernel gets the name alone.
    fn entry_plus(
        &self,
        parent: &Inode,
        entry: &Entry,
        fetched: Option<&Fetched>,
    ) -> (Option<EntryOut>, u64, u32) {
        let alone = (Some(EntryOut::default()), entry.fileid, 0);
        let is_outdated = || fetched.is_some_and(|fetched| fetched.is_outdated(&entry.name));
        if is_outdated() {
            return alone;
        }
        let Some((handle, attributes)) = entry.node.and_then(|node| Some((node.handle, node.attributes?)))
        else {
            let kind = entry.file_type.map_or(0, |file_type| file_mode(file_type) >> 12);
            return (Some(EntryOut::default()), entry.fileid, kind);
        };
        let at = (parent.number, entry.name.clone());
        let out = self.entry_of(&handle, &attributes, Some(at.clone()));
        // It may have ended just before the node got the name.
        if is_outdated() {
            self.take_back(out.node, &at);
            return alone;
        }
        (Some(out), out.attr.ino, out.attr.mode >> 12)
    }

    async fn fetch(&self, directory: &Directory, position: &mut Position) -> Result<(), Errno> {
        let mut again = true;
        position.doubted.get_or_insert_with(|| self.doubted(&directory.inode));
        if position.plus {
            position
                .fetched
                .get_or_insert_with(|| self.removals.begin_listing(directory.inode.number))
                .restart();
        }
        loop {
            let cookie = position.cookie;
            let verifier = if cookie == 0 { [0; 8] } else { position.verifier };
            let part = ReadDir {
                cookie,
                verifier,
                bytes: FETCH_BYTES,
                plus: position.plus,
                want_directory_lease: false,
                names_suffice: true,
            };
            match self.fs.readdir(&directory.caller, &directory.inode.handle(), part).await {
                Ok(listing) => {
                    let taken = position.take(listing);
                    if taken.is_err() {
                        let directory = directory.inode.handle();
                        tracing::warn!(
                            "the server lists {directory} over and over: its fault, perhaps of the file system it exports"
                        );
                    }
                    return taken;
                }
                // The directory has changed; most servers accept the cookie with a zero verifier.
                Err(error) if error.status == Status::BadCookie && again => {
                    again = false;
                    position.verifier = [0; 8];
                }
                Err(error) => return Err(errno::of(error)),
            }
        }
    }

    /// The inode number of a directory (`SELF`) or of its parent.
    async fn own_number(&self, directory: &Arc<Directory>, cookie: u64) -> u64 {
        let inode = &directory.inode;
        let parent = inode.state.lock().names.last().map_or(ROOT, |(parent, _)| *parent);
        let of = if cookie == SELF { Some(inode.clone()) } else { self.inodes.get(parent) };
        let Some(of) = of else { return 1 };
        let attributes = self.fs.getattr(&directory.caller, &of.handle()).await;
        attributes.map_or(1, |attributes| self.number_of(&attributes))
    }
}

/// Records that the kernel has a complete listing of the directory.
fn read_to_the_end(directory: &Directory, position: &Position) {
    let Some((state, until)) = directory.state.zip(position.good) else { return };
    directory.inode.state.lock().directory.listed =
        Some(Listed { state, until, verifier: position.verifier });
}

/// Would the next change show another timestamp? See the timestamp granularity rule in docs/semantics.md.
fn is_old(attributes: &Attributes) -> bool {
    wall().as_nanos() - attributes.mtime.max(attributes.ctime).as_nanos() > SKEW.as_nanos() as i128
}

fn bare(front: &Front, entry: &Entry) -> (Option<EntryOut>, u64, u32) {
    let attributes = entry.node.and_then(|node| node.attributes);
    let kind = attributes.map_or(0, |attributes| file_mode(attributes.file_type) >> 12);
    (None, attributes.map_or(entry.fileid, |attributes| front.number_of(&attributes)), kind)
}
