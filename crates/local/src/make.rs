//! Operations that create names: CREATE, MKDIR, SYMLINK, MKNOD and LINK.
//!
//! All run with the caller's identity and the directory locked. The caller then makes the directory durable
//! ([`crate::syncs`]). If the client gives no mode, only the owner
//! gets rights. Owner and group of a new file are the caller's (or the directory's group, if that is
//! set-gid). Only root may ask for others; such a request from another user is ignored, as in knfsd.
//!
//! An exclusive create gives the file its name last, after the verifier is stored. This needs files without
//! names (`O_TMPFILE`, open(2)). If the process is killed in between, the repeated request finds no name,
//! or its own verifier. On other file systems it may find a file without a verifier, and then fails as if
//! another client had created the file.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use vfs::{
    CreateHow, Created, Device, FileType, Name, Principal, SetAttributes, Share, Status, Timestamp, Verifier,
    Wcc,
};

use crate::attributes::Stat;
use crate::change::{self, Stop};
use crate::descriptors::Node;
use crate::io::stat_regular;
use crate::locks::HeldLocks;
use crate::tree::{Described, Tree, open_child};
use crate::{errno, identity, lookup};

/// How often a file may vanish between `EXIST` and the open before the operation fails.
const TRIES_MAX: usize = 8;

/// Whether the new file was changed after its creation, and the file. An unchanged file reaches the disk
/// with the directory.
type Adorned = (bool, OwnedFd);

/// The creation of a name: the caller, the directory and the name.
pub(crate) struct Making<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) principal: &'a Principal,
    pub(crate) directory: &'a Node,
    pub(crate) name: &'a Name,
    pub(crate) held: HeldLocks,
}

impl Making<'_> {
    /// Creates a regular file, or opens an existing one, which must permit `access`. True if it is new: then
    /// the directory must be made durable.
    pub(crate) fn file(
        mut self,
        how: CreateHow,
        set: &SetAttributes,
        access: Share,
    ) -> Result<(Created, bool), Stop> {
        let before = self.tree.stat_directory(self.directory)?;
        let exclusive = matches!(how, CreateHow::Exclusive(_));
        let mode = mode(set.mode, 0o600);
        for _ in 0..TRIES_MAX {
            let made = match how {
                CreateHow::Exclusive(verifier) => self.exclusive_file(verifier, mode, set)?,
                CreateHow::Unchecked | CreateHow::Guarded => match self.named_file(mode) {
                    Ok(file) => Ok((self.adorn_file(&file, set)?, file)),
                    Err(errno) => Err(errno),
                },
            };
            match made {
                Ok(made) => return Ok((self.new_file(&before, made)?, true)),
                Err(Errno::EXIST) => match self.existing(&before, how, set, access) {
                    Err(Stop::Failed(Status::NoEnt)) => {}
                    // A file with the verifier of an exclusive create was created by an earlier
                    // transmission of this request.
                    other => return other.map(|found| (found, exclusive)),
                },
                Err(errno) => return Err(errno::status(errno).into()),
            }
        }
        Err(Status::Delay.into())
    }

    /// Creates a file under its name; fails if the name exists.
    fn named_file(&self, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory.path, self.name.as_bytes(), flags, mode)
    }

    /// Creates a file under its name, with a verifier and all other attributes that can be set.
    fn exclusive_file(
        &self,
        verifier: Verifier,
        mode: Mode,
        set: &SetAttributes,
    ) -> Result<Result<Adorned, Errno>, Status> {
        let (atime, mtime) = verifier_seconds(verifier);
        let set = SetAttributes {
            atime: Some(vfs::SetTime::Client(Timestamp::new(atime, 0))),
            mtime: Some(vfs::SetTime::Client(Timestamp::new(mtime, 0))),
            size: None,
            ..*set
        };
        let directory = &self.directory.path;
        // The directory may be read-only; only the existence of the name matters.
        if rustix::fs::statat(directory, self.name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Ok(Err(Errno::EXIST));
        }
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (file, named) = match rustix::fs::openat(directory, c".", flags, mode) {
            Ok(file) => (file, false),
            // Kernels without `O_TMPFILE` return ISDIR.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => match self.named_file(mode) {
                Ok(file) => (file, true),
                Err(errno) => return Ok(Err(errno)),
            },
            Err(errno) => return Ok(Err(errno)),
        };
        let touched = self.adorn_file(&file, &set)?;
        let linked = if named { Ok(()) } else { self.tree.proc.link(&file, directory, self.name.as_bytes()) };
        Ok(linked.map(|()| (touched, file)))
    }

    /// Finishes a new file.
    fn new_file(self, before: &Stat, (touched, file): Adorned) -> Result<Created, Status> {
        let path = self.tree.proc.open(&file, OFlags::PATH).map_err(errno::status)?;
        let found = self.tree.describe(self.directory, Some(self.name), &path)?;
        let node = self.tree.keep(&found, path);
        let mut data = node.data.lock();
        data.wrote = self.tree.descriptors.now();
        data.writing = Some(std::sync::Arc::new(file.into()));
        drop(data);
        self.finish(before, &found, touched.then_some(&*node))
    }

    /// Sets the attributes that could not be set at the creation. True if there were any.
    fn adorn_file(&self, file: &OwnedFd, set: &SetAttributes) -> Result<bool, Status> {
        let mut touched = false;
        if let Some(size) = set.size.filter(|&size| size > 0) {
            change::set_size(file.as_fd(), size)?;
            touched = true;
        }
        touched |= self.adorn(file, set)?;
        if let Some(mode) = set.mode.filter(|mode| touched && mode & 0o6000 != 0) {
            // A change of owner or size clears the set-id bits.
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode & 0o7777)).map_err(errno::status)?;
        }
        Ok(touched)
    }

    /// Sets owner, group and times of a new object.
    fn adorn(&self, file: &OwnedFd, set: &SetAttributes) -> Result<bool, Status> {
        let mut touched = false;
        if identity::is_root(self.principal) && (set.uid.is_some() || set.gid.is_some()) {
            change::set_owner(file, set)?;
            touched = true;
        }
        Ok(change::set_times(file, set)? || touched)
    }

    /// The name exists already: does that satisfy the request?
    fn existing(
        &mut self,
        before: &Stat,
        how: CreateHow,
        set: &SetAttributes,
        access: Share,
    ) -> Result<Created, Stop> {
        if how == CreateHow::Guarded {
            return Err(Status::Exist.into());
        }
        let path = open_child(&self.directory.path, self.name).map_err(errno::status)?;
        let found = self.tree.describe(self.directory, Some(self.name), &path)?;
        self.held.also(&self.tree.locks, &found.handle)?;
        let node = self.tree.keep(&found, path);
        let stat = stat_regular(self.tree, &node).map_err(|_| Status::Exist)?;
        if let CreateHow::Exclusive(verifier) = how {
            let matches = stat.size() == 0 && stat.seconds() == verifier_seconds(verifier);
            if !matches || !self.may_have_made(&stat) {
                return Err(Status::Exist.into());
            }
            self.adorn_again(&node, set)?;
        } else if let Some(size) = set.size {
            node.check_open(self.principal, access)?;
            node.check_write(self.principal, &stat)?;
            change::cut_or_extend(self.tree, &node, &stat, size)?;
            self.tree.changed(&node);
            self.tree.persist_if_sync(&node)?;
        }
        let attributes = self.tree.attributes(&node);
        let directory = Wcc::around(before.wcc(), self.tree.attributes(self.directory));
        Ok(Created { node: vfs::Node { handle: found.handle, attributes }, directory, lease: None })
    }

    /// Could an earlier request of the caller have created this file? A verifier proves little: it is in
    /// the times of the file, which every user can see. The creator of a file gets an open whatever its
    /// mode. So a forged verifier must not open another user's file.
    fn may_have_made(&self, stat: &Stat) -> bool {
        // Root may have given away a file that it created, and root may open any file.
        identity::is_root(self.principal)
            || match self.principal {
                Principal::Machine => true,
                // This also covers a process without privileges: it serves only callers with its own uid.
                Principal::Unix(credential) => credential.uid == stat.uid(),
            }
    }

    /// Sets the attributes that an interrupted attempt may not have set.
    fn adorn_again(&self, node: &Node, set: &SetAttributes) -> Result<(), Status> {
        let owned = identity::is_root(self.principal) && (set.uid.is_some() || set.gid.is_some());
        if owned {
            change::set_owner(&node.path, set)?;
        }
        if let Some(mode) = set.mode {
            change::set_mode(self.tree, node, mode)?;
        }
        if owned || set.mode.is_some() {
            self.tree.changed(node);
            self.tree.persist_if_sync(node)?;
        }
        Ok(())
    }

    /// A directory. The kernel decides about its set-gid bit.
    pub(crate) fn directory(self, set: &SetAttributes) -> Result<Created, Stop> {
        self.special(set, |directory, name| rustix::fs::mkdirat(directory, name, mode(set.mode, 0o700)))
    }

    /// A symbolic link.
    pub(crate) fn symlink(self, target: &[u8], set: &SetAttributes) -> Result<Created, Stop> {
        if target.contains(&0) {
            return Err(Status::Inval.into());
        }
        self.special(set, |directory, name| rustix::fs::symlinkat(target, directory, name))
    }

    /// A device, socket or named pipe. Devices need root with its capabilities.
    pub(crate) fn node(
        self,
        file_type: FileType,
        device: Device,
        set: &SetAttributes,
    ) -> Result<Created, Stop> {
        let kind = match file_type {
            FileType::Block => rustix::fs::FileType::BlockDevice,
            FileType::Character => rustix::fs::FileType::CharacterDevice,
            FileType::Socket => rustix::fs::FileType::Socket,
            FileType::Fifo => rustix::fs::FileType::Fifo,
            FileType::Regular | FileType::Directory | FileType::Symlink => return Err(Status::BadType.into()),
        };
        let number = match file_type {
            FileType::Block | FileType::Character => rustix::fs::makedev(device.major, device.minor),
            _ => 0,
        };
        self.special(set, |directory, name| {
            rustix::fs::mknodat(directory, name, kind, mode(set.mode, 0o600), number)
        })
    }

    /// Creates another name for `file`.
    pub(crate) fn link(self, file: &Node) -> Result<Created, Stop> {
        let before = self.tree.stat_directory(self.directory)?;
        self.tree.stat(file)?;
        if file.is_dir() {
            return Err(Status::IsDir.into());
        }
        self.tree.proc.link(&file.path, &self.directory.path, self.name.as_bytes()).map_err(errno::status)?;
        self.tree.changed(file);
        let path = open_child(&self.directory.path, self.name).map_err(errno::status)?;
        let found = self.tree.describe(self.directory, Some(self.name), &path)?;
        Ok(self.finish(&before, &found, None)?)
    }

    fn special(
        self,
        set: &SetAttributes,
        make: impl FnOnce(&OwnedFd, &[u8]) -> Result<(), Errno>,
    ) -> Result<Created, Stop> {
        let before = self.tree.stat_directory(self.directory)?;
        make(&self.directory.path, self.name.as_bytes()).map_err(errno::status)?;
        let path = open_child(&self.directory.path, self.name).map_err(errno::status)?;
        let touched = self.adorn(&path, set)?;
        let found = self.tree.describe(self.directory, Some(self.name), &path)?;
        let node = self.tree.keep(&found, path);
        Ok(self.finish(&before, &found, touched.then_some(&*node))?)
    }

    /// Reads the attributes of the result and releases the locks. `touched` is the new object, if it was
    /// changed after its creation. It is made durable here; an unchanged one reaches the disk with the
    /// directory.
    fn finish(self, before: &Stat, found: &Described, touched: Option<&Node>) -> Result<Created, Status> {
        let Making { tree, directory, held, .. } = self;
        let wcc = Wcc::around(before.wcc(), tree.changed(directory));
        let attributes = Some(found.attributes());
        drop(held);
        if let Some(touched) = touched {
            tree.persist_if_sync(touched)?;
        }
        Ok(Created { node: vfs::Node { handle: found.handle, attributes }, directory: wcc, lease: None })
    }
}

fn mode(given: Option<u32>, otherwise: u32) -> Mode {
    Mode::from_raw_mode(given.unwrap_or(otherwise) & 0o7777)
}

/// The times that store the verifier of an exclusive create: the seconds of atime and mtime. The sign bits
/// are cleared for file systems with 32-bit seconds.
fn verifier_seconds(verifier: Verifier) -> (i64, i64) {
    let all = u64::from_be_bytes(verifier);
    ((all >> 32 & 0x7fff_ffff) as i64, (all & 0x7fff_ffff) as i64)
}

impl Tree {
    /// Makes a change of metadata durable, unless the export is `async`.
    pub(crate) fn persist_if_sync(&self, node: &Node) -> Result<(), Status> {
        if self.sync { self.persist(node) } else { Ok(()) }
    }
}

/// Sets owner and group of an object. A symbolic link is not followed.
pub(crate) fn chown(file: &OwnedFd, uid: Option<Uid>, gid: Option<Gid>) -> Result<(), Status> {
    rustix::fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(errno::status)
}

/// Looks up the object of a change, and locks it too.
pub(crate) fn peek_locked(
    tree: &Tree,
    directory: &Node,
    name: &Name,
    held: &mut HeldLocks,
) -> Result<(Described, OwnedFd), Stop> {
    let found = lookup::peek(tree, directory, name)?;
    held.also(&tree.locks, &found.0.handle)?;
    Ok(found)
}
