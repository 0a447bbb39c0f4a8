//! LOOKUP, READLINK, and the requests that create a name: MKNOD, MKDIR, SYMLINK, LINK.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use vfs::{Attributes, Caller, CreateHow, Created, Freshness, Handle, Name, SetAttributes, Status};

use crate::credentials::caller;
use crate::errno;
use crate::front::{Front, device_of, file_type, name, opening};
use crate::inodes::Inode;
use crate::wire::reply::{Answer, EntryOut, Outcome};
use crate::wire::request::Header;

/// How often a name is looked up if its file is gone each time before its attributes are read.
const TRIES_MAX: usize = 16;
/// `PATH_MAX` less the NUL, the limit of the layers below.
const TARGET_MAX_BYTES: usize = 4096;

impl Front {
    /// LOOKUP. The kernel caches no negative entries. A point of coherence (see `docs/semantics.md`) ends
    /// the lifetime of the negative entries in the layer below. No notification could end them in the
    /// kernel in time. The kernel takes the directory's lock for a notification, and the creator of a lock
    /// file holds that lock until the reply to the creation.
    pub async fn lookup(self: &Arc<Front>, header: &Header, text: &[u8]) -> Outcome {
        if matches!(text, b"." | b"..") {
            return self.by_file_handle(header, text == b"..").await;
        }
        self.await_old_name(header).await;
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let doubted = self.doubted(&directory);
        // MKDIR and similar calls ask whether the name is free: this needs the present state of the origin.
        // An OPEN checks its name again, so any other LOOKUP is a `stat`.
        let caller = if self.inodes.is_believed(directory.number, &name) {
            opening(&caller)
        } else {
            caller.with_freshness(Freshness::Recent)
        };
        let found = match self.look_up_again(header, &caller, &directory, &name).await {
            Some(found) => found,
            None => self.look_up_and_name(&caller, &directory, name).await,
        };
        let waited = match &found {
            Ok(entry) => self.leave_old_name(header, entry.node).await,
            Err(_) => false,
        };
        match found {
            // Another client may have changed it during the wait.
            Ok(entry) if waited => Ok(Answer::Entry(EntryOut {
                entry_valid: Duration::ZERO,
                attr_valid: Duration::ZERO,
                ..entry
            })),
            // Another client has changed the directory meanwhile, so this reply may be outdated.
            Ok(entry) if self.doubted(&directory) != doubted => {
                Ok(Answer::Entry(EntryOut { entry_valid: Duration::ZERO, ..entry }))
            }
            Ok(entry) => Ok(Answer::Entry(entry)),
            Err(error) => Err(errno::of(error)),
        }
    }

    /// A LOOKUP of `.` or `..` in a node, for a program with a file handle (open_by_handle_at(2)). `.` is
    /// the file of a number that the kernel may have forgotten. `..` is the parent of a directory, which
    /// the kernel does not know in that case.
    async fn by_file_handle(&self, header: &Header, parent: bool) -> Outcome {
        let file = self.inodes.file_of(header.node).ok_or(Errno::STALE)?;
        let caller = opening(&caller(header));
        let looked =
            if parent { Some(self.fs.parent(&caller, &file).await.map_err(errno::of)?) } else { None };
        let handle = looked.map_or(file, |looked| looked.node.handle);
        let attributes = self.fs.getattr(&caller, &handle).await.map_err(errno::of)?;
        Ok(Answer::Entry(self.entry_of(&handle, &attributes, None)))
    }

    async fn look_up_and_name(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: Name,
    ) -> vfs::Result<EntryOut> {
        let at = (directory.number, name);
        let mut looking = self.begin_look(at.clone());
        let mut caller = caller.clone();
        let mut left = TRIES_MAX;
        loop {
            looking.restart();
            let (handle, attributes) = self.look_up(&caller, directory, &at.1).await?;
            let entry = self.entry_of(&handle, &attributes, Some(at.clone()));
            left -= 1;
            if left == 0 || !looking.is_outdated() {
                return Ok(entry);
            }
            self.take_back(entry.node, &at);
            caller = opening(&caller);
        }
    }

    /// The file under a name, with attributes. If the file is removed before its attributes are read, looks
    /// the name up again.
    pub async fn look_up(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
    ) -> vfs::Result<(Handle, Attributes)> {
        let mut caller = caller.clone();
        for _ in 1..TRIES_MAX {
            match self.look_up_once(&caller, directory, name).await {
                Err(error) if error.status == Status::Stale => {}
                found => return found,
            }
            caller = opening(&caller);
            self.fs.getattr(&caller, &directory.handle()).await?;
        }
        self.look_up_once(&caller, directory, name).await
    }

    async fn look_up_once(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
    ) -> vfs::Result<(Handle, Attributes)> {
        let found = self.fs.lookup(caller, &directory.handle(), name, vfs::Want::None).await?.node;
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.fs.getattr(caller, &found.handle).await?,
        };
        Ok((found.handle, attributes))
    }

    /// READLINK.
    pub async fn readlink(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let (target, _) = self.fs.readlink(&caller(header), &inode.handle()).await.map_err(errno::of)?;
        Ok(Answer::Data(target))
    }

    /// SYMLINK.
    pub async fn symlink(&self, header: &Header, text: &[u8], target: &[u8]) -> Outcome {
        if target.len() > TARGET_MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.inode(header.node)?;
        let (caller, name, set) = (caller(header), name(text)?, SetAttributes::default());
        let made = self.fs.symlink(&caller, &directory.handle(), &name, target, &set).await;
        self.made(header, &directory, name, made).await
    }

    /// MKNOD.
    pub async fn mknod(&self, header: &Header, text: &[u8], mode: u32, rdev: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name, set) = (caller(header), name(text)?, mode_only(mode));
        let kind = file_type(mode)?;
        let made = if kind == vfs::FileType::Regular {
            self.fs.create(&caller, &directory.handle(), &name, CreateHow::Guarded, &set).await
        } else {
            self.fs.mknod(&caller, &directory.handle(), &name, kind, device_of(rdev), &set).await
        };
        self.made(header, &directory, name, made).await
    }

    /// MKDIR.
    pub async fn mkdir(&self, header: &Header, text: &[u8], mode: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let made =
            self.fs.mkdir(&caller, &directory.handle(), &name, &mode_only(mode), vfs::Want::None).await;
        self.made(header, &directory, name, made).await
    }

    /// LINK.
    pub async fn link(&self, header: &Header, old: u64, text: &[u8]) -> Outcome {
        let (file, directory) = (self.inode(old)?, self.inode(header.node)?);
        let (caller, name) = (caller(header), name(text)?);
        let made = self.fs.link(&caller, &file.handle(), &directory.handle(), &name).await;
        let gone = matches!(&made, Err(error) if matches!(error.status, Status::NoEnt | Status::Stale));
        if gone && self.has_no_link(&caller, &file).await {
            return Err(Errno::STALE);
        }
        // Attributes in the reply may be older than the link.
        let made = made.map(|made| Created { node: vfs::Node { attributes: None, ..made.node }, ..made });
        self.made(header, &directory, name, made).await
    }

    /// Has the file lost its last name? If the kernel came by a name, another client has removed or
    /// replaced it.
    async fn has_no_link(&self, caller: &Caller, file: &Inode) -> bool {
        match self.fs.getattr(&opening(caller), &file.handle()).await {
            Ok(attributes) => attributes.nlink == 0,
            Err(error) => matches!(error.status, Status::Stale | Status::BadHandle),
        }
    }

    async fn made(
        &self,
        header: &Header,
        directory: &Inode,
        name: Name,
        made: vfs::Result<Created>,
    ) -> Outcome {
        let node = made.map_err(errno::of)?.node;
        let at = Some((directory.number, name));
        Ok(Answer::Entry(self.entry(&caller(header), &node, at).await?))
    }
}

/// The attributes of a new object: its mode.
pub fn mode_only(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }
}
